# SPDX-License-Identifier: Apache-2.0
"""Random ops: they follow their distributions, come from the seed of the options, and change from
call to call. Bounds are those of a chance below one in a million for a right generator; seeds are
fixed, so a test that passes once passes always."""

import inspect
import math

import poptorch
import pytest
import torch
import torch.distributions as D  # noqa: N812
import torch.nn.functional as F  # noqa: N812
from against_eager import quiet, summary
from torch import nn

N = 1 << 16
X = torch.full((N,), 0.5)


class Draw(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return self.draw(x)


def executor(draw, seed=7):
    return poptorch.inferenceModel(Draw(draw), quiet().randomSeed(seed))


def hosted(run):
    return {call["target"] for call in summary(run)["host_calls"]}


def normal_cdf(x):
    return 0.5 * torch.erfc(-x / math.sqrt(2))


# name -> (how to draw as many numbers as the input has, distribution function)
CONTINUOUS = {
    "rand": (lambda x: torch.rand(x.shape), lambda v: v),
    "rand_like": (torch.rand_like, lambda v: v),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-2, 3), lambda v: (v + 2) / 5),
    "randn": (lambda x: torch.randn(x.shape), normal_cdf),
    "randn_like": (torch.randn_like, normal_cdf),
    "normal_": (lambda x: torch.empty_like(x).normal_(1, 2), lambda v: normal_cdf((v - 1) / 2)),
    "normal of tensors": (
        lambda x: torch.normal(x, x * 4),
        lambda v: normal_cdf((v - 0.5) / 2),
    ),
    "normal of tensor and number": (
        lambda x: torch.normal(x, 2.0),
        lambda v: normal_cdf((v - 0.5) / 2),
    ),
    "normal of number and tensor": (
        lambda x: torch.normal(3.0, x),
        lambda v: normal_cdf((v - 3) / 0.5),
    ),
    "normal of numbers": (
        lambda x: torch.normal(3.0, 0.5, x.shape),
        lambda v: normal_cdf((v - 3) / 0.5),
    ),
    "exponential_": (
        lambda x: torch.empty_like(x).exponential_(2.0),
        lambda v: -torch.expm1(-2 * v),
    ),
    "cauchy_": (
        lambda x: torch.empty_like(x).cauchy_(1, 3),
        lambda v: 0.5 + torch.atan((v - 1) / 3) / math.pi,
    ),
    "log_normal_": (
        lambda x: torch.empty_like(x).log_normal_(0.5, 0.25),
        lambda v: normal_cdf((v.log() - 0.5) / 0.25),
    ),
    "rrelu noise": (
        lambda x: F.rrelu(-2 * x, 0.25, 0.75, training=True),
        lambda v: (v + 0.75) / 0.5,
    ),
    "Normal": (
        lambda x: D.Normal(x, 2 * x).rsample(),
        lambda v: normal_cdf(v - 0.5),
    ),
    "Uniform": (lambda x: D.Uniform(x - 0.5, x + 0.5).rsample(), lambda v: v),
    "Exponential": (lambda x: D.Exponential(x).rsample(), lambda v: -torch.expm1(-v / 2)),
    "Laplace": (
        lambda x: D.Laplace(x, x).rsample(),
        lambda v: D.Laplace(0.5, 0.5).cdf(v),
    ),
    "Gumbel": (
        lambda x: D.Gumbel(x, x).rsample(),
        lambda v: torch.exp(-torch.exp(-(v - 0.5) / 0.5)),
    ),
    "Cauchy": (
        lambda x: D.Cauchy(x, x).rsample(),
        lambda v: D.Cauchy(0.5, 0.5).cdf(v),
    ),
    "Weibull": (
        lambda x: D.Weibull(x, 4 * x).rsample(),
        lambda v: -torch.expm1(-((v / 0.5) ** 2)),
    ),
    "LogNormal": (
        lambda x: D.LogNormal(x, x).rsample(),
        lambda v: normal_cdf((v.log() - 0.5) / 0.5),
    ),
}


