# SPDX-License-Identifier: Apache-2.0
"""Ops on half-precision tensors larger than a cache, which are computed piece by piece: values of
float32 rounded once, forward and backward, and no float32 copy of a tensor."""

import copy

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

HALVES = [torch.float16, torch.bfloat16]
STEP = {torch.float16: 2**-11, torch.bfloat16: 2**-8}  # half a unit in the last place of 1


class Model(nn.Module):
    """The function of its parameters; the loss gives a gradient that half precision has exactly."""

    def __init__(self, function, *tensors):
        super().__init__()
        self.function = function
        self.tensors = nn.ParameterList([nn.Parameter(t.clone()) for t in tensors])

    def forward(self, weight):
        y = self.function(*self.tensors)
        return y, poptorch.identity_loss((y.float() * weight).sum(), "sum")


def randn(*shape, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) * scale


def pool_index(x):
    return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)


INDEX = torch.arange(3000).remainder(700)
CASES = {
    "conv": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        randn(13, 32, 40, 40),
        randn(48, 32, 3, 3, scale=0.05),
        randn(48),
    ),
    "conv of few channels": (
        lambda x, w: F.conv2d(x, w, padding=1),
        randn(70, 4, 48, 48),
        randn(8, 4, 3, 3, scale=0.2),
    ),
    "conv in groups": (
        lambda x, w: F.conv2d(x, w, stride=2, groups=4),
        randn(13, 32, 41, 41),
        randn(48, 8, 3, 3, scale=0.1),
    ),
    "conv1d": (lambda x, w: F.conv1d(x, w), randn(33, 64, 500), randn(48, 64, 3, scale=0.1)),
    "conv3d": (
        lambda x, w: F.conv3d(x, w),
        randn(5, 8, 16, 26, 26),
        randn(16, 8, 3, 3, 3, scale=0.1),
    ),
    "transposed conv": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2),
        randn(9, 32, 40, 40),
        randn(32, 16, 3, 3, scale=0.1),
        randn(16),
    ),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), randn(33, 32, 40, 40)),
    "average pool": (lambda x: F.avg_pool2d(x, 2), randn(33, 32, 40, 40)),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, 7), randn(33, 32, 40, 40)),
    "pool of channels last": (
        lambda x, w: F.avg_pool2d(F.conv2d(x, w), 2),
        randn(13, 32, 40, 40),
        randn(32, 32, 1, 1, scale=0.2),
    ),
    "unpool": (pool_index, randn(33, 32, 40, 40)),
    "group norm": (
        lambda x, w, b: F.group_norm(x, 4, w, b),
        randn(33, 32, 30, 30),
        randn(32),
        randn(32),
    ),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        randn(33, 70, 30, 30),
        randn(70),
        randn(70),
    ),
    "cumsum": (lambda x: x.cumsum(1), randn(64, 16, 1024, scale=0.1)),
    "cumsum of rows": (lambda x: x.cumsum(0), randn(16, 64 * 1024, scale=0.1)),
    "prod": (lambda x: x.prod(1), randn(1200, 4, 200)),
    "fold": (lambda x: F.fold(x, 34, 3), randn(20, 9 * 8, 1024)),
    "unfold": (lambda x: x.unfold(1, 4, 2), randn(300, 2100)),
    "grid": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        randn(20, 16, 40, 40),
        randn(20, 40, 40, 2, scale=0.5),
    ),
    "embedding": (lambda w: F.embedding(INDEX, w), randn(1000, 600)),
    "index_add": (lambda x, y: x.index_add(0, INDEX, y), randn(1000, 300), randn(3000, 300)),
    "cross entropy": (
        lambda x: F.cross_entropy(x, INDEX, reduction="none"),
        randn(3000, 700),
    ),
}


