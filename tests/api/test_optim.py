# SPDX-License-Identifier: Apache-2.0
"""Optimizers: the same weights as PyTorch, values that change without recompilation, state."""

import copy

import poptorch
import pytest
import torch
from api_support import eager_step
from poptorch import optim


def test_parameter_groups(regression, batch, opts):
    twin = copy.deepcopy(regression)

    def groups(model):
        return [
            {"params": [model.linear.weight], "lr": 0.5, "weight_decay": 0.1},
            {"params": [model.linear.bias]},
        ]

    training = poptorch.trainingModel(
        regression, opts, optim.SGD(groups(regression), lr=0.1, momentum=0.9)
    )
    reference = torch.optim.SGD(groups(twin), lr=0.1, momentum=0.9)
    for _ in range(5):
        training(*batch)
        eager_step(twin, reference, *batch)
    torch.testing.assert_close(dict(regression.state_dict()), dict(twin.state_dict()))


def test_a_scheduler_changes_the_rate_without_compiling(regression, batch, opts):
    compiled = []
    handle = poptorch.registerPreCompileHook(lambda: compiled.append(1))
    twin = copy.deepcopy(regression)
    optimizer = optim.SGD(regression.parameters(), lr=0.5, momentum=0.9)
    reference = torch.optim.SGD(twin.parameters(), lr=0.5, momentum=0.9)
    training = poptorch.trainingModel(regression, opts, optimizer)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (optimizer, reference)]
    for _ in range(5):
        training(*batch)
        eager_step(twin, reference, *batch)
        for scheduler in schedulers:
            scheduler.step()
        training.setOptimizer(optimizer)
    handle.remove()
    assert len(compiled) == 1
    torch.testing.assert_close(dict(regression.state_dict()), dict(twin.state_dict()))


def test_values_change_only_with_set_optimizer(regression, batch, opts):
    optimizer = optim.SGD(regression.parameters(), lr=0.1)
    training = poptorch.trainingModel(regression, opts, optimizer)
    training(*batch)
    before = regression.linear.weight.detach().clone()
    optimizer.param_groups[0]["lr"] = 0.0
    training(*batch)
    moved = regression.linear.weight.detach().clone()
    assert not torch.equal(before, moved)
    training.setOptimizer(optimizer)
    training(*batch)
    assert torch.equal(regression.linear.weight.detach(), moved)


def test_constants_may_not_change(regression, batch, opts):
    optimizer = optim.SGD(regression.parameters(), lr=0.1)
    training = poptorch.trainingModel(regression, opts, optimizer)
    training(*batch)
    optimizer.param_groups[0]["weight_decay"] = 0.5
    with pytest.raises(poptorch.Error, match="Values are constant but do not match") as caught:
        training.setOptimizer(optimizer)
    assert caught.value.type == "popart_exception"
    optimizer.param_groups[0]["weight_decay"] = 0.0
    training.setOptimizer(optimizer)
    training(*batch)


def test_variable_attributes():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = optim.SGD([parameter], lr=0.1, momentum=0.0)
    variable = optimizer.variable_attrs
    assert not variable.isConstant("lr") and not variable.isConstant("momentum")
    assert variable.isConstant("weight_decay") and variable.isConstant("loss_scaling")
    variable.markAsVariable("weight_decay")
    assert not variable.isConstant("weight_decay")
    variable.markAsConstant("weight_decay")
    assert variable.isConstant("weight_decay")
    with pytest.raises(AssertionError, match="Unknown attribute nothing, allowed values:"):
        variable.markAsVariable("nothing")


def test_a_variable_may_start_at_zero(regression, batch, opts):
    twin = copy.deepcopy(regression)
    optimizer = optim.SGD(regression.parameters(), lr=0.1, weight_decay=0.0)
    training = poptorch.trainingModel(regression, opts, optimizer)
    reference = torch.optim.SGD(twin.parameters(), lr=0.1)
    for decay in (0.0, 0.5):
        optimizer.param_groups[0]["weight_decay"] = decay
        reference.param_groups[0]["weight_decay"] = decay
        training.setOptimizer(optimizer)
        training(*batch)
        eager_step(twin, reference, *batch)
    torch.testing.assert_close(dict(regression.state_dict()), dict(twin.state_dict()))


def test_defaults_of_the_extras():
    parameter = torch.nn.Parameter(torch.zeros(1))
    assert optim.SGD([parameter], lr=0.1).loss_scaling == 1.0
    assert optim.SGD([parameter], lr=0.1).use_combined_accum is False
    assert optim.AdamW([parameter]).bias_correction is True
    assert optim.LAMB([parameter]).max_weight_norm == 65500.0
    assert optim.LAMB([parameter]).defaults["weight_decay"] == 1e-2
    assert optim.RMSprop([parameter]).use_tf_variant is False
    assert optim.Adam([parameter]).accum_type == torch.float32
    with pytest.raises(TypeError):
        optim.SGD([parameter])


def test_loss_scaling_changes_nothing(regression, batch, opts):
    twin = copy.deepcopy(regression)
    training = poptorch.trainingModel(
        regression, opts, optim.SGD(regression.parameters(), lr=0.1, loss_scaling=1024.0)
    )
    training(*batch)
    eager_step(twin, torch.optim.SGD(twin.parameters(), lr=0.1), *batch)
    torch.testing.assert_close(dict(regression.state_dict()), dict(twin.state_dict()))


def test_a_new_optimizer_object_may_take_over(regression, batch, opts):
    first = optim.SGD(regression.parameters(), lr=0.1, momentum=0.9)
    training = poptorch.trainingModel(regression, opts, first)
    training(*batch)
    second = optim.SGD(regression.parameters(), lr=0.0, momentum=0.9)
    training.setOptimizer(second)
    before = regression.linear.weight.detach().clone()
    training(*batch)
    assert torch.equal(regression.linear.weight.detach(), before)
    assert first.has_state()
    with pytest.raises(poptorch.Error, match="Can not replace optimizer of type"):
        training.setOptimizer(optim.Adam(regression.parameters(), lr=0.1))
    training(*batch)


def test_lamb_runs_on_the_host():
    parameter = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    parameter.grad = torch.tensor([1.0, 1.0])
    optim.LAMB([parameter], lr=0.1, weight_decay=0.0).step()
    # The update is (1, 1); its norm is sqrt(2), that of the weights 5.
    expected = torch.tensor([3.0, 4.0]) - 0.1 * 5 / 2**0.5
    torch.testing.assert_close(parameter.detach(), expected)
