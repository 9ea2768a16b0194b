# SPDX-License-Identifier: Apache-2.0
"""Options on their way into the core: a row that names one has a reader there, and the other way
round."""

from typing import Any

import poptorch
import pytest
import torch
from poptorch import _core
from poptorch.compiling import compile as compiling
from poptorch.options.table import OPTIONS

ROWS = [row for row in OPTIONS if row.core]
STRATEGIES = {
    "sharded": poptorch.ShardedExecution,
    "pipelined": poptorch.PipelinedExecution,
    "phased": lambda: poptorch.SerialPhasedExecution(
        poptorch.Phase(poptorch.Stage("0")), poptorch.Phase(poptorch.Stage("1"))
    ),
}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
        self.layers[0] = poptorch.BeginBlock(self.layers[0], "0", ipu_id=0)
        self.layers[1] = poptorch.BeginBlock(self.layers[1], "1", ipu_id=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layers(x)
        return y, poptorch.identity_loss(y.sum(), reduction="none")


def everything_set() -> poptorch.Options:
    """Options in which every row that the core reads has a value."""
    opts = poptorch.Options()
    opts.Precision.enableFloatingPointExceptions(True)
    opts.Precision.enableStochasticRounding(True)
    opts.Precision.setPartialsType(torch.half)
    location = poptorch.TensorLocationSettings()
    for kind in ("Activation", "Weight", "Optimizer", "Accumulator"):
        getattr(opts.TensorLocations, f"set{kind}Location")(location)
    return opts


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], Any]]:
    """The options of each compilation, and its program."""
    seen: list[tuple[dict[str, Any], Any]] = []
    real = _core.compile

    class Watched:
        Error = _core.Error

        @staticmethod
        def compile(text: str, options: dict[str, Any], *rest: Any) -> Any:
            program = real(text, options, *rest)
            seen.append((options, program))
            return program

        rows = staticmethod(_core.rows)

    monkeypatch.setattr(compiling, "_core", Watched)
    return seen


def test_every_option_has_a_reader_and_every_reader_an_option(
    sent: list[tuple[dict[str, Any], Any]],
) -> None:
    for strategy in STRATEGIES.values():
        model = Model()
        opts = everything_set().setExecutionStrategy(strategy()).deviceIterations(4)
        poptorch.inferenceModel(model, opts).compile(torch.ones(4, 2))
        opts = everything_set().setExecutionStrategy(strategy())
        opts.Training.gradientAccumulation(4)
        step = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
        step.compile(torch.ones(4, 2))
    told = {name for options, _ in sent for name in options}
    assert {row.core for row in ROWS} <= told
    # Whatever the others say, so that none is taken for unknown.
    assert all(set(program.settings) == told for _, program in sent)
    assert len(sent) == 2 * len(STRATEGIES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.core)
def test_a_value_of_another_type_is_refused(row: Any) -> None:
    text = 'tessera 1\ngraph "x" {\n  input %0 "x" : f32[2]\n  output %0\n}\n'
    with pytest.raises(_core.Error, match=r"\[options\].*" + row.core):
        _core.compile(text, {row.core: 1.5}, {})
    with pytest.raises(_core.Error, match=rf"\[options\] '{row.core}s' is not known"):
        _core.compile(text, {f"{row.core}s": 1}, {})


def test_an_option_is_none_as_if_it_was_not_there() -> None:
    text = 'tessera 1\ngraph "x" {\n  input %0 "x" : f32[2]\n  output %0\n}\n'
    assert _core.compile(text, {"replicas": None}, {}) is not None
