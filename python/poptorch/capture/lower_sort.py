# SPDX-License-Identifier: Apache-2.0
"""Lowerings of sorting, selection by rank, search in sorted sequences and histograms."""

import torch

from .lowering import lower
from .writer import MissingRow, count, promote


def _sort(w, n, x, dim, descending):
    return list(w.ops("sort", [x, dim, bool(descending)], n.types()))


@lower("sort")
def _(w, n, x, dim, descending):
    return _sort(w, n, x, dim, descending)


@lower("sort.stable")
def _(w, n, x, stable, dim, descending):
    return _sort(w, n, x, dim, descending)


def _register_ranked(name):
    row = name.partition(".")[0]
    lower(name)(lambda w, n, *args: list(w.ops(row, list(args), n.types())))


for _name in ("topk", "kthvalue", "mode", "median.dim", "nanmedian.dim"):
    _register_ranked(_name)


def _register_median(name):
    @lower(name)
    def _(w, n, x):
        size = count(x.shape)
        if not size:
            return w.full(float("nan"), n.dtype, n.shape)
        types = [(x.dtype, ()), (torch.int64, ())]
        return w.ops(name, [w.view(x, (size,)), 0, False], types)[0]


_register_median("median")
_register_median("nanmedian")


# Search


def _search(w, n, sequence, values, right, sorter=None):
    dtype = promote([sequence, values])
    if dtype is torch.bool and values.dtype is not torch.bool:
        raise MissingRow("searchsorted")
    if sorter is not None:
        args = [sequence, len(sequence.shape) - 1, sorter, False]
        sequence = w.op("gather", args, sequence.dtype, sequence.shape)
    args = [w.cast(sequence, dtype), w.cast(values, dtype), bool(right), n.dtype is torch.int32]
    return w.op("searchsorted", args, n.dtype, values.shape)


@lower("searchsorted.Tensor")
def _(w, n, sequence, values, out_int32, right, side, sorter):
    return _search(w, n, sequence, values, right or side == "right", sorter)


@lower("searchsorted.Scalar")
def _(w, n, sequence, value, out_int32, right, side, sorter):
    value = w.full(value, promote([sequence, value]), ())
    return _search(w, n, sequence, value, right or side == "right", sorter)


@lower("bucketize.Tensor")
def _(w, n, values, boundaries, out_int32, right):
    return _search(w, n, boundaries, values, right)


@lower("bucketize.Scalar")
def _(w, n, value, boundaries, out_int32, right):
    value = w.full(value, promote([boundaries, value]), ())
    return _search(w, n, boundaries, value, right)


def _is_in(w, n, elements, test, invert):
    """A few test elements are compared one by one; many are sorted and searched."""
    size = count(test.shape)
    if not size:
        return w.full(invert, torch.bool, n.shape)
    dtype = torch.promote_types(elements.dtype, test.dtype)
    elements, test = w.cast(elements, dtype), w.view(w.cast(test, dtype), (size,))
    if size <= _FEW_TESTS:
        found = None
        for i in range(size):
            same = elements.equals(w.select(test, 0, i))
            found = same if found is None else found | same
    else:
        types = [(dtype, (size,)), (torch.int64, (size,))]
        test = w.ops("sort", [test, 0, False], types)[0]
        found = w.op("isin", [test, elements], torch.bool, elements.shape)
    return ~found if invert else found


_FEW_TESTS = 8


@lower("isin.Tensor_Tensor")
def _(w, n, elements, test, assume_unique, invert):
    return _is_in(w, n, elements, test, invert)


@lower("isin.Tensor_Scalar")
def _(w, n, elements, test, assume_unique, invert):
    return w.pointwise("ne" if invert else "eq", elements, test)


@lower("isin.Scalar_Tensor")
def _(w, n, element, test, assume_unique, invert):
    return _is_in(w, n, w.full(element, promote([test, element]), ()), test, invert)


# Histograms


@lower("histc")
def _(w, n, x, bins, low, high):
    if not x.dtype.is_floating_point:
        raise MissingRow("histc")
    return w.op("histc", [x, bins, float(low), float(high)], n.dtype, n.shape)


@lower("tessera::bincount")
def _(w, n, x, weights, size):
    weights = None if weights is None else w.cast(weights, n.dtype)
    return w.op("bincount", [x, weights, size], n.dtype, n.shape)
