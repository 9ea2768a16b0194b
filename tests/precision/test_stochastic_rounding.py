# SPDX-License-Identifier: Apache-2.0
"""Options of the arithmetic: stochastic rounding and the type of partial sums."""

import copy

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from function_model import Call
from torch import nn

HALF = torch.float16


def stochastic(opts, seed=7):
    opts.randomSeed(seed)
    opts.Precision.enableStochasticRounding(True)
    return opts


def neighbours(x):
    """The float16 numbers around float32 ones."""
    down = x.half()
    over = down.float() > x
    down = torch.where(over, torch.nextafter(down, torch.tensor(-torch.inf).half()), down)
    return down, torch.nextafter(down, torch.tensor(torch.inf).half())


VALUES = [1.0001, -1.00037, 1.9999, -0.1, 3.3e-5, 1e-6, -2e-8, 1234.3, 60000.5, 0.99988]


def test_rounding_keeps_the_expectation(opts):
    n = 1 << 16
    x = torch.tensor(VALUES)[:, None].repeat(1, n)
    got = poptorch.inferenceModel(Call(lambda x: x.half()), stochastic(opts))(x)
    low, high = neighbours(x[:, 0])
    part = (got == high[:, None]).double().mean(1)
    assert ((got == low[:, None]).double().mean(1) + part == 1).all()
    want = (x[:, 0].double() - low) / (high.double() - low)
    # Five standard deviations of that many draws.
    assert ((part - want).abs() <= 5 * (want * (1 - want) / n).sqrt() + 2e-4).all()


def test_numbers_that_float16_has_stay(opts):
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(HALF)
    x = every[every.isfinite()]
    got = poptorch.inferenceModel(Call(lambda x: x.half()), stochastic(opts))(x.float())
    assert torch.equal(got, x)


def test_infinities_and_nans_stay(opts):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e6])
    got = poptorch.inferenceModel(Call(lambda x: x.half()), stochastic(opts))(x)
    torch.testing.assert_close(got, x.half(), equal_nan=True)


def test_a_seed_gives_the_same_run_again_and_calls_differ(opts):
    x = torch.rand(4096)

    def two_calls(seed):
        model = poptorch.inferenceModel(Call(lambda x: x.half()), stochastic(opts.clone(), seed))
        return model(x), model(x)

    a, b = two_calls(3)
    c, d = two_calls(3)
    e, _ = two_calls(4)
    assert torch.equal(a, c) and torch.equal(b, d)
    assert not torch.equal(a, b) and not torch.equal(a, e)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x * y,
        lambda x, y: x @ y,
        lambda x, y: (x * y).sum(1),
        lambda x, y: torch.softmax(x + y, -1),
        lambda x, y: F.layer_norm(x, (64,)) * y,
        lambda x, y: F.avg_pool1d(x, 3),
        lambda x, y: F.adaptive_avg_pool1d(x, 20),
        lambda x, y: F.interpolate(x[None], 100, mode="linear"),
        lambda x, y: F.batch_norm(x, None, None, training=True),
        lambda x, y: F.group_norm(x, 4),
        lambda x, y: x.cumsum(1),
        lambda x, y: x.index_add(0, torch.zeros(64, dtype=torch.int64), y),
    ],
)
def test_results_of_ops_are_rounded_at_random_without_bias(opts, function):
    torch.manual_seed(0)
    x, y = torch.randn(64, 64).half(), torch.randn(64, 64).half()
    model = poptorch.inferenceModel(Call(function), stochastic(opts).deviceIterations(1))
    runs = torch.stack([model(x, y).double() for _ in range(64)])
    want = function(x.double(), y.double())
    nearest = function(x, y).double()
    assert runs.std(0).max() > 0
    error = (runs.mean(0) - want).abs().mean()
    # The mean of many runs is nearer to the truth than rounding to nearest is.
    assert error < 0.5 * (nearest - want).abs().mean() + 1e-9


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_rounded_at_random(opts, kind):
    torch.manual_seed(0)
    layer, x = kind(8, 16).half(), torch.randn(5, 4, 8).half()
    model = poptorch.inferenceModel(layer, stochastic(opts))
    runs = torch.stack([model(x)[0].double() for _ in range(32)])
    want = kind.to(copy.deepcopy(layer), torch.float64)(x.double())[0]
    assert runs.std(0).max() > 0
    assert (runs.mean(0) - want).abs().mean() < (runs[0] - want).abs().mean()


def test_small_updates_are_not_lost(opts):
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4096))

        def forward(self, x):
            return poptorch.identity_loss((self.w * x).float().sum(), "sum")

    def trained(opts):
        model = Loss().half()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=1e-4)
        step = poptorch.trainingModel(model, opts, optimizer)
        for _ in range(20):
            step(torch.ones(4096).half())
        return step.w.detach().float().mean().item()

    assert trained(opts.clone()) == 1.0  # an update is a tenth of the last place
    assert trained(stochastic(opts.clone())) == pytest.approx(1 - 20e-4, abs=2e-4)


