# SPDX-License-Identifier: Apache-2.0
"""Evaluates a composition of a user's library with ATen ops, node by node."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from poptorch.base.dtypes import DTYPES
from poptorch.base.errors import Error, createPoptorchError
from poptorch.capture.custom.rows import result_of

#: (op, arguments, results, types, line, column), as the core reads a text.
Node = tuple[str, list[Any], list[int], list[tuple[str, list[int]]], int, int]
#: Runs a custom op: (domain, name, version, inputs, attributes, examples of its results).
Custom = Callable[[str, str, int, list[Tensor], list[list[Any]], Sequence[Tensor]], list[Tensor]]


def evaluate(
    label: str, nodes: list[Node], outputs: list[int], inputs: Sequence[Tensor], custom: Custom
) -> list[Tensor]:
    """The outputs of a composition.

    Args:
        label: of the op, for errors.
        nodes: the core has checked them.
        outputs: numbers of values; the inputs come first.
        inputs: of the op.
        custom: runs the custom ops among the nodes.
    """
    values = dict(enumerate(inputs))
    for op, args, results, types, line, column in nodes:
        given = [_argument(a, values) for a in args]
        stated = [(DTYPES[dtype], tuple(shape)) for dtype, shape in types]
        try:
            if op == "custom":
                examples = [torch.empty(shape, dtype=dtype) for dtype, shape in stated]
                domain, name, version, operands, attributes = given
                found = custom(domain, name, version, operands, attributes, examples)
            else:
                found = result_of(op, given, stated)
            _check(found, stated)
        except Error:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as e:
            raise createPoptorchError(
                f"[{label}] composition: {op} (line {line}, column {column} of its text): {e}"
            ) from e
        values.update(zip(results, found, strict=True))
    return [values[k] for k in outputs]


def _argument(a: Any, values: dict[int, Tensor]) -> Any:
    if isinstance(a, list):
        return [_argument(x, values) for x in a]
    if isinstance(a, tuple):
        kind, value = a
        return values[value] if kind == "in" else DTYPES[value]
    return a


def _check(found: Sequence[Tensor], stated: list[tuple[torch.dtype, tuple[int, ...]]]) -> None:
    if len(found) != len(stated):
        raise ValueError(f"it has {len(found)} results, {len(stated)} are stated")
    for i, (t, (dtype, shape)) in enumerate(zip(found, stated, strict=True)):
        if (t.dtype, tuple(t.shape)) != (dtype, shape):
            raise ValueError(
                f"result {i} is {t.dtype} of shape {tuple(t.shape)}, stated are {dtype} and {shape}"
            )
