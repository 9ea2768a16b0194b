# SPDX-License-Identifier: Apache-2.0
"""Reduction of gradients, types of accumulators and loss scaling: what they change, and that they
change nothing else."""

import copy

import poptorch
import pytest
import torch
from optimizer_cases import ROWS, data, tiny, train_eager
from poptorch import MeanReductionStrategy, ReductionType, optim

HALF = torch.float16


def options(accumulation=1, replicas=1):
    result = poptorch.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    result.Training.gradientAccumulation(accumulation)
    return result


def train(opts, make, updates=8, model=None):
    """(model, executor, optimizer) after so many calls."""
    model = tiny() if model is None else model
    optimizer = make(model.parameters())
    executor = poptorch.trainingModel(model, opts, optimizer)
    micro = opts.Training.gradient_accumulation * opts.replication_factor
    x, target = data(updates, micro)
    for batch in zip(x.chunk(updates), target.chunk(updates), strict=True):
        executor(*batch)
    return model, executor, optimizer


def assert_close(ours, theirs, tolerance=1e-5):
    for name, want in theirs.items():
        difference = float((ours[name] - want).abs().max() / want.abs().max())
        assert difference <= tolerance, (name, difference)


# Reduction ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("accumulation", "replicas"), [(4, 1), (1, 4), (2, 2)])
@pytest.mark.parametrize("reduction", [ReductionType.Mean, ReductionType.Sum])
def test_reduction_of_accumulated_gradients(accumulation, replicas, reduction):
    opts = options(accumulation, replicas)
    opts.Training.accumulationAndReplicationReductionType(reduction)
    model, _, _ = train(opts, lambda p: optim.SGD(p, lr=0.02, momentum=0.9))
    mean = reduction == ReductionType.Mean
    theirs = train_eager(lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9), 8, 4, mean)
    assert_close(model.state_dict(), theirs)


def test_sum_with_the_combined_variant():
    opts = options(4)
    opts.Training.accumulationAndReplicationReductionType(ReductionType.Sum)
    values = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    model, _, _ = train(opts, lambda p: optim.SGD(p, use_combined_accum=True, **values))
    theirs = train_eager(lambda p: torch.optim.SGD(p, **values), 8, 4, False)
    assert_close(model.state_dict(), theirs)


@pytest.mark.parametrize("reduction", [ReductionType.Mean, ReductionType.Sum])
def test_a_running_mean_gives_the_same_weights(reduction):
    opts = options(4, 2)
    opts.Training.accumulationAndReplicationReductionType(reduction)
    opts.Training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Running)
    model, executor, _ = train(opts, lambda p: optim.Adam(p, lr=0.02))
    counter = [s for s in executor._executable.program.states if s.kind == "micro_count"]
    assert len(counter) == (reduction == ReductionType.Mean)  # a sum has nothing to run
    mean = reduction == ReductionType.Mean
    assert_close(
        model.state_dict(), train_eager(lambda p: torch.optim.Adam(p, lr=0.02), 8, 8, mean)
    )


def test_the_loss_is_not_scaled_by_the_reduction():
    seen = []
    for scaling in (1.0, 512.0):
        opts = options(4).outputMode(poptorch.OutputMode.All)
        model = tiny()
        executor = poptorch.trainingModel(
            model, opts, optim.SGD(model.parameters(), lr=0.1, loss_scaling=scaling)
        )
        seen.append(executor(*data(1, 4))[1])
    want = [tiny()(x, t)[1] for x, t in zip(*(v.split(ROWS) for v in data(1, 4)), strict=True)]
    torch.testing.assert_close(seen[0], torch.stack(want).detach())
    assert torch.equal(seen[0], seen[1])


def test_post_and_loss_is_rejected_when_compiling():
    opts = options(4)
    strategy = MeanReductionStrategy.PostAndLoss
    opts.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    model = tiny()
    executor = poptorch.trainingModel(model, opts, optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match="out of range"):
        executor(*data(1, 4))


# Types of accumulators ----------------------------------------------------------------------------