def distance(values, cdf):
    """Largest distance of the share of values below each point from what it should be."""
    values = values.double().sort().values
    steps = torch.arange(len(values) + 1, dtype=torch.float64) / len(values)
    share = cdf(values)
    return max((share - steps[:-1]).abs().max().item(), (steps[1:] - share).abs().max().item())


@pytest.mark.parametrize("name", CONTINUOUS)
def test_numbers_follow_their_distribution(name):
    draw, cdf = CONTINUOUS[name]
    run = executor(draw)
    first, second = run(X), run(X)
    assert first.shape == X.shape and first.dtype is torch.float32
    for values in (first, second):
        assert torch.isfinite(values).all()
        assert distance(values, cdf) < 2.7 / math.sqrt(N)
    # ranks of neighbours, and of two calls, have nothing to do with each other
    a, b = (cdf(v.double()) - 0.5 for v in (first, second))
    for p, q in ((a, b), (a[1:], a[:-1])):
        assert abs((p * q).mean().item()) * 12 < 5 / math.sqrt(N)
    assert not hosted(run)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_equal_seeds_give_equal_numbers(name):
    draw, _ = CONTINUOUS[name]
    check_seeds(draw, X[:100])


def check_seeds(draw, x):
    first, second, other = executor(draw), executor(draw), executor(draw, 8)
    a = first(x)
    assert torch.equal(a, second(x))
    assert not torch.equal(a, other(x))
    again = first(x)
    assert not torch.equal(a, again)
    assert torch.equal(again, second(x))


def frequencies(values, low, high):
    values = values.double()
    assert values.min() >= low and values.max() <= high and torch.equal(values, values.round())
    return torch.bincount((values - low).long(), minlength=high - low + 1).double()


def assert_frequencies(seen, shares):
    """Pearson's test; cells too rare for it are put together."""
    total = seen.sum()
    expected = torch.as_tensor(shares, dtype=torch.float64) * total
    rare = expected < 20
    seen, expected = (
        torch.cat([t[~rare], t[rare].sum()[None]]) if rare.any() else t for t in (seen, expected)
    )
    keep = expected > 0
    assert torch.equal(seen[~keep], expected[~keep])
    chi = ((seen - expected)[keep] ** 2 / expected[keep]).sum().item()
    freedom = int(keep.sum()) - 1
    assert chi < freedom + 5 * math.sqrt(2 * freedom) + 15


