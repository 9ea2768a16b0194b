# SPDX-License-Identifier: Apache-2.0
"""Loops and branches as one op each in a graph of ATen ops.

Their bodies are graphs of their own, which the session of the capture keeps by number.
"""

import torch
import torch.fx
from torch import Tensor

from poptorch.capture import state
from poptorch.capture.library import _lib, ops
from poptorch.capture.session import Body

__all__ = ["ops"]

_lib.define(
    "scan(int body, int count, Tensor[] carries, Tensor[] xs, Tensor[] captures, bool reverse) "
    "-> Tensor[]"
)
_lib.define("while_loop(int body, Tensor[] carries, Tensor[] captures) -> Tensor[]")
_lib.define("branch(int then_body, int else_body, Tensor condition, Tensor[] operands) -> Tensor[]")


def _body(number: int) -> Body:
    session = state.current()
    assert session is not None, "loops and branches are ops of a model that is captured"
    return session.bodies[number]


@torch.library.register_fake("tessera::scan", lib=_lib)
def _scan_fake(
    body: int,
    count: int,
    carries: list[Tensor],
    xs: list[Tensor],
    captures: list[Tensor],
    reverse: bool,
) -> list[Tensor]:
    found = []
    for i, (dtype, shape) in enumerate(_body(body).results):
        lead = [] if i < len(carries) else [count]
        found.append(torch.empty([*lead, *shape], dtype=dtype))
    return found


@torch.library.register_fake("tessera::while_loop", lib=_lib)
def _while_fake(body: int, carries: list[Tensor], captures: list[Tensor]) -> list[Tensor]:
    return [torch.empty(shape, dtype=dtype) for dtype, shape in _body(body).results]


@torch.library.register_fake("tessera::branch", lib=_lib)
def _branch_fake(
    then_body: int, else_body: int, condition: Tensor, operands: list[Tensor]
) -> list[Tensor]:
    return [torch.empty(shape, dtype=dtype) for dtype, shape in _body(else_body).results]


# For values that are needed while a model is captured: programs have rows of the core.


def _scan(
    body: int,
    count: int,
    carries: list[Tensor],
    xs: list[Tensor],
    captures: list[Tensor],
    reverse: bool,
) -> list[Tensor]:
    found = _body(body)
    values = [c.clone() for c in carries]
    turns: dict[int, list[Tensor]] = {}
    for t in reversed(range(count)) if reverse else range(count):
        out = torch.fx.Interpreter(found.module).run(*values, *[x[t] for x in xs], *captures)
        values, turns[t] = out[: len(carries)], out[len(carries) :]
    rows = [turns[t] for t in range(count)]
    stacked = [torch.stack(list(ys)) for ys in zip(*rows, strict=True)]
    if not count:
        stacked = [
            torch.empty((0, *shape), dtype=dtype) for dtype, shape in found.results[len(carries) :]
        ]
    return [*[v.clone() for v in values], *stacked]


def _while(body: int, carries: list[Tensor], captures: list[Tensor]) -> list[Tensor]:
    found = _body(body)
    values = [c.clone() for c in carries]
    while bool(values[0]):
        values = torch.fx.Interpreter(found.module).run(*values, *captures)
    return [v.clone() for v in values]


def _branch(
    then_body: int, else_body: int, condition: Tensor, operands: list[Tensor]
) -> list[Tensor]:
    found = _body(then_body if bool(condition) else else_body)
    return [t.clone() for t in torch.fx.Interpreter(found.module).run(*operands)]


_lib.impl("scan", _scan, "CPU")
_lib.impl("while_loop", _while, "CPU")
_lib.impl("branch", _branch, "CPU")