def test_velocity_in_float16():
    def make(p):
        return optim.SGD(p, lr=0.05, momentum=0.9, velocity_accum_type=HALF)

    model, _, optimizer = train(options(), make)
    assert optimizer.state_dict()["ipu_state"]["Accl___inner.weight"].dtype == HALF

    class Rounded(torch.optim.SGD):
        def step(self):
            super().step()
            for state in self.state.values():
                state["momentum_buffer"] = state["momentum_buffer"].half().float()

    # torch's step uses the velocity before it is rounded, as ours does
    assert_close(
        model.state_dict(), train_eager(lambda p: Rounded(p, lr=0.05, momentum=0.9), 8, 1), 1e-5
    )
    plain = train_eager(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), 8, 1)
    with pytest.raises(AssertionError):
        assert_close(model.state_dict(), plain, 1e-6)


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.LAMB])
@pytest.mark.parametrize("first", [True, False])
def test_moments_in_float16(kind, first):
    order = "first" if first else "second"
    extra = {f"{order}_order_momentum_accum_type": HALF}
    _, _, optimizer = train(options(), lambda p: kind(p, lr=0.01, **extra))
    state = optimizer.state_dict()["ipu_state"]
    assert state["Accl1___outer.bias"].dtype == (HALF if first else torch.float32)
    assert state["Accl2___outer.bias"].dtype == (torch.float32 if first else HALF)
    _, _, plain = train(options(), lambda p: kind(p, lr=0.01))
    name = "Accl1___outer.bias" if first else "Accl2___outer.bias"
    want = plain.state_dict()["ipu_state"][name]
    torch.testing.assert_close(state[name].float(), want, rtol=1e-2, atol=1e-4)


def test_rmsprop_in_float16():
    def make(p, **extra):
        return optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True, **extra)

    half = {"first_order_momentum_accum_type": HALF, "second_order_momentum_accum_type": HALF}
    model, _, optimizer = train(options(), lambda p: make(p, **half))
    state = optimizer.state_dict()["ipu_state"]
    assert {state[f"Accl{i}___inner.weight"].dtype for i in (1, 2, 3)} == {HALF}
    plain, _, _ = train(options(), make)
    assert_close(model.state_dict(), plain.state_dict(), 2e-2)


def test_float16_accumulators_force_a_running_mean():
    opts = options(4)
    model, executor, optimizer = train(opts, lambda p: optim.AdamW(p, lr=0.01, accum_type=HALF))
    own = executor.options.Training.meanAccumulationAndReplicationReductionStrategy
    assert own == MeanReductionStrategy.Running
    asked = opts.Training.meanAccumulationAndReplicationReductionStrategy
    assert asked == MeanReductionStrategy.Post  # the caller's options are as they were
    states = {s.name: s.dtype for s in executor._executable.program.states}
    assert states["accum:inner.weight"] == "f16"
    assert optimizer.state_dict()["ipu_state"]["Accum___inner.weight"].dtype == HALF
    plain = train_eager(lambda p: torch.optim.AdamW(p, lr=0.01), 8, 4)
    assert_close(model.state_dict(), plain, 5e-2)


def test_float16_accumulators_hold_a_mean_whose_sum_would_overflow():
    class Big(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return torch.nn.functional.l1_loss((self.w * x).sum(), torch.zeros(()))

    model = Big()
    opts = options(4)
    make = optim.SGD(model.parameters(), lr=1.0, accum_type=HALF)
    poptorch.trainingModel(model, opts, make)(torch.full((4, 2), 40000.0))
    assert torch.isfinite(model.w).all()


def test_the_combined_variant_keeps_one_float16_tensor():
    def make(p):
        return optim.SGD(
            p, lr=0.05, momentum=0.9, use_combined_accum=True, accum_type=HALF, velocity_scaling=8.0
        )

    model, executor, optimizer = train(options(4), make)
    own = executor.options.Training.meanAccumulationAndReplicationReductionStrategy
    assert own == MeanReductionStrategy.Post
    state = optimizer.state_dict()["ipu_state"]
    assert set(state) == {f"Accl___{name}" for name, _ in model.named_parameters()}
    assert state["Accl___inner.weight"].dtype == HALF
    plain = train_eager(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), 8, 4)
    assert_close(model.state_dict(), plain, 1e-2)


def test_without_momentum_and_accumulation_the_types_are_ignored():
    half, _, optimizer = train(options(), lambda p: optim.SGD(p, lr=0.05, accum_type=HALF))
    plain, _, _ = train(options(), lambda p: optim.SGD(p, lr=0.05))
    assert optimizer.state_dict()["ipu_state"] == {}
    assert torch.equal(half.inner.weight, plain.inner.weight)


# Half-precision weights ---------------------------------------------------------------------------


