# SPDX-License-Identifier: Apache-2.0
"""Evaluates a composition of a user's library with ATen ops, node by node."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from poptorch.base.dtypes import DTYPES
from poptorch.base.errors import Error, createPoptorchError
from poptorch.capture.custom.rows import result_of

#: (op, arguments, results, types, line, column, bodies), as the core reads a text.
Node = tuple[str, list[Any], list[int], list[tuple[str, list[int]]], int, int, list[Any]]
#: Runs a custom op: (domain, name, version, inputs, attributes, examples of its results).
Custom = Callable[[str, str, int, list[Tensor], list[list[Any]], Sequence[Tensor]], list[Tensor]]


class Context(NamedTuple):
    """What does not change within a composition.

    Attributes:
        label: of the op, for errors.
        custom: runs the custom ops among the nodes.
    """

    label: str
    custom: Custom


def evaluate(
    context: Context, nodes: list[Node], outputs: list[int], inputs: Sequence[Tensor]
) -> list[Tensor]:
    """The outputs of a composition, or of a body in it.

    Args:
        context: of the composition.
        nodes: the core has checked them.
        outputs: numbers of values; the inputs come first.
        inputs: of the op.
    """
    values = dict(enumerate(inputs))
    for op, args, results, types, line, column, bodies in nodes:
        given = [_argument(a, values) for a in args]
        stated = [(DTYPES[dtype], tuple(shape)) for dtype, shape in types]
        try:
            if op == "custom":
                examples = [torch.empty(shape, dtype=dtype) for dtype, shape in stated]
                domain, name, version, operands, attributes = given
                found = context.custom(domain, name, version, operands, attributes, examples)
            elif bodies:
                found = _flow(context, op, given, bodies, len(stated))
            else:
                found = result_of(op, given, stated)
            _check(found, stated)
        except Error:
            raise
        except RecursionError:
            raise createPoptorchError(
                f"[{context.label}] composition: it contains itself, without an end"
            ) from None
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as e:
            where = f"line {line}, column {column} of its text"
            raise createPoptorchError(f"[{context.label}] composition: {op} ({where}): {e}") from e
        values.update(zip(results, found, strict=True))
    return [values[k] for k in outputs]


def _flow(
    context: Context, op: str, args: list[Any], bodies: list[Any], count: int
) -> list[Tensor]:
    """The results of a loop or a branch."""
    # Only a program has any; they import what imports this.
    from poptorch.capture.flow.branch import cond
    from poptorch.capture.flow.loop import for_loop
    from poptorch.capture.flow.open_loop import while_loop

    def body(index: int, captures: list[Tensor]) -> Callable[..., list[Tensor]]:
        nodes, outputs = bodies[index]
        # Each op that reads a capture makes it an input of the body.
        return lambda *carries: evaluate(context, nodes, outputs, [*carries, *captures])

    if op == "branch":
        condition, operands = args
        return cond(condition, (body(0, operands), body(1, operands)), ([], []))
    if op == "while":
        carries, captures = args
        return while_loop(body(0, captures), carries)
    turns, carries, xs, captures, _reverse = args
    if xs or count > len(carries):
        raise NotImplementedError("in a composition it has carries and captures alone")
    return for_loop(turns, body(0, captures), carries)


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
