# SPDX-License-Identifier: Apache-2.0
"""Traced graph -> text IR, and what the text refers to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from poptorch.capture.errors import Where, make_error
from poptorch.capture.placement import PlacedOp, Tag, placed_ops
from poptorch.capture.text.bodies import all_records
from poptorch.capture.text.format import graph_text, values_in
from poptorch.capture.text.nodes import NodeWriter
from poptorch.capture.text.outside import warn_of_parameters
from poptorch.capture.text.row import Row
from poptorch.capture.text.value import Value
from poptorch.capture.text.writer import Writer

if TYPE_CHECKING:
    from poptorch.capture.slots import StateSlot
    from poptorch.capture.trace import Traced


@dataclass
class Emitted:
    """The text and what it refers to.

    Attributes:
        head: lines of the graph up to its closing brace.
        tail: the lines after them.
        locations: what the numbers of locations in the text stand for.
        constants: tensors by the name that the text gives them.
        host_ops: (op that runs on the host, user's line).
        uses_rng: whether the program draws random numbers.
        params: parameters that the text needs.
        buffers: buffers that the text needs.
        inputs: in the order of the arguments.
        inputs_used: whether an op reads each.
        outputs: results, then the new values of inputs that are written to, then checks.
        input_writebacks: (index of an input, index of the output with its new value).
        updated: states with a new value.
        loss: the loss, in training.
        loss_index: which output is the loss, if one is.
        placed: where each op runs, see placement.py.
        dead_blocks: blocks without an op that is needed.
    """

    head: list[str]
    tail: list[str]
    locations: list[Tag]
    constants: dict[str, torch.Tensor]
    host_ops: list[tuple[str, Where]]
    uses_rng: bool
    params: "list[tuple[StateSlot, Value]]"
    buffers: "list[tuple[StateSlot, Value]]"
    inputs: list[Value]
    inputs_used: list[bool]
    outputs: list[Value]
    input_writebacks: list[tuple[int, int]]
    updated: list[Value]
    loss: Value | None
    loss_index: int | None
    placed: list[PlacedOp]
    dead_blocks: dict[str, Tag]


def emit(traced: "Traced", rows: Mapping[str, Row], name: str, loss_scaling: bool) -> Emitted:
    """Writes the text of a traced graph."""
    e = NodeWriter(traced, rows)
    w = e.w
    w.state_names = frozenset(slot.names[0] for slot in traced.slots)
    if loss_scaling:
        w.loss_scale = w.source("loss_scale", w.free_name("loss:scale"), torch.float32, ())
    placeholders = [n for n in e.graph.nodes if n.op == "placeholder"]
    states, arguments = placeholders[: len(traced.slots)], placeholders[len(traced.slots) :]
    for node, slot in zip(states, traced.slots, strict=True):
        kind = "param" if slot.is_param else "buffer"
        value = w.source(kind, slot.names[0], slot.fake.dtype, slot.tensor.shape)
        e.values[node] = value
        e.states.append((slot, value))
    inputs = []
    for node, (path, tensor) in zip(arguments, traced.inputs, strict=True):
        value = w.source("input", path, tensor.dtype, tensor.shape)
        e.values[node] = value
        inputs.append(value)
    e.run()
    w.tag = None

    sources = [*[v for _, v in e.states], *inputs]
    values = _graph_results(e)
    own = _owner(w, set(map(id, sources)))
    outputs = [own(v) for v in values[: traced.num_values]]
    rest = values[traced.num_values :]
    loss = [rest.pop(0)] if traced.has_loss else []
    of_slot = {id(s): v for s, v in e.states}
    once = [(of_slot[id(s)], own(rest.pop())) for s in reversed(traced.once)]
    gradients, checks = rest[: len(traced.grads)], rest[len(traced.grads) :]
    grads = [
        (of_slot[id(s)], own(w.cast(g, s.tensor.dtype)))
        for s, g in zip(traced.grads, gradients, strict=True)
    ]

    input_index = {id(v): i for i, v in enumerate(inputs)}
    updates, writebacks = [], []
    for node, new in traced.written.items():
        source, value = e.value(node), own(e.value(new))
        if id(source) in input_index:
            writebacks.append((input_index[id(source)], len(outputs)))
            outputs.append(value)
        else:
            updates.append((source, value))
    outputs += [own(v) for v in checks]
    _check_once(traced, {id(s) for s, _ in updates}, once)
    warn_of_parameters(traced.gm, e.followed)

    text = graph_text(w, name, sources, outputs, loss, grads, updates, once)
    kept = set(all_records(text.live))
    placed, dead_blocks = placed_ops(text.live, traced.blocks)
    read = {id(v) for r in text.live for v in values_in(r.args)}
    needed = [(s, v) for s, v in e.states if v.number >= 0]
    same = [i for i, v in enumerate(values[: traced.num_values]) if loss and v is loss[0]]
    return Emitted(
        head=text.head,
        tail=text.tail,
        locations=text.locations,
        constants=_constants(w),
        host_ops=[what for record, what in e.host_records.items() if record in kept],
        uses_rng=w.uses_rng,
        params=[(s, v) for s, v in needed if s.is_param],
        buffers=[(s, v) for s, v in needed if not s.is_param],
        inputs=inputs,
        inputs_used=[id(v) in read for v in inputs],
        outputs=outputs,
        input_writebacks=writebacks,
        updated=[s for s, _ in updates + once],
        loss=loss[0] if loss else None,
        loss_index=same[0] if same else None,
        placed=placed,
        dead_blocks=dead_blocks,
    )


def _check_once(traced: "Traced", written: set[int], once: list[tuple[Value, Value]]) -> None:
    """A state has one new value."""
    for value, _ in once:
        if id(value) in written or sum(other is value for other, _ in once) > 1:
            raise make_error(
                f"{value.name} has two new values: a custom op updates it once per weight update, "
                "and the model changes it as well."
            )


def _graph_results(e: NodeWriter) -> list[Value]:
    """What the graph returns: results, loss, gradients, checks."""
    found = next(n for n in reversed(e.graph.nodes) if n.op == "output").args[0]
    e.takes_statistics = False
    return [e.argument(r) for r in (found if isinstance(found, (list, tuple)) else [found])]


def _constants(w: Writer) -> dict[str, torch.Tensor]:
    """The constants that the text needs."""
    used = [c for c in w.constants.values() if c.number >= 0]
    return {c.name: c.tensor for c in used if c.tensor is not None}


def _owner(w: Writer, source_ids: set[int]) -> Callable[[Value], Value]:
    """Results that are inputs or state themselves get memory of their own."""

    def own(value: Value) -> Value:
        if id(value) not in source_ids and value.kind == "op":
            return value
        if value.dtype.is_complex:
            return value  # the core copies it
        return w.op("clone", [value], value.dtype, value.shape)

    return own
