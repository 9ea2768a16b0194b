# SPDX-License-Identifier: Apache-2.0
"""Bodies of loops and branches in the text: graphs in braces, with numbers of their own.

A body reads nothing but its inputs. Constants and the random state that its ops need become inputs
too; the op that has the body passes them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.fx

from poptorch.capture.text.format import live_records
from poptorch.capture.text.value import Value
from poptorch.capture.text.writer import Record, Writer

if TYPE_CHECKING:
    from poptorch.capture.session import Body


@dataclass
class BodyTrace:
    """What is written of a body: as Traced for a whole model."""

    gm: torch.fx.GraphModule
    bodies: "list[Body]"
    streams: int
    written: Mapping[torch.fx.Node, torch.fx.Node]


@dataclass
class BodyText:
    """A body in the text.

    Attributes:
        inputs: in order, those that nothing reads as well.
        outputs: in order.
        records: its ops.
        constants: sources that must become inputs.
        key: the random state, if its ops draw numbers; must become an input.
        origin: the same for forward and backward of one body.
        read: ids of the values that are read.
    """

    inputs: list[Value]
    outputs: list[Value]
    records: list[Record]
    constants: list[Value]
    key: Value | None
    origin: int
    read: set[int]

    def reads(self, value: Value) -> bool:
        """Whether an op or a result of the body needs a value."""
        return id(value) in self.read


def body_text(w: Writer, inputs: list[Value], outputs: list[Value], origin: int) -> BodyText:
    """The body that a Writer has collected."""
    records, read = live_records(w.records, outputs)
    constants = [c for c in w.constants.values() if id(c) in read]
    key = w.rng() if w.uses_rng and id(w.rng()) in read else None
    return BodyText(inputs, outputs, records, constants, key, origin, read)


def all_records(records: Iterable[Record]) -> Iterator[Record]:
    """Records with those in their bodies."""
    for record in records:
        yield record
        for body in record.bodies:
            yield from all_records(body.records)
