# SPDX-License-Identifier: Apache-2.0
"""Lowerings of gathers, scatters, indexing, embeddings and what masks select."""

import math

import torch

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Number, Operand, Value, count, literal_of
from poptorch.capture.text.writer import Writer


def _vector(w: Writer, x: Value) -> Value:
    """A scalar as a vector of one element."""
    return x if x.shape else w.view(x, (1,))


def _flat(w: Writer, x: Value) -> Value:
    return w.view(x, (count(x.shape),))


# Elements along one dim


def _elements(w: Writer, name: str, x: Value, dim: int, index: Value, *rest: object) -> Value:
    """A row that gathers or scatters elements along a dim; scalars count as vectors."""
    shape = index.shape if name == "gather" else x.shape
    if not count(index.shape):
        return w.full(0, x.dtype, shape) if name == "gather" else x
    others = [_vector(w, r) if isinstance(r, Value) else r for r in rest]
    index = _vector(w, index)
    dim %= max(1, len(x.shape))
    x = _vector(w, x)
    out = index.shape if name == "gather" else x.shape
    return w.view(w.op(name, [x, dim, index, *others], x.dtype, out), shape)


@lower("gather")
def _(w: Writer, n: Results, x: Value, dim: int, index: Value, sparse_grad: bool) -> Value:
    return _elements(w, "gather", x, dim, index)


@lower("scatter_add")
def _(w: Writer, n: Results, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _elements(w, "scatter_add", x, dim, index, src)


@lower("scatter.src")
def _(w: Writer, n: Results, x: Value, dim: int, index: Value, src: Value) -> Value:
    return _elements(w, "scatter.src", x, dim, index, src)


@lower("scatter.value")
def _(w: Writer, n: Results, x: Value, dim: int, index: Value, value: Number) -> Value:
    return _elements(w, "scatter.value", x, dim, index, literal_of(value, x.dtype))


_REDUCE = {"add": "sum", "multiply": "prod"}


@lower("scatter.reduce")
def _(w: Writer, n: Results, x: Value, dim: int, index: Value, src: Value, reduce: str) -> Value:
    return _elements(w, "scatter_reduce", x, dim, index, src, _REDUCE[reduce])


@lower("scatter.value_reduce")
def _(w: Writer, n: Results, x: Value, dim: int, index: Value, value: Number, reduce: str) -> Value:
    src = w.expand(w.full(value, x.dtype, ()), index.shape)
    return _elements(w, "scatter_reduce", x, dim, index, src, _REDUCE[reduce])


def _neutral(reduce: str, dtype: torch.dtype) -> Number:
    """What a reduction starts from."""
    if reduce in ("sum", "mean"):
        return literal_of(0, dtype)
    if reduce == "prod":
        return literal_of(1, dtype)
    if dtype is torch.bool:
        return reduce == "amin"
    if dtype.is_floating_point:
        return math.inf if reduce == "amin" else -math.inf
    return torch.iinfo(dtype).max if reduce == "amin" else torch.iinfo(dtype).min


def _mean(w: Writer, total: Value, number: Value) -> Value:
    """total / number in the type of the total, where no element counts as one."""
    number = w.pointwise("maximum", number, 1)
    if total.dtype.is_floating_point:
        return w.cast(total / w.cast(number, total.dtype), total.dtype)
    return w.pointwise("floor_divide", total, number)


@lower("scatter_reduce.two")
def _(
    w: Writer,
    n: Results,
    x: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    include_self: bool,
) -> Value:
    if not count(index.shape):
        return x
    if not include_self:
        x = _elements(w, "scatter.value", x, dim, index, _neutral(reduce, x.dtype))
    if reduce != "mean":
        return _elements(w, "scatter_reduce", x, dim, index, src, reduce)
    dtype = x.dtype if not x.dtype.is_floating_point else torch.float32
    number = w.full(int(include_self), dtype, x.shape)
    ones = w.expand(w.full(1, dtype, ()), index.shape)
    number = _elements(w, "scatter_add", number, dim, index, ones)
    return _mean(w, _elements(w, "scatter_add", x, dim, index, src), number)


# Slices along one dim


def _slices(
    w: Writer, name: str, x: Value, dim: int, index: Value, source: Value, *rest: object
) -> Value:
    """A row that combines the slices of `source` with those of x that the index names."""
    index = _flat(w, index)
    if not count(index.shape):
        return x
    shape = x.shape
    dim %= max(1, len(shape))
    x = _vector(w, x)
    if source.shape:
        source = w.view(source, (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]))
    return w.view(w.op(name, [x, dim, index, source, *rest], x.dtype, x.shape), shape)


