# SPDX-License-Identifier: Apache-2.0
"""Ops that PopART and PopTorch ship, by their name: one table per domain, one op one row.

An op is a function on a `Call` that computes with ATen ops under the trace. So torch gives its
gradient, and the core fuses it like any other part of the model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from poptorch.base.logging import logger
from poptorch.base.suggest import did_you_mean
from poptorch.capture.custom.named import (
    graphcore,
    onnx_index,
    onnx_layers,
    onnx_math,
    onnx_norms,
    onnx_random,
    onnx_recurrent,
    onnx_reduce,
    onnx_resize,
    onnx_shape,
    poptorch_ops,
)
from poptorch.capture.custom.named.table import Call, Named

_ONNX = {
    **onnx_math.ROWS,
    **onnx_reduce.ROWS,
    **onnx_layers.ROWS,
    **onnx_norms.ROWS,
    **onnx_shape.ROWS,
    **onnx_index.ROWS,
    **onnx_resize.ROWS,
    **onnx_recurrent.ROWS,
    **onnx_random.ROWS,
}
#: By domain, then by name.
TABLES: dict[str, dict[str, Named]] = {
    "ai.onnx": _ONNX,
    "ai.graphcore": graphcore.ROWS,
    "poptorch.custom_ops": poptorch_ops.ROWS,
}
# What torch raises for operands that do not fit together; capture's own errors derive from these.
_TORCH_ERRORS = (RuntimeError, IndexError, NotImplementedError, TypeError, ValueError)
_INTEGERS = (torch.int32, torch.int64)
# Hints on memory and layout that PopART takes on any op begin with two underscores.
_ANYWHERE = {"debug_str"}


def run_named(
    op: Named,
    name: str,
    version: int,
    inputs: Sequence[Tensor],
    attributes: Mapping[str, Any],
    examples: Sequence[Tensor],
) -> list[Tensor]:
    """The results of an op of a table; `name` is that of messages."""
    call = Call(name, version, inputs, dict(attributes), examples)
    try:
        out = op.run(call)
    except Exception as error:
        if type(error) not in _TORCH_ERRORS:
            raise
        call.fail(_one_line(error), error)
    results = [out] if isinstance(out, Tensor) else list(out)
    for key in attributes:
        if key not in call.seen and key not in _ANYWHERE and not key.startswith("__"):
            meant = did_you_mean(key, sorted(call.seen))
            logger.warning("%s has no attribute %s: it is ignored.%s", name, key, meant)
    if len(results) != len(examples):
        call.fail(f"gives {len(results)} results, but {len(examples)} example outputs were given.")
    return [_typed(r, e) for r, e in zip(results, examples, strict=True)]


def _one_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".") + "."


def _typed(result: Tensor, example: Tensor) -> Tensor:
    """An IPU has one type of integer: the example says which one the program computes with."""
    if result.dtype in _INTEGERS and example.dtype in _INTEGERS:
        return result.to(example.dtype)
    return result
