# SPDX-License-Identifier: Apache-2.0
"""Snapshots of Python values, and what has changed between two of them."""

import collections
import functools
import itertools
import operator
import os
import random
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch

import poptorch

PLAIN = (bool, int, float, complex, str, bytes, type(None))
ANY = object()  # stands for all values that are not compared
TENSOR = object()  # stands for all tensors
_MOST_ITEMS = 64  # larger containers hold data
_DEPTH = 3
_ITERATORS: tuple[type, ...] = (
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
    itertools.count,
    itertools.cycle,
    types.GeneratorType,
)


class _Fields(NamedTuple):
    """Attributes of an object."""

    values: dict[str, Any]


class _Items(NamedTuple):
    """Items of a list, a dict or an array."""

    values: dict[Any, Any]


class _Draws(NamedTuple):
    """The state of something whose every use gives another value."""

    state: Any


class Change(NamedTuple):
    """A value that is another one than before."""

    path: str
    name: str  # of the variable or attribute that holds it
    kind: Literal["name", "item", "draw"]  # the value itself, what it holds, its position
    before: Any
    after: Any


@functools.cache
def in_library(file: str) -> bool:
    """Whether a file belongs to Python, an installed package or this project."""
    paths = sysconfig.get_paths()
    roots = {paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")}
    here = os.path.dirname(os.path.dirname(os.path.abspath(poptorch.__file__)))
    roots |= {os.path.join(here, name) for name in ("poptorch", "lightning_ipu")}
    parts = ("site-packages", "dist-packages", "<frozen")
    return file.startswith(tuple(root + os.sep for root in roots)) or any(p in file for p in parts)


def class_in_library(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    # What has no file is typed in by the user, unless it is written in C.
    return in_library(file) if file else kind.__module__ in sys.builtin_module_names


def snapshot(value: Any, seen: set[int], depth: int = _DEPTH) -> Any:
    """What to compare a value with later; ANY if it can't be compared."""
    try:
        return _snapshot_of(value, seen, depth)
    except Exception:  # of an object of the user's that does not let itself be inspected
        return ANY


def _snapshot_of(value: Any, seen: set[int], depth: int) -> Any:
    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return TENSOR
    if id(value) in seen or depth == 0 or isinstance(value, (torch.nn.Module, type)):
        return ANY
    seen.add(id(value))
    if isinstance(value, (list, tuple, collections.deque)):
        if len(value) > _MOST_ITEMS:
            return _Items({"length": len(value)})
        return _Items({i: snapshot(v, seen, depth - 1) for i, v in enumerate(value)})
    if isinstance(value, dict):
        if len(value) > _MOST_ITEMS:
            return ANY
        known = {k: v for k, v in value.items() if type(k) in PLAIN}
        return _Items({k: snapshot(v, seen, depth - 1) for k, v in known.items()})
    if isinstance(value, random.Random):
        return _Draws(value.getstate())
    if isinstance(value, _ITERATORS):
        return _Draws(_position(value))
    if type(value).__module__.partition(".")[0] == "numpy":
        return _numpy_snapshot(value)
    fields = getattr(value, "__dict__", None)
    if type(fields) is not dict or isinstance(value, types.ModuleType):
        return ANY
    if type(value) is not types.SimpleNamespace and class_in_library(type(value)):
        return ANY
    return _Fields({k: snapshot(v, seen, depth - 1) for k, v in fields.items()})


def _position(iterator: Any) -> Any:
    """How far an iterator has come."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        values = {} if frame is None else frame.f_locals
        return getattr(frame, "f_lasti", -1), {k: v for k, v in values.items() if type(v) in PLAIN}
    if isinstance(iterator, itertools.cycle):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python will not always pickle them
            made: Any = iterator.__reduce__()
        _, (inner,), saved = made
        return operator.length_hint(inner), len(saved[0]), saved[1]
    return (
        repr(iterator) if isinstance(iterator, itertools.count) else operator.length_hint(iterator)
    )


def _numpy_snapshot(value: Any) -> Any:
    import numpy

    if isinstance(value, numpy.generic):
        return value.item()
    if (
        isinstance(value, numpy.ndarray)
        and value.size <= _MOST_ITEMS
        and value.dtype.kind in "biuf"
    ):
        return _Items(dict(enumerate(value.ravel().tolist())))
    if isinstance(value, numpy.random.Generator):
        return _Draws(repr(value.bit_generator.state))
    if isinstance(value, numpy.random.RandomState):
        return _Draws(repr(value.get_state()))
    return ANY


def changes(before: Any, after: Any, path: str, name: str) -> Iterator[Change]:
    """What differs between two snapshots of the value at a path, held by a name."""
    if isinstance(before, _Draws) and isinstance(after, _Draws):
        if before.state != after.state:
            yield Change(path, name, "draw", None, None)
    elif isinstance(before, _Fields) and isinstance(after, _Fields):
        for key in before.values.keys() & after.values.keys():
            yield from changes(before.values[key], after.values[key], f"{path}.{key}", key)
    elif isinstance(before, _Items) and isinstance(after, _Items):
        shared = before.values.keys() & after.values.keys()
        if len(before.values) != len(after.values):
            yield Change(path, name, "item", None, None)
        for key in shared:
            for change in changes(before.values[key], after.values[key], f"{path}[{key!r}]", name):
                own = change.kind == "name" and change.name == name
                yield change._replace(kind="item") if own else change
    elif type(before) in PLAIN and (after is TENSOR or type(after) in PLAIN):
        if not _same(before, after):
            yield Change(path, name, "name", before, after)


def _same(a: Any, b: Any) -> bool:
    return a is b or a == b or (a != a and b != b)
