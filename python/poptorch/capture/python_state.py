# SPDX-License-Identifier: Apache-2.0
"""Python values that forward counts with: attributes, globals, variables of closures.

Forward runs once, while it is captured, so such a value is the same in every call of the program.
Values are compared before and after that run; of those that differ, only the ones whose code
computes them from their former value are reported, because libraries keep caches and modules set
attributes when they are first called.
"""

import collections
import contextlib
import functools
import itertools
import operator
import os
import random
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from poptorch._logging import logger

from . import errors
from .self_updates import Update, functions_in, self_updates

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ANY = object()  # stands for all values that are not compared
_TENSOR = object()  # stands for all tensors
_MOST_ITEMS = 64  # larger containers hold data
_DEPTH = 3
_ITERATORS = (
    *(type(iter(values)) for values in ([], (), range(0))),
    *(itertools.count, itertools.cycle, types.GeneratorType),
)
# Where Python begins: PyTorch's modules, helpers that are called, and Lightning's.
_ENTRIES = ("forward", "__call__", "training_step", "validation_step", "test_step", "predict_step")
_MODULE_OWN = frozenset(torch.nn.Module().__dict__)


class _Fields(NamedTuple):
    """Attributes of an object."""

    values: dict[str, Any]


class _Items(NamedTuple):
    """Items of a list, a dict or an array."""

    values: dict[Any, Any]


class _Draws(NamedTuple):
    """The state of something whose every use gives another value."""

    state: Any


class _Change(NamedTuple):
    path: str
    name: str  # of the variable or attribute that holds it
    kind: str  # "name", "item" or "draw"
    before: Any
    after: Any