def exactly(function, tensors, weight, dtype):
    """Results and gradients in float64 from the numbers in half precision."""
    given = [t.to(dtype).double().requires_grad_() for t in tensors]
    y = function(*given)
    y.backward(weight.double())
    return y.detach(), [t.grad for t in given]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_values_are_rounded_once(opts, name, dtype):
    function, *tensors = CASES[name]
    with torch.no_grad():
        shape = function(*tensors).shape
    weight = (torch.arange(shape.numel()).reshape(shape) % 7 - 3) * 2.0**-9
    want, gradients = exactly(function, tensors, weight, dtype)
    model = Model(function, *tensors).to(dtype)
    before = [p.detach().clone() for p in model.tensors]
    # A large step: what is rounded is the gradient, not the weight.
    optimizer = poptorch.optim.SGD(model.parameters(), lr=256.0, loss_scaling=1.0)
    step = poptorch.trainingModel(model, opts, optimizer)
    y, _ = step(weight)
    step.copyWeightsToHost()
    close(y, want, dtype)
    for p, old, gradient in zip(model.tensors, before, gradients, strict=True):
        close(p.detach(), old.double() - 256 * gradient, dtype)


def close(got, want, dtype):
    """Within a few roundings of the largest numbers around."""
    error = (got.double() - want).abs().max()
    assert error <= 4 * STEP[dtype] * want.abs().max()


torch.manual_seed(0)
RECURRENT = {
    "lstm": nn.LSTM(12, 20),
    "lstm both ways": nn.LSTM(12, 20, 2, bidirectional=True),
    "lstm projected": nn.LSTM(12, 20, proj_size=9),
    "lstm without bias": nn.LSTM(12, 40, bias=False),
    "gru": nn.GRU(12, 20),
    "gru both ways": nn.GRU(12, 40, bidirectional=True),
    "rnn": nn.RNN(12, 20),
    "relu": nn.RNN(12, 40, nonlinearity="relu"),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_those_of_float32(opts, name, dtype, packed):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = copy.deepcopy(RECURRENT[name])
            self.x = nn.Parameter(randn(9, 33, 12))

        def forward(self):
            x = self.x
            if packed:
                lengths = torch.arange(33, 0, -1) // 4 + 1
                x = nn.utils.rnn.pack_padded_sequence(x, lengths)
            y, state = self.rnn(x)
            y = nn.utils.rnn.pad_packed_sequence(y)[0] if packed else y
            loss = y.float().square().sum() + sum(
                s.float().sum() for s in (state if isinstance(state, tuple) else (state,))
            )
            return y, poptorch.identity_loss(loss * 2.0**-6, "sum")

    half = Layer().to(dtype)
    exact = copy.deepcopy(half).float()
    step = poptorch.trainingModel(half, opts, poptorch.optim.SGD(half.parameters(), lr=64.0))
    y, _ = step()
    step.copyWeightsToHost()
    want, loss = exact()
    loss.backward()
    tolerance = 20 * STEP[dtype]
    assert (y.float() - want).abs().max() <= tolerance * want.abs().max()
    for p, q in zip(half.parameters(), exact.parameters(), strict=True):
        expected = q.detach() - 64 * q.grad
        # Not the largest error: a ReLU at its edge goes either way.
        assert (p.float() - expected).norm() <= tolerance * expected.norm()


def scratch_of(opts, function, tensors, dtype):
    model = Model(function, *tensors).to(dtype)
    step = poptorch.trainingModel(model, opts.clone())
    with torch.no_grad():
        step.compile(torch.ones_like(function(*tensors)))
    return step.getProgramSummary()["scratch_bytes"]


@pytest.mark.parametrize(
    "name",
    ["conv", "max pool", "group norm", "cumsum", "fold", "grid", "embedding", "index_add"],
)
def test_large_tensors_have_no_copy_in_float32(opts, name):
    function, *tensors = CASES[name]
    tensors = [t.repeat(4, *[1] * (t.dim() - 1)) if t.numel() > 5 * 10**4 else t for t in tensors]
    if name == "index_add":  # four times as wide: rows go together with the index
        tensors = [t.repeat(1, 4) for t in CASES[name][1:]]
    largest = max(t.numel() for t in tensors)
    full = scratch_of(opts, function, tensors, torch.float32)
    assert scratch_of(opts, function, tensors, torch.float16) < full + 4 * largest
