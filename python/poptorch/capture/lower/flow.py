# SPDX-License-Identifier: Apache-2.0
"""Lowerings of loops and branches: the rows `scan`, `while` and `branch` with their bodies."""

import torch

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.bodies import BodyText
from poptorch.capture.text.value import Value
from poptorch.capture.text.writer import Writer

_KEY_BITS = 24  # of randomness in a number of `uniform`


def _turn_keys(w: Writer, origin: int, count: int) -> Value:
    """A random state for each turn, the same ones in forward and in backward."""
    before = w.drawer
    w.draws_as(("turns", origin))
    drawn = w.uniform(torch.float32, (count, 2))
    w.draws_as(before)
    return w.cast(drawn * 2.0**_KEY_BITS, torch.int64)


@lower("tessera::scan")
def _(
    w: Writer,
    n: Results,
    number: int,
    count: int,
    carries: list[Value],
    xs: list[Value],
    captures: list[Value],
    reverse: bool,
) -> list[Value]:
    body = w.body(number)
    first = len(carries) + len(xs)
    heads, held = body.inputs[:first], body.inputs[first:]
    read = [(v, c) for v, c in zip(held, captures, strict=True) if body.reads(v)]
    xs = list(xs)
    if body.key is not None:
        heads.append(body.key)
        xs.append(_turn_keys(w, body.origin, count))
    body.inputs = [*heads, *[v for v, _ in read], *body.constants]
    captures = [c for _, c in read] + _constants(w, body)
    found = w.ops("scan", [count, carries, xs, captures, bool(reverse)], n.types())
    w.records[-1].bodies = [body]
    return list(found)


@lower("tessera::while_loop")
def _(
    w: Writer, n: Results, number: int, carries: list[Value], captures: list[Value]
) -> list[Value]:
    body = w.body(number)
    assert body.key is None, "compositions, which alone have such loops, draw no random numbers"
    heads, held = body.inputs[: len(carries)], body.inputs[len(carries) :]
    read = [(v, c) for v, c in zip(held, captures, strict=True) if body.reads(v)]
    body.inputs = [*heads, *[v for v, _ in read], *body.constants]
    given = [c for _, c in read] + _constants(w, body)
    found = w.ops("while", [carries, given], n.types())
    w.records[-1].bodies = [body]
    return list(found)


@lower("tessera::branch")
def _(
    w: Writer, n: Results, then: int, otherwise: int, condition: Value, operands: list[Value]
) -> list[Value]:
    bodies = [w.body(then), w.body(otherwise)]
    kept = [i for i in range(len(operands)) if any(b.reads(b.inputs[i]) for b in bodies)]
    given = [operands[i] for i in kept]
    for body in bodies:
        body.inputs = [body.inputs[i] for i in kept]
    for own in bodies:  # what one body needs, both have
        for value in [*own.constants, *([] if own.key is None else [own.key])]:
            given.append(w.rng() if value is own.key else _constants(w, own, value)[0])
            for body in bodies:
                same = value if body is own else Value(value.writer, value.dtype, value.shape)
                body.inputs.append(same)
    found = w.ops("branch", [condition, given], n.types())
    w.records[-1].bodies = bodies
    return list(found)


def _constants(w: Writer, body: BodyText, *some: Value) -> list[Value]:
    """The constants of a body in the graph around it."""
    found = []
    for value in some or body.constants:
        assert value.tensor is not None
        found.append(w.constant(value.tensor))
    return found
