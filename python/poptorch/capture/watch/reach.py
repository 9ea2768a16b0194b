# SPDX-License-Identifier: Apache-2.0
"""What the forward of a model can reach: functions it may call, and values these can change."""

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from poptorch.capture.watch.self_updates import functions_in
from poptorch.capture.watch.snapshots import PLAIN, class_in_library, in_library, snapshot

# Methods that are called first: of PyTorch's modules, of helpers, of Lightning's modules.
_ENTRIES = ("forward", "__call__", "training_step", "validation_step", "test_step", "predict_step")
_MODULE_OWN = frozenset(torch.nn.Module().__dict__)


class Reached(NamedTuple):
    """A value that forward can change.

    Attributes:
        key: id of what holds it, and its name there.
        path: how messages call it.
        name: of the variable or attribute.
        snapshot: to compare it by.
    """

    key: tuple[int, str]
    path: str
    name: str
    snapshot: Any


class Reach:
    """The functions that a model's forward may call, and the values that these can change.

    Attributes:
        functions: their code.
        namespaces: their globals.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        # (id of the owner, what precedes a name in messages, values by name)
        self._values: list[tuple[int, str, dict[str, Any]]] = []
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
            self._take(value.__func__)
            value = value.__self__
        if isinstance(value, types.FunctionType):
            self._take_function(value)
        elif type(value) not in PLAIN and not isinstance(value, torch.Tensor):
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
        if not class_in_library(kind):
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

    def values(self) -> Iterator[Reached]:
        """Every value, as it is now."""
        seen: set[int] = set()
        for owner, prefix, values in self._values:
            for name, value in list(values.items()):
                if not name.startswith("__"):
                    yield Reached((owner, name), prefix + name, name, snapshot(value, seen))
