# SPDX-License-Identifier: Apache-2.0
"""Where the ops being captured are to run: blocks set it, every node carries it."""

from typing import NamedTuple

from . import state


class Placement(NamedTuple):
    """IPU, pipeline stage, phase and block of a node; phase -1 means no phased execution."""

    ipu: int = 0
    stage: int = 0
    phase: int = -1
    block: str | None = ""  # "" before the first block, None behind one that was left


class PlacedOp(NamedTuple):
    """One op of an annotated model that its results or its loss need."""

    tag: tuple
    operands: list  # indices of the ops that made its operands
    weights: list  # names of the parameters it reads


DEFAULT = Placement()
_current = DEFAULT


def set_placement(ipu, stage, phase=-1, block=""):
    """Places every op captured from now on; does nothing while no model is being captured."""
    global _current
    if state.running_on_ipu():
        _current = Placement(int(ipu), int(stage), int(phase), block)


def leave_block():
    """No block is active: ops captured before the next one begins belong nowhere."""
    global _current
    _current = Placement(block=None)


def reset_placement():
    """Back to IPU 0, stage 0."""
    global _current
    _current = DEFAULT


def current_placement():
    """The placement of ops captured now."""
    return _current


def placed_ops(live, blocks):
    """(PlacedOp per live record, {block: tag} of blocks all of whose ops are dead); both empty if
    the model has no blocks."""
    if not any(r.tag is not None and r.tag.block != "" for r in live) and not blocks:
        return [], {}
    made_by, ops = {}, []
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
    alive = {op.tag.block for op in ops if op.tag is not None}
    return ops, {block: tag for block, tag in blocks.items() if block not in alive}


def _flat(args):
    for a in args:
        if isinstance(a, (list, tuple)):
            yield from _flat(a)
        else:
            yield a
