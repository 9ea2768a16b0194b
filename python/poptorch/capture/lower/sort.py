# SPDX-License-Identifier: Apache-2.0
"""Lowerings of sorting, selection by rank, search in sorted sequences and histograms."""

import torch

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Number, Type, Value, count, promote
from poptorch.capture.text.writer import Writer


def _sort(w: Writer, n: Results, x: Value, dim: int, descending: bool) -> list[Value]:
    return list(w.ops("sort", [x, dim, bool(descending)], n.types()))


@lower("sort")
def _(w: Writer, n: Results, x: Value, dim: int, descending: bool) -> list[Value]:
    return _sort(w, n, x, dim, descending)


@lower("sort.stable")
def _(
    w: Writer, n: Results, x: Value, stable: bool | None, dim: int, descending: bool
) -> list[Value]:
    return _sort(w, n, x, dim, descending)


def _register_median(name: str) -> None:
    @lower(name)
    def _(w: Writer, n: Results, x: Value) -> Value:
        size = count(x.shape)
        if not size:
            return w.full(float("nan"), n.dtype, n.shape)
        types: list[Type] = [(x.dtype, ()), (torch.int64, ())]
        return w.ops(name, [w.view(x, (size,)), 0, False], types)[0]


_register_median("median")
_register_median("nanmedian")


# Search


def _search(
    w: Writer, n: Results, sequence: Value, values: Value, right: bool, sorter: Value | None = None
) -> Value:
    dtype = promote([sequence, values])
    if dtype is torch.bool and values.dtype is not torch.bool:
        raise MissingRow("searchsorted")
    if sorter is not None:
        args = [sequence, len(sequence.shape) - 1, sorter, False]
        sequence = w.op("gather", args, sequence.dtype, sequence.shape)
    args = [w.cast(sequence, dtype), w.cast(values, dtype), bool(right), n.dtype is torch.int32]
    return w.op("searchsorted", args, n.dtype, values.shape)


@lower("searchsorted.Tensor")
def _(
    w: Writer,
    n: Results,
    sequence: Value,
    values: Value,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: Value | None,
) -> Value:
    return _search(w, n, sequence, values, right or side == "right", sorter)


@lower("searchsorted.Scalar")
def _(
    w: Writer,
    n: Results,
    sequence: Value,
    value: Number,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: Value | None,
) -> Value:
    values = w.full(value, promote([sequence, value]), ())
    return _search(w, n, sequence, values, right or side == "right", sorter)


@lower("bucketize.Tensor")
def _(
    w: Writer, n: Results, values: Value, boundaries: Value, out_int32: bool, right: bool
) -> Value:
    return _search(w, n, boundaries, values, right)


@lower("bucketize.Scalar")
def _(
    w: Writer, n: Results, value: Number, boundaries: Value, out_int32: bool, right: bool
) -> Value:
    values = w.full(value, promote([boundaries, value]), ())
    return _search(w, n, boundaries, values, right)


def _is_in(w: Writer, n: Results, elements: Value, test: Value, invert: bool) -> Value:
    """A few test elements are compared each with all; many are sorted and searched."""
    size = count(test.shape)
    if not size:
        return w.full(invert, torch.bool, n.shape)
    dtype = torch.promote_types(elements.dtype, test.dtype)
    elements, test = w.cast(elements, dtype), w.view(w.cast(test, dtype), (size,))
    if size <= _FEW_TESTS:
        found = elements.equals(w.select(test, 0, 0))
        for i in range(1, size):
            found = found | elements.equals(w.select(test, 0, i))
    else:
        types = [(dtype, (size,)), (torch.int64, (size,))]
        test = w.ops("sort", [test, 0, False], types)[0]
        found = w.op("isin", [test, elements], torch.bool, elements.shape)
    return ~found if invert else found


_FEW_TESTS = 8


@lower("isin.Tensor_Tensor")
def _(
    w: Writer, n: Results, elements: Value, test: Value, assume_unique: bool, invert: bool
) -> Value:
    return _is_in(w, n, elements, test, invert)


@lower("isin.Tensor_Scalar")
def _(
    w: Writer, n: Results, elements: Value, test: Number, assume_unique: bool, invert: bool
) -> Value:
    return w.pointwise("ne" if invert else "eq", elements, test)


@lower("isin.Scalar_Tensor")
def _(
    w: Writer, n: Results, element: Number, test: Value, assume_unique: bool, invert: bool
) -> Value:
    return _is_in(w, n, w.full(element, promote([test, element]), ()), test, invert)


# Histograms


@lower("histc")
def _(w: Writer, n: Results, x: Value, bins: int, low: Number, high: Number) -> Value:
    if not x.dtype.is_floating_point:
        raise MissingRow("histc")
    return w.op("histc", [x, bins, float(low), float(high)], n.dtype, n.shape)


@lower("tessera::bincount")
def _(w: Writer, n: Results, x: Value, weights: Value | None, size: int) -> Value:
    weights = None if weights is None else w.cast(weights, n.dtype)
    return w.op("bincount", [x, weights, size], n.dtype, n.shape)
