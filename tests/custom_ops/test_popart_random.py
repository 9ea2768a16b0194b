# SPDX-License-Identifier: Apache-2.0
"""Random numbers in custom ops: their distributions, seeds, and the same ones in a gradient."""

import math

import popart_support as support
import poptorch
import pytest
import torch

N = 40000


def draw(what, seed=5, like=None, example=None, calls=1):
    options = poptorch.Options().randomSeed(seed)
    model = poptorch.inferenceModel(
        support.Calls("com.acme", "Draw", None if example is None else [example], what=what),
        options,
    )
    like = torch.zeros(N) if like is None else like
    found = [model(like) for _ in range(calls)]
    return found[0] if calls == 1 else found


def phi(z):
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


# The distribution of each function, at a few places.
CASES = {
    "uniform": lambda x: (x + 1) / 4,
    "normal": lambda x: phi((x - 2) / 0.5),
    "truncated": lambda x: (phi((x - 1) / 2) - phi(-1.5)) / (phi(1.5) - phi(-1.5)),
    "log uniform": lambda x: math.log(x) / math.log(8),
}
LIMITS = {"uniform": (-1, 3), "truncated": (-2, 4), "log uniform": (1, 8)}


@pytest.mark.parametrize("what", list(CASES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_distributions(what, dtype):
    x = draw(what, like=torch.zeros(N, dtype=dtype)).float()
    low, high = LIMITS.get(what, (-math.inf, math.inf))
    rounding = 1 + torch.finfo(dtype).eps
    assert low <= x.min() and x.max() <= high * rounding
    for q in (0.1, 0.35, 0.5, 0.8, 0.95):
        at = x.quantile(q).item()
        assert abs(CASES[what](at) - q) < 0.02


def test_integers_and_coins():
    x = draw("integers", example=torch.zeros(N, dtype=torch.int32))
    assert x.unique().tolist() == list(range(-2, 6))
    assert (x + 2).bincount().min() > N / 8 * 0.9
    coins = draw("bernoulli")
    assert set(coins.unique().tolist()) == {0.0, 1.0}
    assert abs(coins.mean().item() - 0.25) < 0.02


def test_the_seed_of_the_options_decides():
    first, second = draw("normal", 3, calls=2)
    assert not first.equal(second)
    again, other = draw("normal", 3, calls=2)
    assert first.equal(again) and second.equal(other)
    assert not draw("normal", 4).equal(first)


def test_numbers_do_not_depend_on_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = draw("uniform", 9)
        torch.set_num_threads(2)
        assert draw("uniform", 9).equal(one)
    finally:
        torch.set_num_threads(before)


class Drops(torch.nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        support.load()
        self.w = torch.nn.Parameter(torch.ones(400))
        self.checkpointed = checkpointed

    def part(self, x):
        return poptorch.custom_op([x * 1.0], "Drop", "com.acme", 1, [x])[0].sin()

    def forward(self, x):
        y = self.w * x
        if self.checkpointed:
            y = torch.utils.checkpoint.checkpoint(self.part, y, use_reentrant=False)
        else:
            y = self.part(y)
        return y, poptorch.identity_loss(y.sum(), "sum")


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_gradient_op_draws_the_mask_of_its_op_again(checkpointed, replicas):
    model = Drops(checkpointed)
    options = poptorch.Options().replicationFactor(replicas).randomSeed(1)
    options.outputMode(poptorch.OutputMode.All)
    trained = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1.0))
    x = torch.rand(replicas, 400) + 0.5
    y, _ = trained(x)
    kept = (y != 0).float()
    assert abs(kept.mean().item() - 0.75) < 0.1
    assert replicas == 1 or not kept[0].equal(kept[1])
    torch.testing.assert_close(y, kept * (x / 0.75).sin())
    wanted = (kept * (x / 0.75).cos() * x / 0.75).sum(0) / replicas
    trained.copyWeightsToHost()
    torch.testing.assert_close(1 - model.w.detach(), wanted)
    # another step draws another mask
    assert not (trained(x)[0] != 0).float().equal(kept)
