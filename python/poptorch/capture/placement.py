# SPDX-License-Identifier: Apache-2.0
"""Where the ops being captured are to run: blocks set it, every node carries it."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from poptorch.capture import state

if TYPE_CHECKING:
    from poptorch.capture.errors import Where
    from poptorch.capture.text.writer import Record


class Placement(NamedTuple):
    """IPU, pipeline stage, phase and block of a node; phase -1 means no phased execution."""

    ipu: int = 0
    stage: int = 0
    phase: int = -1
    block: str | None = ""  # "" before the first block, None after one that was left


class Tag(NamedTuple):
    """Where a node comes from and where it is to run."""

    file: str
    line: int
    scope: str
    backward: bool
    ipu: int
    stage: int
    phase: int
    block: str | None
    checkpoints: tuple[int, ...] = ()  # regions of torch.utils.checkpoint, the outermost first
    memory: float = 0.0  # share of tile memory that the op may use, 0 if nobody said
    pieces: int = 0  # in which a product is to be done

    @property
    def where(self) -> "Where":
        """The user's line."""
        return self.file, self.line


class PlacedOp(NamedTuple):
    """One op of an annotated model that its results or its loss need."""

    tag: Tag | None
    operands: list[int]  # indices of the ops that made its operands
    weights: list[str]  # names of the parameters it reads


DEFAULT = Placement()
_current = DEFAULT


def set_placement(ipu: int, stage: int, phase: int = -1, block: str | None = "") -> None:
    """Places every op captured from now on; does nothing while no model is being captured."""
    global _current
    if state.running_on_ipu():
        _current = Placement(int(ipu), int(stage), int(phase), block)


def leave_block() -> None:
    """No block is active: ops captured before the next one begins belong to none."""
    global _current
    _current = Placement(block=None)


def reset_placement() -> None:
    """Back to IPU 0, stage 0."""
    global _current
    _current = DEFAULT


def current_placement() -> Placement:
    """The placement of ops captured now."""
    return _current


@contextlib.contextmanager
def placed(place: Placement) -> Iterator[None]:
    """Ops captured in here are placed so."""
    global _current
    before, _current = _current, place
    try:
        yield
    finally:
        _current = before


def placed_ops(
    live: "list[Record]", blocks: dict[str, Tag]
) -> tuple[list[PlacedOp], dict[str, Tag]]:
    """(an op per live record, the blocks all of whose ops are dead).

    Both are empty if the model has no blocks.
    """
    if not any(r.tag is not None and r.tag.block != "" for r in live) and not blocks:
        return [], {}
    made_by: dict[int, int] = {}  # id of a value -> index of its op
    ops = []
    for i, record in enumerate(live):
        args = list(_flat(record.args))
        ops.append(
            PlacedOp(
                record.tag,
                [made_by[id(a)] for a in args if id(a) in made_by],
                [a.name for a in args if getattr(a, "kind", "") == "param"],
            )
        )
        made_by.update((id(r), i) for r in record.results)
    alive = {record.tag.block for record in _with_inner(live) if record.tag is not None}
    return ops, {block: tag for block, tag in blocks.items() if block not in alive}


def _with_inner(records: "Iterable[Record]") -> "Iterator[Record]":
    """Records with those in their bodies."""
    for record in records:
        yield record
        for body in record.bodies:
            yield from _with_inner(body.records)


def _flat(args: Iterable[Any]) -> Iterator[Any]:
    for a in args:
        if isinstance(a, (list, tuple)):
            yield from _flat(a)
        else:
            yield a
