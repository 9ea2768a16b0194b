# SPDX-License-Identifier: Apache-2.0
"""Sizes at which kernels take other ways: several threads, whole vectors and their rests, batches
in vector lanes, channels last."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from against_eager import check_gradients
from test_zoo import Fn, Recurrent
from torch import nn

# channels in, channels out, kernel, stride, padding, dilation, groups
CONVOLUTIONS = [
    (1, 5, 3, 1, 0, 1, 1),
    (3, 16, 3, 1, 1, 1, 1),
    (16, 32, 3, 2, 1, 1, 1),
    (32, 32, 3, 1, 1, 1, 32),
    (16, 24, 1, 1, 0, 1, 1),
    (8, 8, 5, 2, 2, 1, 2),
    (6, 12, 3, 1, 2, 2, 3),
    (64, 64, 3, 1, 1, 1, 1),
]
BATCHES = [3, 16, 17]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=lambda s: "_".join(map(str, s)))
def test_convolution(shape, batch):
    torch.manual_seed(0)
    inner, outer, kernel, stride, padding, dilation, groups = shape
    model = nn.Sequential(
        nn.Conv2d(inner, inner, 1),
        nn.Conv2d(inner, outer, kernel, stride, padding, dilation, groups),
    )
    check_gradients(model, (torch.randn(batch, inner, 13, 11),))


NETS = {
    "batch_norm": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)
    ),
    "group_norm": lambda: nn.Sequential(
        nn.Conv2d(3, 20, 3), nn.GroupNorm(4, 20), nn.GELU(), nn.AdaptiveAvgPool2d(3)
    ),
    "instance_norm": lambda: nn.Sequential(nn.Conv2d(3, 9, 3), nn.InstanceNorm2d(9), nn.ELU()),
    "transposed": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.LeakyReLU(),
        nn.ConvTranspose2d(8, 3, 3, 1, 1),
    ),
    "pools": lambda: nn.Sequential(
        nn.Conv2d(3, 9, 3),
        nn.MaxPool2d(3, 2, 1),
        nn.AvgPool2d(3, 1, 1),
        nn.MaxPool2d(2, 2, ceil_mode=True),
    ),
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", NETS)
def test_image_net(name, batch):
    torch.manual_seed(0)
    check_gradients(NETS[name](), (torch.randn(batch, 3, 18, 15),))


@pytest.mark.parametrize("batch", BATCHES)
def test_sequence_nets(batch):
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Linear(33, 70), nn.LayerNorm(70), nn.SiLU(), nn.Linear(70, 5))
    check_gradients(norm, (torch.randn(batch, 40, 33),))
    layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
    check_gradients(layer, (torch.randn(batch, 37, 48),))
    check_gradients(Recurrent(nn.LSTM), (torch.randn(batch, 6, 3),))


PLACES = torch.arange(37 * 50 * 9).reshape(37, 50, 9) * 7 % 130
FUNCTIONS = {
    "sum": lambda v: v.sum(0) + v.sum(1)[0] + v.sum(2)[0, 0] + v.sum(),
    "sum_of_permuted": lambda v: (
        (v.transpose(0, 1) * 2).sum(0) + (v.permute(2, 1, 0) + 1).sum(1).t()
    ),
    "mean": lambda v: v.mean((0, 2)),
    "max": lambda v: v.max(0)[0] + v.amax(0) + v.min(1)[0][0] + v.amax(2)[0, 0],
    "argmax": lambda v: v * v.argmax(1, keepdim=True) + v.argmax(),
    "softmax": lambda v: F.softmax(v, 0) + F.log_softmax(v, 1) + F.softmax(v, 2),
    "softmax_of_view": lambda v: F.softmax(v.transpose(0, 2), 1),
    "var": lambda v: v.var((0, 1)) + v.std(1)[0],
    "normalize": lambda v: F.normalize(v, dim=1) + v.logsumexp(1, keepdim=True),
    "index": lambda v: v[:, torch.arange(130).flip(0)] * 2 + v.flip(1),
    "gather": lambda v: v.gather(1, PLACES),
    "scatter_add": lambda v: v.scatter_add(1, PLACES, v[:, :50] * 2),
    "index_put": lambda v: torch.index_put(
        v,
        (torch.arange(60) % 37, torch.arange(60) * 3 % 11),
        v[:30].reshape(-1, 9)[:60],
        accumulate=True,
    ),
    "cat": lambda v: torch.cat([v, v * 2, v[:, :3]], 1).permute(2, 0, 1).contiguous(),
    "stack": lambda v: torch.stack([v[:, i] for i in range(5)], 0).reshape(-1, 37).t(),
    "pad_roll": lambda v: (
        F.pad(v, (3, 1, 2, 0))[:, 2:, 3:-1] + v.roll(5, 1) + v.roll((1, 2), (0, 2))
    ),
    "mm": lambda v: v.reshape(37, -1) @ v.reshape(37, -1).t(),
    "bmm": lambda v: v @ v.transpose(1, 2) @ v,
    "einsum": lambda v: torch.einsum("abc,dbc->ad", v, v),
    "broadcast": lambda v: v[:, :1] * v[:1] + torch.where(v[:, :1] > 0, v, v[:1] * 2),
    "activations": lambda v: F.gelu(v) + F.softplus(v * 30) + F.mish(v * 30) + F.logsigmoid(v * 30),
    "powers": lambda v: v.abs().pow(2.5) + v.pow(3) + torch.atan2(v, v.flip(0) + 9),
    "split": lambda v: sum(c.sum(1, keepdim=True) * i for i, c in enumerate(v.split(17, 1))),
    "tril": lambda v: v.permute(0, 2, 1).tril(2).triu(-3),
    "repeat": lambda v: v[:5, :7].repeat(3, 2, 4) + v[:5, :7].repeat_interleave(3, 0)[:, :1, :1],
    "expanded": lambda v: (v[:1].expand(20, 130, 9) * torch.arange(20.0)[:, None, None]).sum(
        (1, 2)
    ),
    "unfold": lambda v: v.unfold(1, 4, 2).mean(-1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    torch.manual_seed(0)
    check_gradients(Fn(FUNCTIONS[name], 37, 130, 9), (torch.randn(37, 130, 9),))


def test_embeddings():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1000, 33), nn.Linear(33, 40))
    check_gradients(model, (torch.randint(0, 1000, (20, 30)),))
    model = nn.Embedding(5000, 64, padding_idx=3, scale_grad_by_freq=True)
    check_gradients(model, (torch.randint(0, 50, (40, 30)),))


class AfterConvolution(nn.Module):
    """An op on what a convolution leaves in its own order of dimensions."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 3), function

    def forward(self, x):
        return self.function(self.conv(x).relu())


