# SPDX-License-Identifier: Apache-2.0
"""Parameter groups, attributes that appear later, and what setOptimizer accepts."""

import copy

import poptorch
import pytest
import torch
from api_support import Regression, eager_step
from poptorch import optim

HALF = torch.float16


# Groups -------------------------------------------------------------------------------------------


def groups_of(model, **values):
    """Two groups: the first has values of its own, the second the defaults."""
    return [{"params": [model.linear.weight], **values}, {"params": [model.linear.bias]}]


@pytest.mark.parametrize(
    ("name", "own", "values"),
    [
        ("SGD", {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.1}, {"momentum": 0.9}),
        ("SGD", {"nesterov": True, "momentum": 0.5}, {"momentum": 0.9}),
        ("SGD", {"maximize": True}, {}),
        ("Adam", {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-2, "weight_decay": 0.1}, {}),
        ("Adam", {"amsgrad": True}, {}),
        ("AdamW", {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-2, "weight_decay": 0.3}, {}),
        ("RMSprop", {"lr": 0.05, "momentum": 0.3, "alpha": 0.5, "eps": 1e-2}, {}),
    ],
)
def test_groups_have_values_of_their_own(regression, batch, opts, name, own, values):
    twin = copy.deepcopy(regression)
    optimizer = getattr(optim, name)(groups_of(regression, **own), lr=0.1, **values)
    reference = getattr(torch.optim, name)(groups_of(twin, **own), lr=0.1, **values)
    executor = poptorch.trainingModel(regression, opts, optimizer)
    for _ in range(5):
        executor(*batch)
        eager_step(twin, reference, *batch)
    torch.testing.assert_close(
        dict(regression.state_dict()), dict(twin.state_dict()), rtol=1e-5, atol=1e-6
    )


def test_lamb_limits_the_norm_per_group(batch, opts):
    weights = []
    for own in ({}, {"max_weight_norm": 1e-3}):
        torch.manual_seed(1)
        model = Regression()
        optimizer = optim.LAMB(groups_of(model, **own), lr=0.1, max_weight_norm=10.0)
        host = copy.deepcopy(model)
        reference = optim.LAMB(groups_of(host, **own), lr=0.1, max_weight_norm=10.0)
        executor = poptorch.trainingModel(model, opts, optimizer)
        for _ in range(3):
            executor(*batch)
            eager_step(host, reference, *batch)
        torch.testing.assert_close(dict(model.state_dict()), dict(host.state_dict()))
        weights.append(model.linear.weight.detach())
    assert not torch.equal(*weights)


def test_velocity_scaling_per_group(regression, batch, opts):
    groups = groups_of(regression, velocity_scaling=8.0)
    optimizer = optim.SGD(groups, lr=0.1, momentum=0.9, use_combined_accum=True)
    twin = copy.deepcopy(regression)
    reference = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    executor = poptorch.trainingModel(regression, opts, optimizer)
    executor(*batch)
    eager_step(twin, reference, *batch)
    state = optimizer.state_dict()["ipu_state"]
    velocity = reference.state[twin.linear.weight]["momentum_buffer"]
    torch.testing.assert_close(state["Accl___linear.weight"], velocity * 8.0)
    velocity = reference.state[twin.linear.bias]["momentum_buffer"]
    torch.testing.assert_close(state["Accl___linear.bias"], velocity)


def test_parameters_outside_the_groups_are_not_trained(regression, batch, opts):
    opts.Training.gradientAccumulation(2)
    before = regression.linear.bias.detach().clone()
    optimizer = optim.SGD([regression.linear.weight], lr=0.1)
    executor = poptorch.trainingModel(regression, opts, optimizer)
    executor(*batch)
    assert torch.equal(regression.linear.bias.detach(), before)
    names = [state.name for state in executor._executable.program.states]
    assert "accum:linear.bias" not in names


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda o: o.param_groups[1].update(initial_lr=0.1), "group 1 attribute"),
        (lambda o: o.defaults.update(initial_lr=0.1), "default group variable"),
        (lambda o: setattr(o, "mood", 1), "optimizer attribute"),
    ],
)
def test_unexpected_attributes_are_reported_once(regression, opts, log, change, kind, relaxed):
    opts.relaxOptimizerAttributesChecks(relaxed)
    optimizer = optim.SGD(groups_of(regression), lr=0.1)
    executor = poptorch.trainingModel(regression, opts, optimizer)
    change(optimizer)
    for _ in range(2):
        executor.setOptimizer(optimizer)
    text = f"Ignoring unexpected {kind} in SGD optimizer: ["
    found = [r.levelname for r in log.records if text in r.getMessage()]
    assert found == ["DEBUG" if relaxed else "WARNING"]


