# SPDX-License-Identifier: Apache-2.0
"""Batches and results taken apart into tensors and texts, and put together again."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch


def mapped(value: Any, change: Callable[[Any], Any], is_leaf: Any = None) -> Any:
    """``value`` with every leaf changed; containers are copied.

    Args:
        value: of tensors and other leaves in lists, tuples, dicts and dataclasses.
        change: called with each leaf.
        is_leaf: tells of a container whether it is a leaf too.
    """
    if is_leaf is not None and is_leaf(value):
        return change(value)
    if isinstance(value, Mapping):
        items = {key: mapped(item, change, is_leaf) for key, item in value.items()}
        kind: Callable[..., Any] = type(value)
        if kind is dict:
            return items
        if hasattr(value, "default_factory"):
            return kind(value.default_factory, items)
        return kind(items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change, is_leaf) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(item, change, is_leaf) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f for f in dataclasses.fields(value) if f.init]
        return dataclasses.replace(
            value, **{f.name: mapped(getattr(value, f.name), change, is_leaf) for f in fields}
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


class Text(str):
    """A text of a batch while a step is captured: what the step lets out of it is found again."""

    column: int
    position: int | None
    length: int


class Column:
    """Where the texts number ``index`` of a batch belong, or the one at ``position`` of them."""

    def __init__(self, index: int, position: int | None = None) -> None:
        self.index = index
        self.position = position


def is_texts(value: Any) -> bool:
    """Whether a leaf is a text, or a container a list of one text per sample."""
    if type(value) in (list, tuple):
        return len(value) > 0 and all(type(item) is str for item in value)
    return type(value) is str


def marked_texts(index: int, texts: Any) -> Any:
    """Texts of a batch as :class:`Text`, which remember where they come from."""

    def mark(text: str, position: int | None) -> Text:
        result = Text(text)
        result.column, result.position, result.length = index, position, len(texts)
        return result

    if type(texts) is str:
        return mark(texts, None)
    return type(texts)(mark(text, position) for position, text in enumerate(texts))


def _is_whole_column(value: Any) -> bool:
    return (
        type(value) in (list, tuple)
        and len(value) > 0
        and all(
            type(item) is Text and (item.column, item.position) == (value[0].column, position)
            for position, item in enumerate(value)
        )
        and value[0].length == len(value)
    )


def taken(value: Any, into: list[torch.Tensor]) -> Any:
    """``value`` with slots for its tensors, which are appended to ``into``, and for texts."""

    def take(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            into.append(leaf)
            return Slot(len(into) - 1)
        if type(leaf) is Text:
            return Column(leaf.column, leaf.position)
        return Column(leaf[0].column) if _is_whole_column(leaf) else leaf

    return mapped(value, take, _is_whole_column)


def filled(value: Any, tensors: Any, columns: Any = ()) -> Any:
    """The opposite of :func:`taken`."""

    def fill(leaf: Any) -> Any:
        if type(leaf) is Slot:
            return tensors[leaf.index]
        if type(leaf) is Column:
            column = columns[leaf.index]
            return column if leaf.position is None else column[leaf.position]
        return leaf

    return mapped(value, fill)
