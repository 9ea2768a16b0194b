# SPDX-License-Identifier: Apache-2.0
"""Prints what a Writer has collected: one line per source, op and result of the graph."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from poptorch.base.dtypes import DTYPE_NAMES
from poptorch.capture.errors import printable
from poptorch.capture.placement import Tag
from poptorch.capture.text.value import Number, Value
from poptorch.capture.text.writer import Record, Writer

if TYPE_CHECKING:
    from poptorch.capture.text.bodies import BodyText

_ORDER = {"param": 0, "const": 2, "input": 3}  # the other states between


class GraphText(NamedTuple):
    """The text of a graph.

    Attributes:
        head: lines up to the closing brace.
        tail: the brace and the locations after it.
        live: records of the ops in the text.
        locations: what the numbers of locations stand for.
    """

    head: list[str]
    tail: list[str]
    live: list[Record]
    locations: list[Tag]


def graph_text(
    w: Writer,
    name: str,
    sources: list[Value],
    outputs: list[Value],
    loss: list[Value],
    grads: list[tuple[Value, Value]],
    updates: list[tuple[Value, Value]],
    once: list[tuple[Value, Value]],
) -> GraphText:
    """Numbers the values that the roots need and prints their ops; others are dead.

    Args:
        sources: params, buffers and inputs.
        outputs: in the order of the results.
        loss: the loss, or nothing.
        grads: (param, its gradient).
        updates: (state, its new value).
        once: the same, per weight update.
    """
    pairs = grads + updates + once
    live, needed = live_records(w.records, [*outputs, *loss, *[v for _, v in pairs]])
    # A parameter may have a gradient that is zero without being read.
    needed |= {id(s) for s, _ in pairs}
    used = [s for s in [*sources, *w.own_sources()] if s.kind == "input" or id(s) in needed]
    used.sort(key=lambda s: _ORDER.get(s.kind, 1))
    head = ["tessera 1", f"graph {quote(name)} {{"]
    number = 0
    for s in used:
        s.number, number = number, number + 1
        head.append(f"  {s.kind} %{s.number} {quote(s.name)} : {type_text(s)}")
    locations: dict[Tag, int] = {}
    head += _op_lines(live, number, locations, "  ")
    if outputs:
        head.append("  output " + ", ".join(f"%{v.number}" for v in outputs))
    head += [f"  loss %{v.number}" for v in loss]
    head += [f"  grad %{p.number} %{g.number}" for p, g in grads]
    head += [f"  update %{s.number} %{v.number}" for s, v in updates]
    head += [f"  update %{s.number} %{v.number} once" for s, v in once]
    tail = ["}", *[_location_line(tag, k) for tag, k in locations.items()]]
    return GraphText(head, tail, live, list(locations))


def live_records(records: list[Record], roots: list[Value]) -> tuple[list[Record], set[int]]:
    """(the records that the roots need, ids of the values that they and the roots read)."""
    needed = {id(v) for v in roots}
    live = []
    for record in reversed(records):
        if any(id(r) in needed for r in record.results):
            live.append(record)
            needed.update(id(v) for v in values_in(record.args))
    live.reverse()
    return live, needed


def values_in(args: Iterable[object]) -> Iterator[Value]:
    """The values among the arguments of an op, those in lists as well."""
    for a in args:
        if isinstance(a, Value):
            yield a
        elif isinstance(a, list):
            yield from values_in(a)


def _op_lines(
    records: list[Record], number: int, locations: dict[Tag, int], indent: str
) -> Iterator[str]:
    """The lines of ops whose results are numbered from `number` on."""
    for record in records:
        for r in record.results:
            r.number, number = number, number + 1
        results = ", ".join(f"%{r.number}" for r in record.results)
        types = ", ".join(map(type_text, record.results))
        args = ", ".join(map(argument_text, record.args))
        line = f"{indent}{results} = {record.name}({args})"
        for body in record.bodies:
            yield line + " {"
            yield from _body_lines(body, locations, indent + "  ")
            line = indent + "}"
        line += f" : {types}"
        if record.tag is not None:
            line += f" !{locations.setdefault(record.tag, len(locations))}"
        yield line


def _body_lines(body: "BodyText", locations: dict[Tag, int], indent: str) -> Iterator[str]:
    for number, value in enumerate(body.inputs):
        value.number = number
        yield f'{indent}input %{number} "i{number}" : {type_text(value)}'
    yield from _op_lines(body.records, len(body.inputs), locations, indent)
    yield f"{indent}output " + ", ".join(f"%{v.number}" for v in body.outputs)


def _location_line(tag: Tag, number: int) -> str:
    where = f"{quote(printable(tag.file))} {tag.line} {quote(tag.scope)}"
    direction = "bwd" if tag.backward else "fwd"
    line = f"loc !{number} {where} {direction} {tag.ipu} {tag.stage} {tag.phase}"
    more = []
    if tag.checkpoints:
        more.append(f"checkpoints={list(tag.checkpoints)}")
    if tag.memory:
        more.append(f"memory={tag.memory}")
    if tag.pieces:
        more.append(f"pieces={tag.pieces}")
    return f"{line} {{{', '.join(more)}}}" if more else line


def quote(text: str) -> str:
    """A string of the text form."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def number_text(x: Number) -> str:
    """A number of the text form: floats always look like floats."""
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, int):
        return str(x)
    return repr(x)  # shortest text that reads back the same; has a point, an exponent, inf or nan


def type_text(value: Value) -> str:
    """`f32[2,3]`."""
    return f"{DTYPE_NAMES[value.dtype]}[{','.join(map(str, value.shape))}]"


def argument_text(a: object) -> str:
    """One argument of an op call."""
    if isinstance(a, Value):
        return f"%{a.number}"
    if a is None:
        return "none"
    if isinstance(a, (bool, int, float)):
        return number_text(a)
    if isinstance(a, complex):
        return quote(str(a))  # only host calls take one; they know it by the schema
    if isinstance(a, str):
        return quote(a)
    if isinstance(a, torch.dtype):
        return DTYPE_NAMES[a]
    if isinstance(a, (list, tuple)):
        return "[" + ", ".join(map(argument_text, a)) + "]"
    raise TypeError(f"{a!r} cannot be an argument in the text form")
