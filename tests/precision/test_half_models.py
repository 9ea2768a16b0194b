# SPDX-License-Identifier: Apache-2.0
"""Whole models in half precision against the same in float32: layers, training, accuracy."""

import copy

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

HALVES = [torch.float16, torch.bfloat16]
TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 4e-2}


class Encoder(nn.Module):
    def __init__(self, width=48, heads=3):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.heads = heads

    def forward(self, ids, target):
        x = self.embed(ids)
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(y))
        x = self.norm2(x + self.down(F.gelu(self.up(x))))
        return x, F.mse_loss(x.float(), target)


def data():
    torch.manual_seed(1)
    return torch.randint(0, 20, (3, 37)), torch.randn(3, 37, 48)


@pytest.mark.parametrize("dtype", HALVES)
def test_an_encoder_trains_as_in_float32(opts, dtype):
    ids, target = data()
    plain = Encoder()
    half = copy.deepcopy(plain).to(dtype)
    # Scaled up, so that small gradients are not lost, and divided out again by the optimizer.
    optimizer = poptorch.optim.SGD(half.parameters(), lr=0.5, loss_scaling=256.0)
    step = poptorch.trainingModel(half, opts, optimizer)
    reference = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(5):
        got, loss = step(ids, target)
        reference.zero_grad()
        want, expected = plain(ids, target)
        expected.backward()
        reference.step()
    assert got.dtype == dtype
    scale = want.abs().max()
    assert (got.float() - want).abs().max() <= 4 * TOLERANCE[dtype] * scale
    assert loss.item() == pytest.approx(expected.item(), rel=2 * TOLERANCE[dtype])


class Attend(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, q, k, v, mask=None):
        y = F.scaled_dot_product_attention(
            q * self.scale, k, v, attn_mask=mask, is_causal=self.causal
        )
        return y, poptorch.identity_loss(y.float().pow(2), "mean")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "half"])
@pytest.mark.parametrize("lengths", [(5, 5), (130, 130), (17, 200)])
def test_attention_in_half_rounds_once(opts, dtype, kind, lengths):
    if kind == "causal" and lengths[0] != lengths[1]:
        pytest.skip("a causal mask is square")
    torch.manual_seed(0)
    q = torch.randn(2, 3, lengths[0], 20).to(dtype)
    k, v = (torch.randn(2, 3, lengths[1], 20).to(dtype) for _ in range(2))
    mask = ()
    if kind == "bool":
        mask = (torch.rand(lengths) > 0.3,)
    elif kind == "half":
        mask = (torch.randn(2, 1, *lengths).to(dtype),)
    model = Attend(kind == "causal").to(dtype)
    got = poptorch.trainingModel(model, opts)(q, k, v, *mask)[0]
    wide = [t if t.dtype == torch.bool else t.float() for t in (q, k, v, *mask)]
    want = Attend(kind == "causal")(*wide)[0]
    unit = {torch.float16: 6e-4, torch.bfloat16: 5e-3}[dtype]
    torch.testing.assert_close(got.float(), want, rtol=unit, atol=unit)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", [3, 60])