ON_IMAGES = {
    "bilinear": lambda y: F.interpolate(y, scale_factor=2, mode="bilinear"),
    "adaptive_max_pool": lambda y: F.adaptive_max_pool2d(y, 3),
    "cumsum": lambda y: y.cumsum(1) + y.cumsum(3),
    "sort": lambda y: y.sort(1)[0],
    "fold": lambda y: F.fold(F.unfold(y, 3, padding=1), y.shape[2:], 3, padding=1),
    "flip": lambda y: y.flip(1) + y.flip(3),
    "layer_norm": lambda y: F.layer_norm(y.permute(0, 2, 3, 1), (4,)).permute(0, 3, 1, 2),
    "softmax": lambda y: F.softmax(y, 1) + F.softmax(y.flatten(2), 2).view_as(y),
    "squeeze_excite": lambda y: y * y.mean((2, 3), keepdim=True).sigmoid(),
    "attention": lambda y: F.scaled_dot_product_attention(*[y.flatten(2).transpose(1, 2)] * 3),
    "argmax": lambda y: y * y.argmax(1, keepdim=True),
    "cat": lambda y: torch.cat([y, y.mean(1, keepdim=True)], 1),
}


@pytest.mark.parametrize("batch", [2, 16])
@pytest.mark.parametrize("name", ON_IMAGES)
def test_after_a_convolution(name, batch):
    torch.manual_seed(0)
    check_gradients(AfterConvolution(ON_IMAGES[name]), (torch.randn(batch, 3, 10, 10),))