@functools.cache
def in_library(file: str) -> bool:
    """Whether a file belongs to Python, an installed package or this project."""
    paths = sysconfig.get_paths()
    roots = {paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")}
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    roots |= {os.path.join(here, name) for name in ("poptorch", "lightning_ipu")}
    parts = ("site-packages", "dist-packages", "<frozen")
    return file.startswith(tuple(root + os.sep for root in roots)) or any(p in file for p in parts)


def _class_in_library(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    # What has no file is typed in by the user, unless it is written in C.
    return in_library(file) if file else kind.__module__ in sys.builtin_module_names


# What a value looks like -------------------------------------------------------------------------


def _look(value: Any, seen: set[int], depth: int = _DEPTH) -> Any:
    """Something to compare a value by, later."""
    try:
        return _look_inside(value, seen, depth)
    except Exception:  # whatever an object of the user's does when it is looked at
        return _ANY


def _look_inside(value: Any, seen: set[int], depth: int) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return _TENSOR
    if id(value) in seen or depth == 0 or isinstance(value, (torch.nn.Module, type)):
        return _ANY
    seen.add(id(value))
    if isinstance(value, (list, tuple, collections.deque)):
        if len(value) > _MOST_ITEMS:
            return _Items({"length": len(value)})
        return _Items({i: _look(v, seen, depth - 1) for i, v in enumerate(value)})
    if isinstance(value, dict):
        if len(value) > _MOST_ITEMS:
            return _ANY
        known = {k: v for k, v in value.items() if type(k) in _PLAIN}
        return _Items({k: _look(v, seen, depth - 1) for k, v in known.items()})
    if isinstance(value, random.Random):
        return _Draws(value.getstate())
    if isinstance(value, _ITERATORS):
        return _Draws(_position(value))
    if type(value).__module__.partition(".")[0] == "numpy":
        return _look_at_numpy(value)
    fields = getattr(value, "__dict__", None)
    if type(fields) is not dict or isinstance(value, types.ModuleType):
        return _ANY
    if type(value) is not types.SimpleNamespace and _class_in_library(type(value)):
        return _ANY
    return _Fields({k: _look(v, seen, depth - 1) for k, v in fields.items()})


def _position(iterator: Any) -> Any:
    """How far an iterator has come."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        values = {} if frame is None else frame.f_locals
        return getattr(frame, "f_lasti", -1), {k: v for k, v in values.items() if type(v) in _PLAIN}
    if isinstance(iterator, itertools.cycle):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python will not always pickle them
            _, (inner,), saved = iterator.__reduce__()
        return operator.length_hint(inner), len(saved[0]), saved[1]
    return (
        repr(iterator) if isinstance(iterator, itertools.count) else operator.length_hint(iterator)
    )


def _look_at_numpy(value: Any) -> Any:
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
    return _ANY


def _changes(before: Any, after: Any, path: str, name: str) -> Iterator[_Change]:
    if isinstance(before, _Draws) and isinstance(after, _Draws):
        if before.state != after.state:
            yield _Change(path, name, "draw", None, None)
    elif isinstance(before, _Fields) and isinstance(after, _Fields):
        for key in before.values.keys() & after.values.keys():
            yield from _changes(before.values[key], after.values[key], f"{path}.{key}", key)
    elif isinstance(before, _Items) and isinstance(after, _Items):
        shared = before.values.keys() & after.values.keys()
        if len(before.values) != len(after.values):
            yield _Change(path, name, "item", None, None)
        for key in shared:
            for change in _changes(before.values[key], after.values[key], f"{path}[{key!r}]", name):
                kind = "item" if change.kind == "name" and change.name == name else change.kind
                yield change._replace(kind=kind)
    elif type(before) in _PLAIN and (after is _TENSOR or type(after) in _PLAIN):
        if not _same(before, after):
            yield _Change(path, name, "name", before, after)


def _same(a: Any, b: Any) -> bool:
    return a is b or a == b or (a != a and b != b)


# What forward can reach --------------------------------------------------------------------------


class Reach:
    """The functions that a model's forward may call, and the values that these can change.

    Attributes:
        functions: their code.
        namespaces: their globals.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        # (owner, what precedes a name in messages, values by name)
        self._values: list[tuple[Any, str, dict[str, Any]]] = []
        self.functions: dict[types.CodeType, None] = {}
        self.namespaces: dict[int, dict[str, Any]] = {}
        self._classes: set[type] = set()
        self._methods: dict[str, list[types.FunctionType]] = {}
        self._called: set[str] = set()
        for prefix, module in model.named_modules():
            fields = {k: v for k, v in module.__dict__.items() if k not in _MODULE_OWN}
            self._values.append((id(module), f"{prefix}." if prefix else "", fields))
            hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
            for value in (module, *fields.values(), *hooks):
                self._take(value)
        for name in _ENTRIES:
            self._call(name)

    def _take(self, value: Any) -> None:
        """Adds a function, or what is known of an object's methods."""
        if isinstance(value, types.MethodType):
            self._take_function(value.__func__)
            value = value.__self__
        if isinstance(value, types.FunctionType):
            self._take_function(value)
        elif type(value) not in _PLAIN and not isinstance(value, torch.Tensor):
            for kind in type(value).__mro__:
                self._take_class(kind)

    def _take_class(self, kind: type) -> None:
        if kind in self._classes or kind.__module__.partition(".")[0] in ("builtins", "torch"):
            return
        self._classes.add(kind)
        members = dict(vars(kind))
        for name, value in members.items():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, types.FunctionType):
                self._methods.setdefault(name, []).append(function)
                if name in self._called:
                    self._take_function(function)
        if not _class_in_library(kind):
            self._values.append((id(kind), f"{kind.__name__}.", members))

    def _call(self, name: str) -> None:
        """Some object's method of this name may be called."""
        if name not in self._called:
            self._called.add(name)
            for function in self._methods.get(name, ()):
                self._take_function(function)

    def _take_function(self, function: types.FunctionType) -> None:
        if function.__code__ in self.functions:
            return
        self.functions[function.__code__] = None
        own = not in_library(function.__code__.co_filename)
        if id(function.__globals__) not in self.namespaces:
            self.namespaces[id(function.__globals__)] = function.__globals__
            if own:
                self._values.append((id(function.__globals__), "", function.__globals__))
        if own:
            self._values.append((id(function), f"{function.__name__}.", function.__dict__))
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                self._values.append((id(cell), "", {name: cell.cell_contents}))
                if not isinstance(cell.cell_contents, torch.nn.Module):
                    self._take(cell.cell_contents)
        for code in functions_in(function.__code__):
            for name in code.co_names:
                self._call(name)
                self._take_global(function.__globals__.get(name), code.co_names)

    def _take_global(self, value: Any, names: tuple[str, ...]) -> None:
        """What a function can reach by a global name, which may be that of a file of the user's."""
        if isinstance(value, types.FunctionType):
            self._take_function(value)
        elif isinstance(value, types.ModuleType):
            if value.__name__ not in sys.builtin_module_names and not in_library(
                getattr(value, "__file__", None) or "<frozen"
            ):
                for name in names:
                    self._take_global(value.__dict__.get(name), ())
        elif isinstance(value, type):
            self._take_class(value)
        elif value is not None and not isinstance(value, torch.nn.Module):
            self._take(value)

    def look(self) -> Iterator[tuple[Any, str, str, Any]]:
        """(key, path, name, what it looks like) of every value."""
        seen: set[int] = set()
        for owner, prefix, values in self._values:
            for name, value in list(values.items()):
                if not name.startswith("__"):
                    yield (owner, name), prefix + name, name, _look(value, seen)


class PythonState:
    """What Python's values are before forward runs, to be compared with what they are then."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        reach = Reach(model)
        self.namespaces = list(reach.namespaces.values())
        self._before = {key: found for key, _, _, found in reach.look()}

    def warn_of_counters(self) -> None:
        """Says what forward counts with although it runs only once; once per line."""
        reach = Reach(self._model)
        changes = [
            change
            for key, path, name, after in reach.look()
            for change in _changes(self._before.get(key, _ANY), after, path, name)
        ]
        if not changes:
            return
        codes = [inner for code in reach.functions for inner in functions_in(code)]
        updates = self_updates(codes)
        told: dict[Any, list[_Change]] = {}
        for change in changes:
            where = _place_of(change, updates)
            if where is not None:
                told.setdefault(where, []).append(change)
        for where, group in told.items():
            _warn(group, where)


def _place_of(change: _Change, updates: dict[Any, Update]) -> Update | str | None:
    """Where a value is counted; None if the change is not that of a counter."""
    if change.kind == "draw":
        return change.path
    keys = [("name", change.name), ("item", change.name)]
    return next((updates[key] for key in keys if key in updates), None)


def _warn(changes: Iterable[_Change], where: Update | str) -> None:
    first, *others = changes
    steps = ""
    if first.kind != "draw" and first.before is not None and first.after is not _TENSOR:
        steps = f" (from {first.before!r} to {first.after!r})"
    more = f" and {len(others)} more like it" if others else ""
    at = f"\n  at {errors.describe(where)}" if isinstance(where, Update) else ""
    logger.warning(
        "%s%s%s changes in forward, but Python runs only once, while the model is captured: every "
        "call of the program uses the value it had then. Keep it in a tensor, with register_buffer "
        "and a change in place such as add_(1), or pass it to the model as an input.%s",
        first.path,
        more,
        steps,
        at,
    )
