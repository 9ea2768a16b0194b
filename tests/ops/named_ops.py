# SPDX-License-Identifier: Apache-2.0
"""Cases of named ops: many of them in one model, against a formula in eager torch."""

from dataclasses import dataclass, field
from typing import Any

import poptorch
import torch
from torch import nn


class Known:
    """An input that forward makes from Python numbers."""

    def __init__(self, values: Any, dtype: torch.dtype | None = None) -> None:
        self.values, self.dtype = values, dtype

    def make(self) -> torch.Tensor:
        return torch.tensor(self.values, dtype=self.dtype)


@dataclass
class Case:
    """A call and what it gives.

    Tensors of floats are parameters, so that their gradients are compared; other tensors are inputs
    of the model.
    """

    name: str
    inputs: list[Any]
    formula: Any
    attributes: dict[str, Any] = field(default_factory=dict)
    version: int = 11
    domain: str = "ai.onnx"
    outputs: int = 1
    example: Any = None

    def examples(self) -> list[torch.Tensor]:
        return [torch.zeros(1) if self.example is None else self.example] * self.outputs


class Cases(nn.Module):
    """All results of some cases, by number and name."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.cases = cases
        floats = [t for c in cases for t in c.inputs if _is_float(t)]
        self.weights = nn.ParameterList(nn.Parameter(t.clone()) for t in floats)

    def arguments(self) -> tuple[torch.Tensor, ...]:
        tensors = (t for c in self.cases for t in c.inputs if isinstance(t, torch.Tensor))
        return tuple(t for t in tensors if not _is_float(t))

    def forward(self, *args: torch.Tensor) -> dict[str, Any]:
        weights, rest = iter(self.weights), iter(args)
        results = {}
        for number, case in enumerate(self.cases):
            tensors = [
                t.make() if isinstance(t, Known) else next(weights if _is_float(t) else rest)
                for t in case.inputs
            ]
            if poptorch.isRunningOnIpu():
                out = poptorch.custom_op(
                    tensors,
                    case.name,
                    case.domain,
                    case.version,
                    case.examples(),
                    case.attributes,
                )
                assert isinstance(out, list)
            else:
                out = case.formula(*tensors)
                out = [out] if isinstance(out, torch.Tensor) else list(out)
            results[f"{number} {case.name}"] = out
        return results


def _is_float(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
