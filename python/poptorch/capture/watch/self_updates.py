# SPDX-License-Identifier: Apache-2.0
"""Which names a function computes from their own former values: ``self.n += 1``, ``n = -n``.

Read from bytecode, because models also come from notebooks and ``exec``. A cache (``self.length =
x.shape[0]``) is no such name, nor is one that the function sets anew before it counts with it.
"""

import collections
import dis
import types
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_ARITHMETIC = {"BINARY_OP", "UNARY_NOT", "UNARY_NEGATIVE", "UNARY_INVERT"}
_KINDS = {"ATTR": "name", "GLOBAL": "name", "NAME": "name", "DEREF": "name", "FAST": "local"}
_ITEM = ("item", "")  # of any container
# Methods that change a container. A cache calls the second ones too, but not in every call.
_TAKING = {"pop", "popleft", "popitem", "rotate"}
_GROWING = {"append", "appendleft", "extend", "insert"}

Key = tuple[str, str]  # ("name", n) for n itself, ("item", n) for what the container n holds


class Update(NamedTuple):
    """Where a name is computed from its former value."""

    file: str
    line: int


def functions_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions defined inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from functions_in(constant)


def self_updates(codes: Iterable[types.CodeType]) -> dict[Key, Update]:
    """What these functions compute from its former value.

    What ``forward`` sets anew in every call counts nothing, whoever adds to it then.
    """
    found: dict[Key, Update] = {}
    reset: set[Key] = set()
    for code in codes:
        updates, resets = _of_function(code)
        if code.co_name == "forward":
            reset |= resets
        for key, line in updates.items():
            found.setdefault(key, Update(code.co_filename, line))
    return {key: update for key, update in found.items() if ("name", key[1]) not in reset}


def _of_function(code: types.CodeType) -> tuple[dict[Key, int], set[Key]]:
    """(lines of names that are updated from themselves, names that every call sets first)."""
    instructions = list(dis.get_instructions(code))
    spans = [
        (i.offset, i.argval) for i in instructions if "JUMP" in i.opname or i.opname == "FOR_ITER"
    ]
    kept: dict[Key, _Reads] = {}  # local -> what was read for it
    updates: dict[Key, int] = {}
    resets: set[Key] = set()
    reads = _Reads()
    line = code.co_firstlineno
    for ins in instructions:
        line = ins.positions.lineno if ins.positions and ins.positions.lineno else line
        name = _name(ins)
        if ins.opname == "BINARY_SUBSCR":
            reads.subscripted |= reads.names.keys()
        elif ins.opname.startswith("LOAD_"):
            if ins.argval in _TAKING or (
                ins.argval in _GROWING and _always_runs(ins.offset, spans)
            ):
                for container in reads.names:
                    updates.setdefault(("item", container[1]), line)
            if name in kept:
                reads.add(kept[name])
            if name is not None:
                reads.names[name] += 1
        elif ins.opname in _ARITHMETIC:
            reads.arithmetic = True
            reads.in_place |= ins.argrepr.endswith("=")
        elif ins.opname.startswith("STORE_"):
            if name is None:
                pass
            elif name[0] == "local":
                # A loop variable or a copy: what was read for it counts as read later.
                kept[name] = reads
            elif name == _ITEM and reads.arithmetic:
                for container in reads.subscripted:
                    if reads.in_place or reads.names[container] > 1:
                        updates.setdefault(("item", container[1]), line)
            elif name in reads.names and reads.arithmetic:
                updates.setdefault(name, line)
            elif name not in (_ITEM, *updates) and _always_runs(ins.offset, spans):
                resets.add(name)
            reads = _Reads()
        elif ins.opname in ("POP_TOP", "RETURN_VALUE") or ins.opname.startswith("POP_JUMP"):
            reads = _Reads()
    return {k: v for k, v in updates.items() if ("name", k[1]) not in resets}, resets


class _Reads:
    """What an expression has read so far."""

    def __init__(self) -> None:
        self.names: collections.Counter[Key] = collections.Counter()
        self.subscripted: set[Key] = set()  # names of which an item was read
        self.arithmetic = False
        self.in_place = False  # with +=, -= ...

    def add(self, other: "_Reads") -> None:
        """Reads what another expression has read."""
        self.names += other.names
        self.subscripted |= other.subscripted
        self.arithmetic |= other.arithmetic


def _name(ins: dis.Instruction) -> Key | None:
    """The kind and name of what an instruction reads or writes."""
    if ins.opname in ("BINARY_SUBSCR", "STORE_SUBSCR"):
        return _ITEM
    kind = _KINDS.get(ins.opname.rpartition("_")[2])
    return None if kind is None else (kind, str(ins.argval))


def _always_runs(offset: int, spans: list[tuple[int, int]]) -> bool:
    return not any(start < offset < end for start, end in spans)