@lower("index_select")
def _(w: Writer, n: Results, x: Value, dim: int, index: Value) -> Value:
    index = _flat(w, index)
    dim %= max(1, len(x.shape))
    if not count(index.shape):
        return w.full(0, x.dtype, n.shape)
    return w.op("index_select", [x, dim, index], x.dtype, n.shape)


@lower("index_add")
def _(
    w: Writer, n: Results, x: Value, dim: int, index: Value, source: Value, alpha: Number
) -> Value:
    if alpha != 1:
        source = source * alpha
    return _slices(w, "index_add", x, dim, index, w.cast(source, x.dtype))


@lower("index_copy")
def _(w: Writer, n: Results, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _slices(w, "index_copy", x, dim, index, source)


@lower("index_fill.int_Scalar", "index_fill.int_Tensor")
def _(w: Writer, n: Results, x: Value, dim: int, index: Value, value: Operand) -> Value:
    fill = w.cast(value, x.dtype) if isinstance(value, Value) else w.full(value, x.dtype, ())
    return _slices(w, "index_fill", x, dim, index, fill)


@lower("index_reduce")
def _(
    w: Writer,
    n: Results,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool,
) -> Value:
    if not count(index.shape):
        return x
    if not include_self:
        start = w.full(_neutral(reduce, x.dtype), x.dtype, ())
        x = _slices(w, "index_fill", x, dim, index, start)
    if reduce != "mean":
        return _slices(w, "index_reduce", x, dim, index, source, reduce)
    total = _slices(w, "index_add", x, dim, index, source)
    dim %= max(1, len(x.shape))
    size = x.shape[dim] if x.shape else 1
    dtype = x.dtype if not x.dtype.is_floating_point else torch.float32
    number = w.full(int(include_self), dtype, (size,))
    number = _slices(w, "index_add", number, 0, index, w.full(1, dtype, ()))
    number = w.view(number, (size,) + (1,) * (len(x.shape) - dim - 1) if x.shape else ())
    return _mean(w, total, number)


# Index tensors for several dims


def _is_mask(index: Value | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _no_masks(indices: list[Value | None]) -> None:
    if any(map(_is_mask, indices)):
        raise MissingRow("index by mask")


@lower("index", "_unsafe_index")
def _(w: Writer, n: Results, x: Value, indices: list[Value | None]) -> Value:
    _no_masks(indices)
    given = [d for d, i in enumerate(indices) if i is not None]
    if not count(n.shape):
        return w.full(0, x.dtype, n.shape)
    if not given:
        return x
    return w.op("index", [x, indices], x.dtype, n.shape)


def _where_mask(w: Writer, x: Value, mask: Value, values: Value, accumulate: bool) -> Value:
    """x[mask] = values, for values that are the same wherever the mask is set."""
    rank = len(mask.shape)
    mask = w.view(w.cast(mask, torch.bool), mask.shape + (1,) * (len(x.shape) - rank))
    if len(values.shape) > len(x.shape) - rank:
        values = w.view(values, values.shape[1:])
    return w.where(mask, x + values if accumulate else values, x)


@lower("index_put", "_unsafe_index_put")
def _(
    w: Writer,
    n: Results,
    x: Value,
    indices: list[Value | None],
    values: Value,
    accumulate: bool,
) -> Value:
    values = w.cast(values, x.dtype)
    if not count(values.shape) or not count(x.shape):
        return x
    given = [i for i in indices if i is not None]
    if len(given) == 1 and _is_mask(given[0]) and indices[0] is given[0]:
        mask = given[0]
        free = len(x.shape) - len(mask.shape)
        if len(values.shape) <= free or (len(values.shape) == free + 1 and values.shape[0] == 1):
            return _where_mask(w, x, mask, values, accumulate)
    _no_masks(indices)
    if not given:
        return w.expand(x + values if accumulate else values, x.shape)
    if any(not count(i.shape) for i in indices if i is not None):
        return x
    return w.op("index_put", [x, indices, values, bool(accumulate)], x.dtype, n.shape)


def _clamped(w: Writer, x: Value, indices: list[Value | None]) -> list[Value | None]:
    """Indices within bounds: those that were not are masked anyway."""

    def clamp(index: Value, size: int) -> Value:
        low = w.pointwise("maximum", index, -size)
        return w.pointwise("minimum", low, size - 1)

    sizes = x.shape[: len(indices)]
    return [None if i is None else clamp(i, s) for i, s in zip(indices, sizes, strict=True)]


@lower("_unsafe_masked_index")
def _(
    w: Writer, n: Results, x: Value, mask: Value, indices: list[Value | None], fill: Number
) -> Value:
    if not count(x.shape) or not count(n.shape):
        return w.full(fill, x.dtype, n.shape)
    found = w.op("index", [x, _clamped(w, x, indices)], x.dtype, n.shape)
    return w.where(mask, found, literal_of(fill, x.dtype))


@lower("_unsafe_masked_index_put_accumulate")
def _(
    w: Writer, n: Results, x: Value, mask: Value, indices: list[Value | None], values: Value
) -> Value:
    if not count(x.shape) or not count(values.shape):
        return x
    values = w.where(mask, values, literal_of(0, x.dtype))
    return w.op("index_put", [x, _clamped(w, x, indices), values, True], x.dtype, n.shape)


@lower("take")
def _(w: Writer, n: Results, x: Value, index: Value) -> Value:
    if not count(index.shape):
        return w.full(0, x.dtype, n.shape)
    return w.op("take", [_flat(w, x), index], x.dtype, n.shape)


@lower("put")
def _(w: Writer, n: Results, x: Value, index: Value, values: Value, accumulate: bool) -> Value:
    if not count(index.shape):
        return x
    flat = _flat(w, x)
    args = [flat, index, w.view(values, index.shape), bool(accumulate)]
    return w.view(w.op("put", args, x.dtype, flat.shape), x.shape)


# Masks


@lower("masked_scatter")
def _(w: Writer, n: Results, x: Value, mask: Value, source: Value) -> Value:
    x, mask = w.expand(x, n.shape), w.expand(w.cast(mask, torch.bool), n.shape)
    return w.op("masked_scatter", [x, mask, _flat(w, source)], x.dtype, n.shape)


@lower("masked_scatter_backward")
def _(w: Writer, n: Results, grad: Value, mask: Value, sizes: list[int]) -> Value:
    mask = w.expand(w.cast(mask, torch.bool), grad.shape)
    size = count(n.shape)
    if not size:
        return w.full(0, grad.dtype, n.shape)
    return w.view(w.op("masked_compact", [grad, mask, size], grad.dtype, (size,)), n.shape)


@lower("nonzero_static")
def _(w: Writer, n: Results, x: Value, size: int, fill_value: int) -> Value:
    if not count(n.shape):
        return w.full(0, n.dtype, n.shape)
    mask = x if x.dtype is torch.bool else w.pointwise("ne", x, literal_of(0, x.dtype))
    return w.op("nonzero_static", [mask, size, fill_value], n.dtype, n.shape)


@lower("repeat_interleave.Tensor")
def _(w: Writer, n: Results, repeats: Value, output_size: int | None) -> Value:
    if not count(n.shape):
        return w.full(0, n.dtype, n.shape)
    return w.op("repeat_interleave", [repeats, n.shape[0]], n.dtype, n.shape)
