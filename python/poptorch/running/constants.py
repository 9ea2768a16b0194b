# SPDX-License-Identifier: Apache-2.0
"""Constants of a program: arguments that are no tensors, kept as they were when it was compiled, so
that a change of theirs is noticed whoever makes it."""

import copy
import enum
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from poptorch.base.memory import memory_problem

#: Never changed, or too large and too much alive to be copied: only the same object is equal.
_BY_IDENTITY = (
    type,
    enum.Enum,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    torch.nn.Module,
    torch.Generator,
    torch.dtype,
    torch.device,
)
_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_NUMBERED = (list, tuple, deque)


@dataclass(frozen=True)
class Frozen:
    """A value as it was: ``copy`` is compared in the way that ``how`` says."""

    kind: type
    how: str  # "tensor", "array", "equal", "items", "mapping", "attributes" or "same"
    copy: Any


def freeze(value: Any) -> Frozen:
    """What later values of a constant are compared with."""
    try:
        return _freeze(value, {})
    except RecursionError:
        return Frozen(type(value), "same", value)


def _freeze(value: Any, known: dict[int, Frozen]) -> Frozen:
    kind = type(value)
    if kind in _ATOMS:
        return Frozen(kind, "equal", value)
    if isinstance(value, _BY_IDENTITY):
        return Frozen(kind, "same", value)
    if id(value) in known:  # refers to itself
        return known[id(value)]
    if isinstance(value, torch.Tensor):
        problem = value.layout is not torch.strided or memory_problem(value)
        return Frozen(kind, *(("same", value) if problem else ("tensor", value.detach().clone())))
    if isinstance(value, numpy.ndarray):
        return Frozen(kind, "array", value.copy())
    contents: Any = {}
    if isinstance(value, _NUMBERED):
        contents, how = [], "items"
    elif isinstance(value, dict):
        how = "mapping"
    elif (same := _equal_copy(value)) is not None:
        return Frozen(kind, "equal", same)
    elif _attributes(value):
        how = "attributes"
    else:
        return Frozen(kind, "same", value)
    known[id(value)] = result = Frozen(kind, how, contents)
    if how == "items":
        contents += [_freeze(item, known) for item in value]
    else:
        items = value if how == "mapping" else _attributes(value)
        contents.update({key: _freeze(item, known) for key, item in items.items()})
    return result


def _equal_copy(value: Any) -> Any:
    """A copy that is equal to ``value`` by the rules of its class; None if there are none."""
    if type(value).__eq__ is object.__eq__:
        return None
    try:
        same = copy.deepcopy(value)
        return same if bool(same == value) else None
    except Exception:  # of the user's class, which need not support either
        return None


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def difference(name: str, kept: Frozen, value: Any) -> tuple[str, Any, Any] | None:
    """The first difference: where it is, what was there and what is now; None if there is none."""
    return next(_differences(name, kept, value, set()), None)


def _differences(
    name: str, kept: Frozen, value: Any, seen: set[int]
) -> Iterator[tuple[str, Any, Any]]:
    if type(value) is not kept.kind:
        yield name, kept.kind, type(value)
    elif kept.how in ("items", "mapping", "attributes"):
        if id(kept) in seen:
            return
        seen.add(id(kept))
        yield from _differences_inside(name, kept, value, seen)
    elif not _equal(kept, value):
        yield name, kept.copy, value


def _differences_inside(
    name: str, kept: Frozen, value: Any, seen: set[int]
) -> Iterator[tuple[str, Any, Any]]:
    if kept.how == "items":
        if len(value) != len(kept.copy):
            yield name, f"{len(kept.copy)} elements", f"{len(value)} elements"
            return
        for index, item in enumerate(kept.copy):
            yield from _differences(f"{name}[{index}]", item, value[index], seen)
        return
    now: Mapping[Any, Any] = value if kept.how == "mapping" else _attributes(value)
    form = "{}[{}]" if kept.how == "mapping" else "{}.{}"
    if now.keys() != kept.copy.keys():
        what = "keys" if kept.how == "mapping" else "attributes"
        yield name, f"{what} {list(kept.copy)}", f"{what} {list(now)}"
        return
    for key, item in kept.copy.items():
        yield from _differences(form.format(name, key), item, now[key], seen)


def _equal_tensors(before: torch.Tensor, now: torch.Tensor) -> bool:
    if before.dtype != now.dtype or before.shape != now.shape:
        return False
    if torch.equal(before, now):
        return True
    differs = before != now
    return not bool((differs & ~(before.isnan() & now.isnan())).any())


def _equal(kept: Frozen, value: Any) -> bool:
    before = kept.copy
    if kept.how == "same":
        return before is value
    if kept.how == "tensor":
        return _equal_tensors(before, value)
    if kept.how == "array":
        if before.dtype != value.dtype or before.shape != value.shape:
            return False
        if before.dtype.kind in "fc":
            return bool(numpy.array_equal(before, value, equal_nan=True))
        return bool(numpy.array_equal(before, value))
    try:
        # NaN is the one constant that differs from itself.
        return bool(before == value) or bool(before != before and value != value)
    except Exception:  # of the user's class
        return False
