# SPDX-License-Identifier: Apache-2.0
"""Elements of a dataset on their way through a ring: their tensors, and how these are arranged."""

import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.capture import structure
from poptorch.data.ring import Spec

#: In place of a number of rows: as many as the first element has.
ROWS_OF_FIRST = -1


@dataclass
class Form:
    """How the tensors of every batch are arranged, and what they are."""

    kind: type | None  # torch.Tensor, list, dict; None: a type with a parser
    keys: list[Any]  # of a dict
    specs: list[Spec]
    rows: int  # of the first element
    skeleton: bytes  # of a type with a parser: all but the tensors


def take_apart(element: Any) -> tuple[type | None, list[Any], list[torch.Tensor]]:
    """Kind, keys and tensors of an element."""
    parser = structure.custom_parsers.get(type(element))
    if parser is not None:
        return None, [], list(parser.yieldTensors(element))
    if isinstance(element, torch.Tensor):
        return torch.Tensor, [], [element]
    kind: type = type(element)
    keys: list[Any] = []
    tensors: list[Any] = []
    if isinstance(element, dict):
        kind, keys, tensors = dict, list(element), list(element.values())
    elif isinstance(element, (list, tuple)):
        kind, tensors = list, list(element)
    if not tensors or not all(isinstance(t, torch.Tensor) for t in tensors):
        inside = f" with {sorted({type(t).__name__ for t in tensors})}" if tensors else ""
        raise createPoptorchError(
            "AsynchronousDataAccessor expects data to be organised as a flat 1D container of "
            f"tensors, got {type(element).__name__}{inside}. Return a tensor, a list, tuple or "
            "dict of tensors, or an object of a type given to poptorch.registerCustomArgParser."
        )
    return kind, keys, tensors


class _SkeletonPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file, 5)
        self._indices = {id(tensor): index for index, tensor in enumerate(tensors)}

    def persistent_id(self, value: Any) -> int | None:
        return self._indices.get(id(value))


def skeleton_of(element: Any, tensors: list[torch.Tensor]) -> bytes:
    file = io.BytesIO()
    _SkeletonPickler(file, tensors).dump(element)
    return file.getvalue()


class SkeletonReader(pickle.Unpickler):
    """Reads what is left of an object without its tensors, and puts others in their place."""

    def __init__(self, text: bytes, tensors: list[torch.Tensor]) -> None:
        super().__init__(io.BytesIO(text))
        self._tensors = tensors

    def persistent_load(self, index: int) -> torch.Tensor:
        """The tensor that stands for the one taken out."""
        return self._tensors[index]


def iterate(dataset: Any) -> Iterator[Any]:
    if hasattr(dataset, "__iter__") or not hasattr(dataset, "__len__"):
        return iter(dataset)
    # Python would go on until an IndexError, which not every dataset raises.
    return (dataset[index] for index in range(len(dataset)))


def describe(kind: type | None, keys: list[Any], count: int) -> str:
    """An element in words."""
    name = "a custom type" if kind is None else kind.__name__
    return f"{name} of {keys or count}" if kind is not torch.Tensor else name


def common_rows(tensors: list[torch.Tensor]) -> int:
    """The number of rows that all tensors of a batch have."""
    rows = {tensor.shape[0] if tensor.dim() else -1 for tensor in tensors}
    if len(rows) != 1 or -1 in rows:
        raise createPoptorchError(
            "Batches can only be combined if all their tensors have the same number of rows, got "
            f"shapes {[list(t.shape) for t in tensors]}"
        )
    return rows.pop()
