# SPDX-License-Identifier: Apache-2.0
"""Batches and results taken apart into tensors and put together again."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with every leaf changed; containers are copied."""
    if isinstance(value, Mapping):
        items = {key: mapped(item, change) for key, item in value.items()}
        if type(value) is dict:
            return items
        if hasattr(value, "default_factory"):
            return type(value)(value.default_factory, items)
        return type(value)(items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(item, change) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f for f in dataclasses.fields(value) if f.init]
        return dataclasses.replace(
            value, **{f.name: mapped(getattr(value, f.name), change) for f in fields}
        )
    return change(value)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors inside, in a fixed order."""
    if type(value) in (list, tuple) and all(type(item) is torch.Tensor for item in value):
        return list(value)
    found: list[torch.Tensor] = []
    mapped(value, lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None)
    return found


class Slot:
    """Where tensor number ``index`` of a flat list belongs; a leaf, and so no dataclass."""

    def __init__(self, index: int) -> None:
        self.index = index


def taken(value: Any, into: list[torch.Tensor]) -> Any:
    """``value`` with slots in place of its tensors, which are appended to ``into``."""

    def take(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        into.append(leaf)
        return Slot(len(into) - 1)

    return mapped(value, take)


def filled(value: Any, tensors: Any) -> Any:
    """The opposite of :func:`taken`."""
    return mapped(value, lambda leaf: tensors[leaf.index] if isinstance(leaf, Slot) else leaf)