# Partial sums -------------------------------------------------------------------------------------


def test_micro_batches_in_a_pipeline_are_rounded_apart(opts):
    class Stages(nn.Module):
        def forward(self, x):
            with poptorch.Block("first", ipu_id=0):
                x = x * 1.0001
            with poptorch.Block("second", ipu_id=1):
                return x.half()

    options = stochastic(opts).deviceIterations(4)
    options.setExecutionStrategy(poptorch.PipelinedExecution("first", "second"))
    rows = poptorch.inferenceModel(Stages(), options)(torch.rand(1, 4096).repeat(4, 1))
    for a in range(4):
        for b in range(a):
            assert not torch.equal(rows[a], rows[b])


def test_partials_in_float32_unless_asked(opts):
    # 1 + 4096 * 2^-12: in float16 nothing can be added to 2048 halves one by one.
    x, y = torch.ones(1, 8192).half(), torch.ones(8192, 1).half()
    full = poptorch.inferenceModel(Call(torch.mm), opts.clone())(x, y * 0.25 + 2**-12)
    exact = torch.mm(x.double(), (y * 0.25 + 2**-12).half().double())
    assert abs(full.item() - exact.item()) <= 1.0
    half = opts.clone()
    half.Precision.setPartialsType(torch.half)
    rounded = poptorch.inferenceModel(Call(torch.mm), half)(x, y * 0.25 + 2**-12)
    torch.testing.assert_close(rounded, full, rtol=2e-2, atol=0)


@pytest.mark.parametrize(
    "function, shapes",
    [
        (torch.mm, [(5, 300), (300, 7)]),
        (torch.bmm, [(2, 5, 130), (2, 130, 7)]),
        (F.conv2d, [(2, 100, 6, 6), (8, 100, 3, 3), (8,)]),
    ],
)
def test_half_partials_round_between_pieces(opts, function, shapes):
    torch.manual_seed(0)
    args = [torch.randn(s).half() for s in shapes]
    opts.Precision.setPartialsType(torch.half)
    got = poptorch.inferenceModel(Call(function), opts)(*args)
    want = function(*(a.double() for a in args))
    nearest = (want.half().double() - want).abs().mean()
    error = (got.double() - want).abs().mean()
    assert error > 1.2 * nearest  # more than one rounding happened
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize(
    "layer, shape",
    [
        (nn.Conv2d(4, 100, 3, bias=False), (24, 4, 10, 10)),
        (nn.ConvTranspose2d(100, 4, 3, bias=False), (24, 100, 8, 8)),
        (nn.Linear(300, 300, bias=False), (200, 300)),
    ],
)
def test_half_partials_round_in_gradients_too(opts, layer, shape):
    class Grads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = copy.deepcopy(layer)
            self.x = nn.Parameter(torch.randn(shape))

        def forward(self):
            y = self.layer(self.x)
            return poptorch.identity_loss((y * y).sum(), "sum")

    torch.manual_seed(0)
    made = Grads()
    with torch.no_grad():
        made.layer.weight *= 0.1
    made.half()
    exact = copy.deepcopy(made).double()
    y = exact.layer(exact.x)
    y.backward(2 * y.detach().half().double())

    def gradients(partials):
        chosen = opts.clone()
        chosen.Precision.setPartialsType(partials)
        model = copy.deepcopy(made)
        before = [p.detach().clone().double() for p in model.parameters()]
        step = poptorch.trainingModel(
            model, chosen, poptorch.optim.SGD(model.parameters(), lr=64.0, momentum=0.0)
        )
        step()
        step.copyWeightsToHost()
        after = [p.detach().double() for p in model.parameters()]
        return [(b - a) / 64 for b, a in zip(before, after, strict=True)]

    def errors(partials):
        pairs = zip(gradients(partials), exact.parameters(), strict=True)
        return torch.tensor([(got - p.grad).abs().mean() for got, p in pairs])

    full, half = errors(torch.float), errors(torch.half)
    assert (half > 1.05 * full).all() and (half < 40 * full).all()


def test_half_partials_leave_float32_alone(opts):
    torch.manual_seed(0)
    x, y = torch.randn(5, 300), torch.randn(300, 7)
    plain = poptorch.inferenceModel(Call(torch.mm), opts.clone())(x, y)
    opts.Precision.setPartialsType(torch.half)
    assert torch.equal(poptorch.inferenceModel(Call(torch.mm), opts)(x, y), plain)


def test_norms_are_stable_with_and_without_the_option(opts):
    x = torch.randn(4, 3, 16) + 1e4
    for stable in (False, True):
        chosen = opts.clone()
        chosen._Popart.set("enableStableNorm", stable)
        for norm in (nn.GroupNorm(3, 3), nn.LayerNorm(16), nn.InstanceNorm1d(3)):
            got = poptorch.inferenceModel(norm, chosen.clone())(x)
            want = norm.double()(x.double())
            torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-2)
            norm.float()
