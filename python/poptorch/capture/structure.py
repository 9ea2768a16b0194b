# SPDX-License-Identifier: Apache-2.0
"""Flattening of arguments and results: tensors are leaves, all else is part of the structure."""

import copy
import dataclasses
from collections import UserDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

_NUMBERED = (list, tuple, deque)
#: The path of a tensor inside a structure, as messages call it, and the tensor.
Leaf = tuple[str, torch.Tensor]


class Parser(Protocol):
    """How the tensors of a type of the user's are found and put back."""

    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]: ...  # noqa: N802

    def reconstruct(
        self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]
    ) -> Any: ...


#: Filled by registerCustomArgParser.
custom_parsers: dict[type, Parser] = {}


def parser_for(value: Any) -> Parser | None:
    """The custom parser for a value, by exact type first, then by isinstance, or None."""
    if not custom_parsers:
        return None
    found = custom_parsers.get(type(value))
    if found is not None:
        return found
    return next((p for t, p in custom_parsers.items() if isinstance(value, t)), None)


def is_namedtuple(value: Any) -> bool:
    """Whether a value is an instance of a named tuple class."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_numbered(value: Any) -> bool:
    """Whether a value is a list, a tuple or a queue."""
    return isinstance(value, _NUMBERED)


def is_dataclass(value: Any) -> bool:
    """Whether a value is an instance of a dataclass that holds tensors.

    One without tensors is a constant like any other object.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, (type, torch.nn.Module)):
        return False
    return _holds_tensor(value, set())


def is_mapping(value: Any) -> bool:
    """Whether a value is a dict, or a mapping of another type that holds tensors."""
    if isinstance(value, dict):
        return True
    return isinstance(value, Mapping) and _holds_tensor(value, set())


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name."""
    names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _holds_tensor(value: Any, seen: set[int]) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if id(value) in seen:  # refers to itself
        return False
    seen.add(id(value))
    items: Iterable[Any]
    if isinstance(value, _NUMBERED):
        items = value
    elif isinstance(value, Mapping):
        items = value.values()
    elif dataclasses.is_dataclass(value) and not isinstance(value, (type, torch.nn.Module)):
        items = fields_of(value).values()
    else:
        return parser_for(value) is not None
    return any(_holds_tensor(item, seen) for item in items)


def tensors_of(value: Any, path: str = "", out: list[Leaf] | None = None) -> list[Leaf]:
    """All tensors inside a structure, in a fixed order, appended to `out` if it is given."""
    out = [] if out is None else out
    if isinstance(value, torch.Tensor):
        out.append((path, value))
        return out
    parser = parser_for(value)
    if parser is not None:
        for i, leaf in enumerate(parser.yieldTensors(value)):
            out.append((f"{path}[{i}]", leaf))
    elif is_namedtuple(value):
        for field, item in zip(value._fields, value, strict=True):
            tensors_of(item, f"{path}.{field}", out)
    elif isinstance(value, _NUMBERED):
        for i, item in enumerate(value):
            tensors_of(item, f"{path}[{i}]", out)
    elif is_mapping(value):
        for key, item in value.items():
            tensors_of(item, f"{path}[{key!r}]" if path else str(key), out)
    elif is_dataclass(value):
        for name, item in fields_of(value).items():
            tensors_of(item, f"{path}.{name}", out)
    return out


def rebuild(value: Any, leaves: Iterator[Any]) -> Any:
    """The same structure with its tensors replaced, in order, by those of the iterator `leaves`."""
    if isinstance(value, torch.Tensor):
        return next(leaves)
    parser = parser_for(value)
    if parser is not None:
        return parser.reconstruct(value, leaves)
    if is_namedtuple(value):
        return type(value)(*[rebuild(v, leaves) for v in value])
    if isinstance(value, deque):
        return type(value)([rebuild(v, leaves) for v in value], value.maxlen)
    if isinstance(value, _NUMBERED):
        return type(value)([rebuild(v, leaves) for v in value])
    if is_mapping(value):
        return _mapping_like(value, {k: rebuild(v, leaves) for k, v in value.items()})
    if is_dataclass(value):
        # Not through its constructor, which may want, check or compute something else.
        result = copy.copy(value)
        for name, item in fields_of(value).items():
            object.__setattr__(result, name, rebuild(item, leaves))
        return result
    return value


def _mapping_like(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the type of ``value`` with other items."""
    kind: Any = type(value)
    if kind is dict:
        return items
    if isinstance(value, UserDict):
        result = copy.copy(value)
        result.data = items
        return result
    if hasattr(value, "default_factory"):
        return kind(value.default_factory, items)
    return kind(items)


def argument_leaves(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Leaf]:
    """Every tensor of a call, positional arguments first."""
    out: list[Leaf] = []
    for i, value in enumerate(args):
        tensors_of(value, f"args[{i}]", out)
    tensors_of(dict(kwargs), "", out)
    return out
