# SPDX-License-Identifier: Apache-2.0
"""The arguments that a program was compiled for: what is kept of them, how later calls are compared
with them, and which of their tensors is which. Names decide, never the order of keys."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.base.memory import check_input
from poptorch.capture import structure
from poptorch.running.arguments import Bound, Leaves, Signature
from poptorch.running.constants import Frozen, difference, freeze
from poptorch.weights.state import Watched

_HINT = (
    "\nA compiled program keeps the shapes, types and values of its first call: create a new "
    "wrapper, or call destroy() on this one and it will be compiled again."
)


@dataclass(frozen=True)
class TensorTemplate:
    """What is kept of a tensor argument: no data."""

    kind: type
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class ItemsTemplate:
    """A list, tuple or named tuple, or the tensors of a type with a parser."""

    kind: type
    items: list[Any]
    parsed: bool = False


@dataclass(frozen=True)
class NamedTemplate:
    """A mapping, or the fields of a dataclass."""

    kind: type
    items: dict[Any, Any]
    fields: bool = False


_Kept = TensorTemplate | ItemsTemplate | NamedTemplate | Frozen


def template_of(value: Any) -> _Kept:
    """What is kept of an argument."""
    kind = _kind_of(value)
    if isinstance(value, torch.Tensor):
        return TensorTemplate(kind, value.shape, value.dtype)
    parser = structure.parser_for(value)
    if parser is not None:
        return ItemsTemplate(kind, [template_of(t) for t in parser.yieldTensors(value)], True)
    if structure.is_numbered(value):
        return ItemsTemplate(kind, [template_of(v) for v in value])
    if structure.is_mapping(value):
        return NamedTemplate(kind, {k: template_of(v) for k, v in value.items()})
    if structure.is_dataclass(value):
        fields = structure.fields_of(value)
        return NamedTemplate(kind, {k: template_of(v) for k, v in fields.items()}, True)
    return freeze(value)


def _kind_of(value: Any) -> type:
    """Its class; of a tensor of a training model that which it has outside of it."""
    if isinstance(value, Watched):
        return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor
    return type(value)


class Template:
    """The arguments that a program was compiled for.

    Attributes:
        names: how messages call its tensors, in the order of capture.
    """

    def __init__(self, signature: Signature, bound: Bound) -> None:
        self._signature = signature
        self._args = [template_of(value) for value in bound.args]
        self._kwargs = {name: template_of(value) for name, value in bound.kwargs.items()}
        self.names = [name for name, _ in signature.leaves(bound)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_signature": None}  # it belongs to the model

    def of(self, signature: Signature) -> "Template":
        """The same for the forward of another object of the model."""
        result = copy.copy(self)
        result._signature = signature
        return result

    def leaves(self, bound: Bound) -> Leaves:
        """Names and tensors of a call in the order of capture.

        Raises unless the call may run the same program.
        """
        if len(bound.args) != len(self._args):
            raise _mismatch(
                f"Number of positional arguments mismatch: expected {len(self._args)} arguments "
                f"but got {len(bound.args)}"
            )
        out: Leaves = []
        for position, (expected, value) in enumerate(zip(self._args, bound.args, strict=True)):
            _compare(self._signature.name_of(position), expected, value, out)
        _compare_named("named arguments", self._kwargs, bound.kwargs, str, out)
        return out


def _mismatch(text: str) -> Exception:
    return createPoptorchError(text + "." + _HINT)


def _compare(name: str, expected: _Kept, value: Any, out: Leaves) -> None:
    kind = _kind_of(value)
    if kind is not expected.kind:
        if isinstance(value, torch.Tensor):
            check_input(value, name)
        raise _mismatch(f"Type mismatch for {name}: expected {expected.kind} but got {kind}")
    if isinstance(expected, TensorTemplate):
        _compare_tensors(name, expected, value)
        out.append((name, value))
    elif isinstance(expected, ItemsTemplate):
        parser = structure.parser_for(value) if expected.parsed else None
        items = value if parser is None else parser.yieldTensors(value)
        _compare_items(name, expected.items, list(items), out)
    elif isinstance(expected, NamedTemplate):
        items = structure.fields_of(value) if expected.fields else value
        form = "{}.{}" if expected.fields else "{}[{}]"
        _compare_named(name, expected.items, items, lambda key: form.format(name, key), out)
    else:
        found = difference(name, expected, value)
        if found is not None:
            where, before, now = found
            raise _mismatch(f"Value mismatch for {where}: expected {before} but got {now}")


def _compare_tensors(name: str, expected: TensorTemplate, value: torch.Tensor) -> None:
    if value.dtype != expected.dtype:
        raise _mismatch(
            f"Data type mismatch for {name}: expected {expected.dtype} but got {value.dtype}"
        )
    if value.shape != expected.shape:
        raise _mismatch(
            f"Shape mismatch for {name}: expected {expected.shape} but got {value.shape}"
        )


def _compare_items(name: str, expected: list[Any], values: list[Any], out: Leaves) -> None:
    if len(values) != len(expected):
        raise _mismatch(
            f"Length mismatch for {name}: expected {len(expected)} elements but got {len(values)}"
        )
    for index, (item, value) in enumerate(zip(expected, values, strict=True)):
        _compare(f"{name}[{index}]", item, value, out)


def _compare_named(
    name: str, expected: dict[Any, Any], values: Any, name_of: Callable[[Any], str], out: Leaves
) -> None:
    if values.keys() != expected.keys():
        extra = [str(key) for key in values if key not in expected]
        missing = [str(key) for key in expected if key not in values]
        text = f"Keys mismatch for {name}:"
        if extra:
            text += f" Unexpected arguments: {', '.join(extra)}"
        if missing:
            text += f" Missing arguments: {', '.join(missing)}"
        raise _mismatch(text)
    for key, item in expected.items():
        _compare(name_of(key), item, values[key], out)
