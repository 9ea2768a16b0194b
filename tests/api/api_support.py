# SPDX-License-Identifier: Apache-2.0
"""Models and fixtures that the tests of the API and of its errors share."""

import logging

import poptorch
import pytest
import torch


class Regression(torch.nn.Module):
    """A linear layer; returns its output, and the loss if there is a target."""

    def __init__(self, width=3):
        super().__init__()
        self.linear = torch.nn.Linear(width, 2)

    def forward(self, x, target=None):
        out = self.linear(x)
        if target is None:
            return out
        return out, torch.nn.functional.mse_loss(out, target)


@pytest.fixture
def regression():
    torch.manual_seed(1)
    return Regression()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(2)
    return (
        torch.randn(4, 3, generator=generator),
        torch.randn(4, 2, generator=generator),
    )


@pytest.fixture
def opts():
    return poptorch.Options().showCompilationProgressBar(False)


@pytest.fixture
def log(caplog):
    """The text of everything logged, from debug level on."""
    caplog.set_level(logging.DEBUG, logger="poptorch::python")
    return caplog


def eager_step(model, optimizer, *batch):
    """One step of plain PyTorch; returns the loss."""
    optimizer.zero_grad()
    _, loss = model(*batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.fixture
def start(regression, opts):
    """A function from an optimizer's class and values to (optimizer, executor)."""

    def begin(kind, **values):
        optimizer = kind(regression.parameters(), **values)
        return optimizer, poptorch.trainingModel(regression, opts, optimizer)

    return begin