# setOptimizer -------------------------------------------------------------------------------------


def test_values_that_did_not_change_are_not_sent(start, batch):
    optimizer, executor = start(optim.AdamW, lr=0.1)
    executor(*batch)
    device, settings = executor._device_optimizer, executor._settings()
    assert device.send(settings) == 0
    optimizer.param_groups[0]["lr"] = 0.2
    assert device.send(executor._settings()) > 0
    assert device.send(executor._settings()) == 0


def test_values_wait_for_the_device(start, batch, regression):
    optimizer, executor = start(optim.SGD, lr=0.1)
    executor(*batch)
    executor.detachFromDevice()
    before = regression.linear.weight.detach().clone()
    optimizer.param_groups[0]["lr"] = 0.0
    executor.setOptimizer(optimizer)
    executor(*batch)
    assert torch.equal(regression.linear.weight.detach(), before)


@pytest.mark.parametrize(("compiled", "now"), [(None, 1.0), (1.0, None), (1.0, 2.0)])
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_clip_settings_must_match(start, regression, batch, kind, compiled, now):
    _, executor = start(kind, lr=0.1, max_grad_norm=compiled)
    executor(*batch)
    with pytest.raises(poptorch.Error, match="Clip norm settings"):
        executor.setOptimizer(kind(regression.parameters(), lr=0.1, max_grad_norm=now))
    executor(*batch)


def test_narrow_accumulators_cannot_come_later(start, regression, batch):
    _, executor = start(optim.SGD, lr=0.1)
    executor(*batch)
    with pytest.raises(
        ValueError, match="Invalid optimizer: the new optimizer would require changing"
    ):
        executor.setOptimizer(optim.SGD(regression.parameters(), lr=0.1, accum_type=HALF))
    executor(*batch)


def test_narrow_accumulators_may_come_before_compilation(start, regression, batch):
    _, executor = start(optim.SGD, lr=0.1)
    executor.setOptimizer(optim.SGD(regression.parameters(), lr=0.1, accum_type=HALF))
    executor(*batch)
    strategy = executor.options.Training.meanAccumulationAndReplicationReductionStrategy
    assert strategy == poptorch.MeanReductionStrategy.Running


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (optim.SGD, optim.Adam),
        (optim.Adam, optim.AdamW),
        (optim.LAMB, optim.RMSprop),
        (torch.optim.Adagrad, torch.optim.Adadelta),
    ],
)
def test_another_algorithm_is_refused(start, regression, batch, first, second):
    _, executor = start(first, lr=0.1)
    executor(*batch)
    with pytest.raises(poptorch.Error, match="Can not replace optimizer of type") as caught:
        executor.setOptimizer(second(regression.parameters(), lr=0.1))
    assert caught.value.type == "popart_exception"


def test_other_groups_are_refused(start, regression, batch):
    _, executor = start(optim.SGD, lr=0.1)
    executor(*batch)
    with pytest.raises(poptorch.Error, match="compiled with 1 parameter groups"):
        executor.setOptimizer(optim.SGD(groups_of(regression), lr=0.1))
    with pytest.raises(poptorch.Error, match="hold other parameters"):
        executor.setOptimizer(optim.SGD([regression.linear.weight], lr=0.1))
    executor(*batch)


def test_a_replaced_optimizer_keeps_its_state(start, regression, batch):
    first, executor = start(optim.SGD, lr=0.1, momentum=0.9)
    executor(*batch)
    executor.setOptimizer(optim.SGD(regression.parameters(), lr=0.1, momentum=0.9))
    held = first.state_dict()["ipu_state"]["Accl___linear.weight"].clone()
    executor(*batch)
    assert torch.equal(first.state_dict()["ipu_state"]["Accl___linear.weight"], held)


def test_only_training_models_have_an_optimizer(regression, opts):
    inference = poptorch.inferenceModel(regression, opts)
    with pytest.raises(poptorch.Error, match="setOptimizer is only for training models"):
        inference.setOptimizer(optim.SGD(regression.parameters(), lr=0.1))
