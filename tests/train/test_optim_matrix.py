# SPDX-License-Identifier: Apache-2.0
"""After twenty and more updates the weights are those of plain PyTorch: every optimizer, with
accumulation steps, replicas and device iterations."""

import functools

import poptorch
import pytest
import torch
from optimizer_cases import MATRIX, ROWS, VARIANTS, Written, data, tiny, train_eager
from poptorch import _core

UPDATES = 24  # a multiple of the device iterations
CASES = {**MATRIX, **VARIANTS}


@functools.cache
def expected(name, micro_batches):
    return train_eager(CASES[name][1], UPDATES, micro_batches)


def train(make, accumulation=1, replicas=1, iterations=1, options=None):
    options = options or poptorch.Options()
    options.showCompilationProgressBar(False).deviceIterations(iterations)
    options.replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    model = tiny()
    executor = poptorch.trainingModel(model, options, make(model.parameters()))
    micro_batches = accumulation * replicas
    x, target = data(UPDATES, micro_batches)
    calls = UPDATES // iterations
    for batch in zip(x.chunk(calls), target.chunk(calls), strict=True):
        executor(*batch)
    return dict(model.state_dict())


def assert_same(ours, theirs):
    """Equal up to 1e-5 of each tensor's largest weight."""
    for name, want in theirs.items():
        difference = float((ours[name] - want).abs().max() / want.abs().max())
        assert difference <= 1e-5, (name, difference)


@pytest.mark.parametrize("iterations", [1, 8])
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("name", MATRIX)
def test_weights_equal_plain_pytorch(name, accumulation, replicas, iterations):
    ours = train(MATRIX[name][0], accumulation, replicas, iterations)
    assert_same(ours, expected(name, accumulation * replicas))


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_equal_plain_pytorch(name, accumulation):
    assert_same(train(VARIANTS[name][0], accumulation), expected(name, accumulation))


def has_groups(make):
    return not isinstance(make(tiny().parameters()), Written)


@pytest.mark.parametrize("name", [n for n in CASES if has_groups(CASES[n][1])])
def test_a_schedule_never_compiles_again(name, monkeypatch):
    compiled = []
    original = _core.compile
    monkeypatch.setattr(_core, "compile", lambda *args: compiled.append(1) or original(*args))
    model, twin = tiny(), tiny()
    optimizers = [CASES[name][0](model.parameters()), CASES[name][1](twin.parameters())]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.8) for o in optimizers]
    options = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, options, optimizers[0])
    x, target = data(10, 1)
    for batch in zip(x.split(ROWS), target.split(ROWS), strict=True):
        executor(*batch)
        optimizers[1].zero_grad()
        twin(*batch)[1].backward()
        optimizers[1].step()
        for schedule in schedules:
            schedule.step()
        executor.setOptimizer(optimizers[0])
    assert len(compiled) == 1
    assert_same(dict(model.state_dict()), dict(twin.state_dict()))


def test_the_cases_differ():
    # Cases that gave the same weights would not tell their arguments apart.
    same = {"torch sgd", "torch rmsprop"}
    seen = {}
    for name in CASES:
        key = tuple(expected(name, 1)["inner.weight"].flatten().tolist())
        seen.setdefault(key, []).append(name)
    groups = [set(names) - same for names in seen.values()]
    allowed = [
        {"sgd momentum", "sgd combined", "sgd loss scaling", "sgd combined loss scaling"},
        {"clipped", "sgd combined clipped"},
        {"sgd nesterov", "sgd combined nesterov"},
    ]
    assert all(len(group) <= 1 or group in allowed for group in groups), groups