class HalfRegression(torch.nn.Module):
    """Float16 weights, and gradients too small for float16."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1, bias=False).half()
        torch.nn.init.ones_(self.linear.weight)

    def forward(self, x):
        out = self.linear(x) * 2e-4
        return torch.nn.functional.l1_loss(out * 2e-4, torch.zeros_like(out), reduction="sum")


@pytest.mark.parametrize(("scaling", "moves"), [(None, False), (4096.0, True)])
def test_loss_scaling_saves_small_gradients(scaling, moves):
    model = HalfRegression()
    optimizer = optim.SGD(model.parameters(), lr=1e5, loss_scaling=scaling)
    executor = poptorch.trainingModel(model, options(), optimizer)
    executor(torch.ones(1, 2, dtype=HALF) * 0.5)
    moved = (model.linear.weight.detach().float() - 1).abs()
    # a gradient of 2e-8, times 1e5
    want = 1e5 * 2e-4 * 2e-4 * 0.5 if moves else 0.0
    torch.testing.assert_close(moved, torch.full_like(moved, want), rtol=0.05, atol=0)


def test_state_of_half_precision_weights_is_float32():
    model = HalfRegression()
    optimizer = optim.Adam(model.parameters(), lr=0.1, loss_scaling=4096.0)
    executor = poptorch.trainingModel(model, options(2), optimizer)
    executor(torch.ones(2, 2, dtype=HALF))
    state = optimizer.state_dict()["ipu_state"]
    assert {state[f"{p}linear.weight"].dtype for p in ("Accl1___", "Accl2___", "Accum___")} == {
        torch.float32
    }
    assert model.linear.weight.dtype == HALF
    # the first step of Adam is the rate, whatever the gradient
    torch.testing.assert_close(
        model.linear.weight.detach().float(), torch.full((1, 2), 0.9), rtol=0, atol=0.05
    )


# Loss scaling -------------------------------------------------------------------------------------


def test_a_power_of_two_changes_no_bit():
    plain, _, _ = train(options(4), lambda p: optim.AdamW(p, lr=0.01))
    scaled, _, _ = train(options(4), lambda p: optim.AdamW(p, lr=0.01, loss_scaling=1024.0))
    assert torch.equal(plain.inner.weight, scaled.inner.weight)


def test_loss_scaling_may_change_between_calls():
    model = tiny()
    optimizer = optim.Adam(model.parameters(), lr=0.02, loss_scaling=8.0)
    compiled = []
    handle = poptorch.registerPreCompileHook(lambda: compiled.append(1))
    executor = poptorch.trainingModel(model, options(), optimizer)
    x, target = data(8, 1)
    for number, batch in enumerate(zip(x.split(ROWS), target.split(ROWS), strict=True)):
        optimizer.loss_scaling = 2.0**number
        executor.setOptimizer(optimizer)
        executor(*batch)
        assert optimizer.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 2.0**number
    handle.remove()
    assert len(compiled) == 1
    assert_close(model.state_dict(), train_eager(lambda p: torch.optim.Adam(p, lr=0.02), 8, 1))


def automatic(opts):
    opts.Training.setAutomaticLossScaling(True)
    return opts


def test_automatic_loss_scaling_grows_and_changes_no_weight():
    plain, _, _ = train(options(2), lambda p: optim.SGD(p, lr=0.01, momentum=0.9), 20)
    model, _, optimizer = train(
        automatic(options(2)), lambda p: optim.SGD(p, lr=0.01, momentum=0.9), 20
    )
    assert optimizer.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 4.0  # after 8 and 16 steps
    assert torch.equal(plain.inner.weight, model.inner.weight)


def test_automatic_loss_scaling_shrinks_before_gradients_overflow():
    model = tiny()
    optimizer = optim.SGD(model.parameters(), lr=0.001, loss_scaling=2.0**24)
    executor = poptorch.trainingModel(model, automatic(options()), optimizer)
    for _ in range(8):
        executor(*data(1, 1))
    assert optimizer.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 2.0**23
    # values that did not change are not sent again, so the device's factor stays
    executor.setOptimizer(optimizer)
    executor(*data(1, 1))
    assert optimizer.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 2.0**23


def test_the_automatic_factor_is_part_of_the_state():
    make = lambda p: optim.SGD(p, lr=0.01)  # noqa: E731
    model, executor, optimizer = train(automatic(options()), make, 8)
    saved = copy.deepcopy(optimizer.state_dict())
    executor.destroy()
    other = tiny()
    restored = make(other.parameters())
    continued = poptorch.trainingModel(other, automatic(options()), restored)
    restored.load_state_dict(saved)
    continued(*data(1, 1))
    assert restored.state_dict()["ipu_param"]["lossScaling_FLOAT"] == 2.0


# A step that fails half way -----------------------------------------------------------------------


class Lookup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(4, 3)

    def forward(self, index):
        out = self.table(index)
        return torch.nn.functional.mse_loss(out, torch.ones_like(out))


@pytest.mark.parametrize("half", [False, True])
def test_a_step_that_failed_leaves_no_gradients_behind(half):
    def begin():
        model = Lookup()
        extra = {"accum_type": HALF} if half else {}
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **extra)
        return model, poptorch.trainingModel(model, options(4), optimizer)

    model, executor = begin()
    untouched, reference = begin()
    good, bad = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 9, 3])
    for step in range(3):
        if step > 0:
            with pytest.raises(poptorch.Error):
                executor(bad)  # after two micro-batches
        executor(good)
        reference(good)
    assert torch.equal(model.table.weight, untouched.table.weight)
