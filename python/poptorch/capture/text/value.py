# SPDX-License-Identifier: Apache-2.0
"""Values of the text form, the numbers that are operands like them, and how both are typed."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from poptorch.base.dtypes import DTYPE_NAMES

if TYPE_CHECKING:
    from poptorch.capture.text.writer import Writer

Number = int | float
Shape = tuple[int, ...]
Type = tuple[torch.dtype, Shape]


class MissingRow(Exception):
    """The core has no row for what a lowering wants; the op becomes a host call."""


class Value:
    """A typed SSA value; arithmetic on values appends pointwise ops to the graph."""

    __slots__ = ("dtype", "kind", "literal", "name", "number", "shape", "tensor", "writer")

    def __init__(
        self,
        writer: "Writer",
        dtype: torch.dtype,
        shape: Iterable[int],
        kind: str = "op",
        name: str = "",
    ) -> None:
        self.writer = writer
        self.dtype = dtype
        self.shape: Shape = tuple(shape)
        self.kind = kind
        self.name = name
        self.literal: Number | None = None  # of a constant of rank 0
        self.tensor: torch.Tensor | None = None  # of a constant
        self.number = -1  # in the text; negative for what the text does not need

    def __repr__(self) -> str:
        return f"%{self.number}:{DTYPE_NAMES[self.dtype]}{list(self.shape)}"

    def __add__(self, other: "Operand") -> "Value":
        return self.writer.pointwise("add", self, other)

    def __radd__(self, other: Number) -> "Value":
        return self.writer.pointwise("add", other, self)

    def __sub__(self, other: "Operand") -> "Value":
        return self.writer.pointwise("sub", self, other)

    def __rsub__(self, other: Number) -> "Value":
        return self.writer.pointwise("sub", other, self)

    def __mul__(self, other: "Operand") -> "Value":
        return self.writer.pointwise("mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: "Operand") -> "Value":
        return self.writer.pointwise("div", self, other)

    def __rtruediv__(self, other: Number) -> "Value":
        return self.writer.pointwise("div", other, self)

    def __neg__(self) -> "Value":
        return self.writer.pointwise("neg", self)

    def __gt__(self, other: "Operand") -> "Value":
        return self.writer.pointwise("gt", self, other)

    def __ge__(self, other: "Operand") -> "Value":
        return self.writer.pointwise("ge", self, other)

    def __lt__(self, other: "Operand") -> "Value":
        return self.writer.pointwise("lt", self, other)

    def __le__(self, other: "Operand") -> "Value":
        return self.writer.pointwise("le", self, other)

    def __and__(self, other: "Value") -> "Value":
        return self.writer.pointwise("logical_and", self, other)

    def __or__(self, other: "Value") -> "Value":
        return self.writer.pointwise("logical_or", self, other)

    def __invert__(self) -> "Value":
        return self.writer.pointwise("logical_not", self)

    def equals(self, other: "Operand") -> "Value":
        return self.writer.pointwise("eq", self, other)

    def __getattr__(self, name: str) -> Callable[..., "Value"]:
        # x.exp(), x.tanh(), ...: every pointwise row of one argument.
        if name in self.writer.rows:
            return functools.partial(self.writer.pointwise, name, self)
        raise AttributeError(name)


Operand = Value | Number


def count(shape: Iterable[int]) -> int:
    """Number of elements of a shape."""
    return math.prod(shape)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape several shapes broadcast to."""
    rank = max(map(len, shapes))
    out = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                assert out[i] in (1, size), f"shapes {shapes} do not broadcast"
                out[i] = size
    return tuple(out)


def _category(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 0
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else 1


def _number_dtype(x: Number) -> torch.dtype:
    if isinstance(x, bool):
        return torch.bool
    return torch.int64 if isinstance(x, int) else torch.get_default_dtype()


def promote(operands: Sequence[Operand]) -> torch.dtype:
    """torch's type promotion: within a category, tensors of rank 0 and numbers give way."""
    levels: list[torch.dtype | None] = [None, None, None]  # with dims, rank 0, numbers
    for x in operands:
        if isinstance(x, Value):
            dtype, level = x.dtype, 0 if x.shape else 1
        else:
            dtype, level = _number_dtype(x), 2
        known = levels[level]
        levels[level] = dtype if known is None else torch.promote_types(known, dtype)
    found = [dtype for dtype in levels if dtype is not None]
    result = found[0]
    for dtype in found[1:]:
        if _category(dtype) > _category(result):
            result = torch.promote_types(result, dtype)
    return result


def literal_of(x: Number, dtype: torch.dtype) -> Number:
    """A Python number as a literal of a type."""
    if dtype is torch.bool:
        return bool(x)
    return float(x) if dtype.is_floating_point else int(x)
