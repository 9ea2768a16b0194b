# SPDX-License-Identifier: Apache-2.0
"""Everything that the capture tests capture, compiled and run by the core, against eager."""

import pytest
import test_losses as losses
import test_lowerings as lowerings
import test_zoo as zoo
import torch
from against_eager import check_inference, check_training, summary


def made(name):
    torch.manual_seed(0)
    return (zoo.ZOO[name] if name in zoo.ZOO else zoo.HOSTED[name][0])()


@pytest.mark.parametrize("name", zoo.ZOO)
def test_training(name):
    executor = check_training(*made(name))
    assert summary(executor)["host_calls"] == []


@pytest.mark.parametrize("name", zoo.HOSTED)
def test_training_with_host_calls(name):
    executor = check_training(*made(name))
    assert summary(executor)["host_calls"]


@pytest.mark.parametrize("name", [*zoo.ZOO, *zoo.HOSTED])
def test_inference(name):
    model, args = made(name)
    check_inference(model.eval(), args)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", losses.LOSSES)
def test_loss(name, reduction):
    torch.manual_seed(0)
    loss, target = losses.LOSSES[name](reduction)
    model, args = losses.Net(loss), (torch.randn(5, 4), target)
    executor = check_training(model, args, calls=1, with_loss=lambda net: net)
    assert summary(executor)["host_calls"] == []


@pytest.mark.parametrize("name", lowerings.OPS)
def test_lowering(name):
    torch.manual_seed(0)
    check_training(lowerings.Call(lowerings.OPS[name]), (torch.randn(3, 4),), calls=1)
