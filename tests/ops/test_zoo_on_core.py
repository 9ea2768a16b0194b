# SPDX-License-Identifier: Apache-2.0
"""Every module of the capture zoo, compiled and run by the core, against eager."""

import pytest
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