def test_a_linear_layer_rounds_once(opts, dtype, size):
    torch.manual_seed(0)
    layer, x = nn.Linear(size, size), torch.randn(7, size).to(dtype)
    layer.bias.data *= 50  # a sum of which the product is a small part
    layer.to(dtype)
    got = poptorch.inferenceModel(layer, opts)(x)
    exact = F.linear(x.double(), layer.weight.double(), layer.bias.double())
    assert torch.equal(got, exact.float().to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [1, 3, 65])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm_in_half_rounds_once(opts, dtype, rows, affine):
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.norm = nn.LayerNorm(77, elementwise_affine=affine)
            self.bias = nn.Parameter(torch.zeros(77))
            if affine:
                nn.init.normal_(self.norm.weight)

        def forward(self, x, target):
            y = self.norm(x + self.bias)
            return y, poptorch.identity_loss((y.float() * target).sum(), "sum")

    torch.manual_seed(1)
    x, target = torch.randn(rows, 77).to(dtype), torch.randn(rows, 77)
    model = Norm().to(dtype)
    plain = copy.deepcopy(model).float()
    step = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1.0))
    before = [p.detach().float().clone() for p in model.parameters()]
    got = step(x, target)[0]
    want, loss = plain(x.float(), target)
    loss.backward()
    unit = {torch.float16: 6e-4, torch.bfloat16: 5e-3}[dtype]
    torch.testing.assert_close(got.float(), want, rtol=unit, atol=unit)
    step.copyWeightsToHost()
    for old, new, p in zip(before, model.parameters(), plain.parameters(), strict=True):
        size = p.grad.abs().max() + old.abs().max()
        assert (old - new.detach().float() - p.grad).abs().max() <= 4 * unit * size


@pytest.mark.parametrize("dtype", HALVES)
def test_inputs_and_outputs_keep_the_type(opts, dtype):
    class Two(nn.Module):
        def forward(self, x, y):
            return x * 2, y + 1

    x = torch.randn(3, 3).to(dtype)
    got = poptorch.inferenceModel(Two(), opts)(x, x.float())
    assert [t.dtype for t in got] == [dtype, torch.float32]
    assert torch.equal(got[0], x * 2)


class Tutorial(nn.Module):
    """Two convolutions, a group norm and two linear layers, with their loss."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv1, self.conv2 = nn.Conv2d(1, 5, 3), nn.Conv2d(5, 12, 5)
        self.norm = nn.GroupNorm(3, 12)
        self.fc1, self.fc2 = nn.Linear(12 * 9, 100), nn.Linear(100, 10)

    def forward(self, x, labels=None):
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = self.norm(torch.relu(self.conv2(x)))
        x = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        if labels is None:
            return x
        return x, F.cross_entropy(x.float(), labels)


def digits(n, seed):
    """Noisy copies of ten fixed pictures, moved by up to a pixel."""
    generator = torch.Generator().manual_seed(5)
    pictures = torch.randn(10, 16, 16, generator=generator)
    generator.manual_seed(seed)
    labels = torch.randint(0, 10, (n,), generator=generator)
    moves = torch.randint(-1, 2, (n, 2), generator=generator)
    x = torch.stack(
        [
            pictures[label].roll(tuple(move.tolist()), (0, 1))
            for label, move in zip(labels, moves, strict=True)
        ]
    )
    return x[:, None] + 0.7 * torch.randn(n, 1, 16, 16, generator=generator), labels


def accuracy(opts, prepare, dtype):
    """Mean of some first weights: one training ends a percent higher or lower by rounding alone."""
    return sum(accuracy_from(seed, opts, prepare, dtype) for seed in range(4)) / 4


def accuracy_from(seed, opts, prepare, dtype):
    model = prepare(Tutorial(seed))
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.03, momentum=0.9, use_combined_accum=False, loss_scaling=64.0
    )
    step = poptorch.trainingModel(model, opts.clone(), optimizer)
    x, labels = digits(1600, 0)
    for _ in range(3):
        for part in torch.arange(1600).split(16):
            step(x[part].to(dtype), labels[part])
    step.detachFromDevice()
    x, labels = digits(1000, 1)
    found = poptorch.inferenceModel(model, opts.clone())(x.to(dtype)).argmax(1)
    return (found == labels).double().mean().item()


def test_the_tutorial_network_is_as_accurate_as_in_float32(opts):
    want = accuracy(opts.clone(), lambda m: m, torch.float32)
    assert 0.8 < want < 1.0
    assert accuracy(opts.clone(), lambda m: m.half(), torch.float16) >= want - 0.01
    assert accuracy(opts.clone(), lambda m: m.autocast(), torch.float32) >= want - 0.01
    assert accuracy(opts.clone(), lambda m: m.bfloat16(), torch.bfloat16) >= want - 0.03