DISCRETE = {
    "bernoulli of a tensor": (torch.bernoulli, 0, [0.5, 0.5]),
    "bernoulli of a number": (lambda x: torch.bernoulli(x, 0.2), 0, [0.8, 0.2]),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.9), 0, [0.1, 0.9]),
    "bernoulli_ of a tensor": (lambda x: torch.zeros_like(x).bernoulli_(x * 0.5), 0, [0.75, 0.25]),
    "randint": (lambda x: torch.randint(10, x.shape), 0, [0.1] * 10),
    "randint between": (lambda x: torch.randint(-3, 5, x.shape), -3, [0.125] * 8),
    "randint_like": (lambda x: torch.randint_like(x, 7), 0, [1 / 7] * 7),
    "randint_like between": (lambda x: torch.randint_like(x, 2, 7), 2, [0.2] * 5),
    "random_": (lambda x: torch.empty(N, dtype=torch.uint8).random_(), 0, [1 / 256] * 256),
    "random_ below": (lambda x: torch.empty_like(x).random_(6), 0, [1 / 6] * 6),
    "random_ between": (lambda x: torch.empty_like(x).random_(-2, 2), -2, [0.25] * 4),
    "geometric_": (
        lambda x: torch.empty_like(x).geometric_(0.5).clamp(max=20),
        1,
        [0.5**k for k in range(1, 20)] + [0.5**19],
    ),
    "multinomial with replacement": (
        lambda x: torch.multinomial(x[:4].cumsum(0), N, replacement=True),
        0,
        [0.1, 0.2, 0.3, 0.4],
    ),
    "Bernoulli": (lambda x: D.Bernoulli(x * 0.5).sample(), 0, [0.75, 0.25]),
    "Categorical": (
        lambda x: D.Categorical(logits=x[:4].cumsum(0).log()).sample((N,)),
        0,
        [0.1, 0.2, 0.3, 0.4],
    ),
    "Geometric": (
        lambda x: D.Geometric(x).sample().clamp(max=19),
        0,
        [0.5**k for k in range(1, 20)] + [0.5**19],
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_integers_have_their_frequencies(name):
    draw, low, shares = DISCRETE[name]
    run = executor(draw)
    for _ in range(2):
        assert_frequencies(frequencies(run(X), low, low + len(shares) - 1), shares)
    assert not hosted(run)
    check_seeds(draw, X)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    def draw(x):
        return torch.rand(N, dtype=dtype), torch.randn(N, dtype=dtype), torch.bernoulli(x.to(dtype))

    uniform, normal, coin = executor(draw)(X)
    assert uniform.dtype is normal.dtype is coin.dtype is dtype
    assert uniform.min() >= 0 and uniform.max() < 1
    # the steps of the type are coarse: compare with it, not with the exact distribution
    assert distance(uniform.float(), lambda v: v) < 2.7 / math.sqrt(N) + torch.finfo(dtype).eps
    assert distance(normal.float(), normal_cdf) < 2.7 / math.sqrt(N) + torch.finfo(dtype).eps
    assert_frequencies(frequencies(coin.float(), 0, 1), [0.5, 0.5])


INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_random_integers_fill_their_type(dtype):
    top = 1 if dtype is torch.bool else torch.iinfo(dtype).max

    def draw(x):
        whole = torch.empty(N, dtype=dtype).random_()
        # above 32 bits the user sees a narrower type
        return (whole.to(torch.float32) / (top + 1.0)).mean(), (whole > top // 2).float().mean()

    mean, upper = executor(draw)(X)
    low = 0.25 if dtype is torch.bool else 0.5
    assert mean.item() == pytest.approx(low, abs=5 * 0.29 / math.sqrt(N) + 1 / (top + 1))
    assert upper.item() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(N))


def test_wide_ranges_are_filled_evenly():
    wide = 3 * 2**60

    def draw(x):
        whole = torch.randint(-(2**40), wide, (N,))
        low = torch.randint(2**40, (N,)).remainder(8)
        return ((whole.to(torch.float64) + 2**40) / (wide + 2**40)).to(torch.float32), low

    share, low = executor(draw)(X)
    assert distance(share, lambda v: v) < 2.7 / math.sqrt(N)
    assert_frequencies(frequencies(low, 0, 7), [1 / 8] * 8)


def test_permutations():
    run = executor(lambda x: (torch.randperm(1000), torch.randperm(1000), torch.randperm(1)))
    first, second, single = run(X)
    assert torch.equal(first.sort().values, torch.arange(1000, dtype=first.dtype))
    assert torch.equal(second.sort().values, torch.arange(1000, dtype=first.dtype))
    assert single.tolist() == [0]
    assert not torch.equal(first, second)
    again = run(X)[0]
    assert not torch.equal(first, again)
    assert not hosted(run)


def test_draws_without_replacement():
    weights = torch.tensor([1.0, 2.0, 0.0, 3.0]).expand(N, 4).contiguous()
    run = executor(lambda x: torch.multinomial(x, 3))
    out = run(weights)
    assert torch.equal(out.sort(1).values, torch.tensor([0, 1, 3]).expand(N, 3).to(out.dtype))
    assert_frequencies(frequencies(out[:, 0], 0, 3), [1 / 6, 2 / 6, 0, 3 / 6])
    # second, given that class 3 was first
    second = out[out[:, 0] == 3, 1]
    assert_frequencies(frequencies(second, 0, 1), [1 / 3, 2 / 3])
    assert not hosted(run)


class BadWeights(nn.Module):
    def forward(self, x):
        return torch.multinomial(x, 2)  # the line


@pytest.mark.parametrize("weights", [[-1.0, 2.0], [float("nan"), 1.0], [0.0, 0.0]])
def test_weights_that_are_no_distribution(weights):
    line = inspect.getsourcelines(BadWeights.forward)[1] + 1
    run = poptorch.inferenceModel(BadWeights(), quiet())
    assert sorted(run(torch.tensor([0.5, 0.5])).tolist()) == [0, 1]
    with pytest.raises(poptorch.Error, match="multinomial.*probabilit") as caught:
        run(torch.tensor(weights))
    assert f"test_random_ops.py:{line}" in str(caught.value)
    assert sorted(run(torch.tensor([0.5, 0.5])).tolist()) == [0, 1]


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_feature_dropout_drops_whole_channels(dims):
    drop = {1: F.dropout1d, 2: F.dropout2d, 3: F.dropout3d}[dims]
    run = executor(lambda x: drop(x, 0.25, training=True))
    out = run(torch.ones(64, 64, *[3] * dims)).flatten(2)
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert torch.equal(out.amin(2), out.amax(2))
    assert_frequencies(frequencies((out[:, :, 0] == 0).flatten(), 0, 1), [0.75, 0.25])
    assert not hosted(run)


@pytest.mark.parametrize("drop", [F.alpha_dropout, F.feature_alpha_dropout])
def test_alpha_dropout_keeps_mean_and_variance(drop):
    run = executor(lambda x: drop(x, 0.2, training=True))
    torch.manual_seed(3)
    out = run(torch.randn(256, 256, 4)).double()
    assert out.mean().item() == pytest.approx(0, abs=0.03)
    assert out.var().item() == pytest.approx(1, abs=0.06)
    assert not hosted(run)


# Samplers that torch runs: name -> (draw, mean, standard deviation)
HOSTED = {
    "poisson": (lambda x: torch.poisson(x * 8), 4.0, 2.0),
    "binomial": (lambda x: torch.binomial(x * 20, x), 5.0, math.sqrt(2.5)),
    "Gamma": (lambda x: D.Gamma(x * 8, x * 4).sample(), 2.0, 1.0),
    "Beta": (lambda x: D.Beta(x * 2, x * 2).sample(), 0.5, math.sqrt(1 / 12)),
    "Poisson": (lambda x: D.Poisson(x * 8).sample(), 4.0, 2.0),
    "StudentT": (lambda x: D.StudentT(x * 40).sample(), 0.0, math.sqrt(20 / 18)),
    "double": (lambda x: torch.randn(N, dtype=torch.float64), 0.0, 1.0),
}


@pytest.mark.parametrize("name", HOSTED)
def test_samplers_of_torch_use_our_seed_and_leave_its_own_alone(name):
    draw, mean, deviation = HOSTED[name]
    run = executor(draw)
    run.compile(X)
    before = torch.get_rng_state()
    out = run(X).double()
    assert torch.equal(torch.get_rng_state(), before)
    assert out.mean().item() == pytest.approx(mean, abs=6 * deviation / math.sqrt(N))
    assert out.std().item() == pytest.approx(deviation, rel=0.05)
    check_seeds(draw, X)


def test_two_samplers_of_one_kind_differ():
    a, b = executor(lambda x: (torch.poisson(x * 8), torch.poisson(x * 8)))(X)
    assert not torch.equal(a, b)


class Reparametrised(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(512))
        self.scale = nn.Parameter(torch.ones(512))

    def forward(self, x):
        z = D.Normal(self.loc, self.scale).rsample()
        return z, poptorch.identity_loss((z * x).sum(), reduction="none")


def test_gradients_pass_through_a_sample():
    model = Reparametrised()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    run = poptorch.trainingModel(model, quiet().randomSeed(3), optimizer)
    x = torch.rand(512)
    z, _ = run(x)
    run.copyWeightsToHost()
    torch.testing.assert_close(model.loc.detach(), -x)
    torch.testing.assert_close(model.scale.detach(), 1 - x * z)  # the same noise as forward's
