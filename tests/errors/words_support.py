# SPDX-License-Identifier: Apache-2.0
"""Tables of errors and warnings that PopTorch's programs match: a row says how to provoke one, its
class and the words that stay."""

import logging
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import poptorch
import pytest
import torch
from api_support import Regression
from torch import nn

WARNS = "warning in the log"
INFORMS = "line in the log, below warnings"
PYTHON_WARNS = "Python's own warning"

X = torch.arange(24.0).reshape(8, 3) / 24
Y = torch.zeros(8, 2)


class Row(NamedTuple):
    """One error or warning."""

    words: str
    kind: Any  # class of the exception, or one of the three above
    provoke: Callable[[], Any]
    type: str = ""  # of a poptorch.Error


def table(rows: list[Row]) -> Any:
    """Decorator: the test runs for each row."""
    names = [re.sub(r"[^A-Za-z0-9]+", "-", row.words)[:60].strip("-") for row in rows]
    return pytest.mark.parametrize("row", rows, ids=names)


def check(row: Row, caplog: Any) -> None:
    """Provoke what a row describes and look for its words."""
    logger = "poptorch::python"
    if isinstance(row.kind, type):
        with pytest.raises(row.kind) as caught:
            row.provoke()
        assert type(caught.value) is row.kind, "exactly this class"
        assert row.words in str(caught.value)
        if row.type:
            assert caught.value.type == row.type
        return
    with warnings.catch_warnings(record=True) as given, caplog.at_level(logging.DEBUG, logger):
        warnings.simplefilter("always")
        row.provoke()
    wanted = {WARNS: lambda n: n == logging.WARNING, INFORMS: lambda n: n < logging.WARNING}
    if row.kind == PYTHON_WARNS:
        found = [str(w.message) for w in given]
    else:
        found = [r.getMessage() for r in caplog.records if wanted[row.kind](r.levelno)]
    hits = [text for text in found if row.words in text]
    assert len(hits) == 1, found


# Ways to provoke ----------------------------------------------------------------------------------


def options(strategy: Any = None, training: int = 1, **settings: Any) -> poptorch.Options:
    """Options by the names of their setters; ``training`` is the gradient accumulation."""
    opts = poptorch.Options().showCompilationProgressBar(False)
    if strategy is not None:
        opts.setExecutionStrategy(strategy)
    opts.Training.gradientAccumulation(training)
    for name, value in settings.items():
        getattr(opts, name)(*(value if isinstance(value, tuple) else (value,)))
    return opts


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Body(nn.Module):
    """A linear layer and a function of its result, which is the model's if it is a tensor."""

    def __init__(self, body: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        result = self.body(y)
        return result if isinstance(result, torch.Tensor) else y


def infer(model: Any, *args: Any, opts: Any = None) -> Any:
    """Run a module or a function once."""
    model = model if isinstance(model, nn.Module) else Function(model)
    return poptorch.inferenceModel(model, opts or options())(*(args or (X,)))


def train(model: Any = None, *args: Any, opts: Any = None, optimizer: Any = None) -> Any:
    """Train a module once, or a regression; the executor."""
    model = model or Regression()
    if optimizer is not None:
        optimizer = optimizer(model.parameters())
    executor = poptorch.trainingModel(model, opts or options(), optimizer)
    executor(*(args or (X, Y)))
    return executor


def chain(*ipus: int) -> nn.Module:
    """Linear layers, each a block on its IPU."""
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in ipus])
    for number, ipu in enumerate(ipus):
        poptorch.BeginBlock(model[number], f"b{number}", ipu_id=ipu)
    return model


class WithLoss(nn.Module):
    """A model and the mean of its squares."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        out = self.inner(x)
        return out, poptorch.identity_loss((out**2).mean(), reduction="none")
