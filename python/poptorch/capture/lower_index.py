# SPDX-License-Identifier: Apache-2.0
"""Lowerings of gathers, scatters, indexing, embeddings and what masks select."""

import math

import torch

from .lowering import lower
from .writer import MissingRow, Value, count, literal_of


def _vector(w, x):
    """A scalar as a vector of one element."""
    return x if x.shape else w.view(x, (1,))


def _flat(w, x):
    return w.view(x, (count(x.shape),))


# Along one dim


def _lines(w, name, x, dim, index, *rest):
    """A row of gather or scatter; scalars count as vectors."""
    shape = index.shape if name == "gather" else x.shape
    if not count(index.shape):
        return w.full(0, x.dtype, shape) if name == "gather" else x
    rest = [_vector(w, r) if isinstance(r, Value) else r for r in rest]
    index = _vector(w, index)
    dim %= max(1, len(x.shape))
    x = _vector(w, x)
    out = index.shape if name == "gather" else x.shape
    return w.view(w.op(name, [x, dim, index, *rest], x.dtype, out), shape)


@lower("gather")
def _(w, n, x, dim, index, sparse_grad):
    return _lines(w, "gather", x, dim, index)


@lower("scatter_add")
def _(w, n, x, dim, index, src):
    return _lines(w, "scatter_add", x, dim, index, src)


@lower("scatter.src")
def _(w, n, x, dim, index, src):
    return _lines(w, "scatter.src", x, dim, index, src)


@lower("scatter.value")
def _(w, n, x, dim, index, value):
    return _lines(w, "scatter.value", x, dim, index, literal_of(value, x.dtype))


_REDUCE = {"add": "sum", "multiply": "prod"}


@lower("scatter.reduce")
def _(w, n, x, dim, index, src, reduce):
    return _lines(w, "scatter_reduce", x, dim, index, src, _REDUCE[reduce])


@lower("scatter.value_reduce")
def _(w, n, x, dim, index, value, reduce):
    src = w.expand(w.full(value, x.dtype, ()), index.shape)
    return _lines(w, "scatter_reduce", x, dim, index, src, _REDUCE[reduce])


def _neutral(reduce, dtype):
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


def _mean(w, total, number):
    """total / number in the type of the total, where no element counts as one."""
    number = w.pointwise("maximum", number, 1)
    if total.dtype.is_floating_point:
        return w.cast(total / w.cast(number, total.dtype), total.dtype)
    return w.pointwise("div_floor", total, number)


@lower("scatter_reduce.two")
def _(w, n, x, dim, index, src, reduce, include_self):
    if not count(index.shape):
        return x
    if not include_self:
        x = _lines(w, "scatter.value", x, dim, index, _neutral(reduce, x.dtype))
    if reduce != "mean":
        return _lines(w, "scatter_reduce", x, dim, index, src, reduce)
    dtype = x.dtype if not x.dtype.is_floating_point else torch.float32
    number = w.full(int(include_self), dtype, x.shape)
    ones = w.expand(w.full(1, dtype, ()), index.shape)
    number = _lines(w, "scatter_add", number, dim, index, ones)
    return _mean(w, _lines(w, "scatter_add", x, dim, index, src), number)


# Whole blocks along one dim


def _along(w, name, x, dim, index, source, *rest):
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
def _(w, n, x, dim, index):
    index = _flat(w, index)
    dim %= max(1, len(x.shape))
    if not count(index.shape):
        return w.full(0, x.dtype, n.shape)
    return w.op("index_select", [x, dim, index], x.dtype, n.shape)


@lower("index_add")
def _(w, n, x, dim, index, source, alpha):
    if alpha != 1:
        source = source * alpha
    return _along(w, "index_add", x, dim, index, w.cast(source, x.dtype))


@lower("index_copy")
def _(w, n, x, dim, index, source):
    return _along(w, "index_copy", x, dim, index, source)


@lower("index_fill.int_Scalar", "index_fill.int_Tensor")
def _(w, n, x, dim, index, value):
    value = w.cast(value, x.dtype) if isinstance(value, Value) else w.full(value, x.dtype, ())
    return _along(w, "index_fill", x, dim, index, value)


@lower("index_reduce")
def _(w, n, x, dim, index, source, reduce, include_self):
    if not count(index.shape):
        return x
    if not include_self:
        start = w.full(_neutral(reduce, x.dtype), x.dtype, ())
        x = _along(w, "index_fill", x, dim, index, start)
    if reduce != "mean":
        return _along(w, "index_reduce", x, dim, index, source, reduce)
    total = _along(w, "index_add", x, dim, index, source)
    dim %= max(1, len(x.shape))
    size = x.shape[dim] if x.shape else 1
    dtype = x.dtype if not x.dtype.is_floating_point else torch.float32
    number = w.full(int(include_self), dtype, (size,))
    number = _along(w, "index_add", number, 0, index, w.full(1, dtype, ()))
    number = w.view(number, (size,) + (1,) * (len(x.shape) - dim - 1) if x.shape else ())
    return _mean(w, total, number)


# Index tensors for several dims


def _is_mask(index):
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _no_masks(indices):
    if any(map(_is_mask, indices)):
        raise MissingRow("index by mask")


@lower("index", "_unsafe_index")
def _(w, n, x, indices):
    _no_masks(indices)
    given = [d for d, i in enumerate(indices) if i is not None]
    if not count(n.shape):
        return w.full(0, x.dtype, n.shape)
    if not given:
        return x
    return w.op("index", [x, indices], x.dtype, n.shape)


def _where_mask(w, x, mask, values, accumulate):
    """x[mask] = values, for values that do not depend on the place in the mask."""
    rank = len(mask.shape)
    mask = w.view(w.cast(mask, torch.bool), mask.shape + (1,) * (len(x.shape) - rank))
    if len(values.shape) > len(x.shape) - rank:
        values = w.view(values, values.shape[1:])
    return w.where(mask, x + values if accumulate else values, x)


@lower("index_put", "_unsafe_index_put")
def _(w, n, x, indices, values, accumulate):
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


def _clamped(w, x, indices):
    """Indices that the mask makes harmless wherever they point."""

    def clamp(index, size):
        low = w.pointwise("maximum", index, -size)
        return w.pointwise("minimum", low, size - 1)

    return [None if i is None else clamp(i, s) for i, s in zip(indices, x.shape, strict=False)]


@lower("_unsafe_masked_index")
def _(w, n, x, mask, indices, fill):
    if not count(x.shape) or not count(n.shape):
        return w.full(fill, x.dtype, n.shape)
    found = w.op("index", [x, _clamped(w, x, indices)], x.dtype, n.shape)
    return w.where(mask, found, literal_of(fill, x.dtype))


@lower("_unsafe_masked_index_put_accumulate")
def _(w, n, x, mask, indices, values):
    if not count(x.shape) or not count(values.shape):
        return x
    values = w.where(mask, values, literal_of(0, x.dtype))
    return w.op("index_put", [x, _clamped(w, x, indices), values, True], x.dtype, n.shape)


@lower("take")
def _(w, n, x, index):
    if not count(index.shape):
        return w.full(0, x.dtype, n.shape)
    return w.op("take", [_flat(w, x), index], x.dtype, n.shape)


@lower("put")
def _(w, n, x, index, values, accumulate):
    if not count(index.shape):
        return x
    flat = _flat(w, x)
    args = [flat, index, w.view(values, index.shape), bool(accumulate)]
    return w.view(w.op("put", args, x.dtype, flat.shape), x.shape)


# Masks


@lower("masked_scatter")
def _(w, n, x, mask, source):
    x, mask = w.expand(x, n.shape), w.expand(w.cast(mask, torch.bool), n.shape)
    return w.op("masked_scatter", [x, mask, _flat(w, source)], x.dtype, n.shape)


@lower("masked_scatter_backward")
def _(w, n, grad, mask, sizes):
    mask = w.expand(w.cast(mask, torch.bool), grad.shape)
    size = count(n.shape)
    if not size:
        return w.full(0, grad.dtype, n.shape)
    return w.view(w.op("masked_compact", [grad, mask, size], grad.dtype, (size,)), n.shape)


@lower("nonzero_static")
def _(w, n, x, size, fill_value):
    if not count(n.shape):
        return w.full(0, n.dtype, n.shape)
    mask = x if x.dtype is torch.bool else w.pointwise("ne", x, literal_of(0, x.dtype))
    return w.op("nonzero_static", [mask, size, fill_value], n.dtype, n.shape)


@lower("repeat_interleave.Tensor")
def _(w, n, repeats, output_size):
    if not count(n.shape):
        return w.full(0, n.dtype, n.shape)
    return w.op("repeat_interleave", [repeats, n.shape[0]], n.dtype, n.shape)


# Embeddings


@lower("embedding")
def _(w, n, weight, indices, *_rest):
    if not count(n.shape):
        return w.full(0, n.dtype, n.shape)
    return w.op("embedding", [weight, indices], weight.dtype, n.shape)


@lower("embedding_dense_backward")
def _(w, n, grad, indices, rows, padding_idx, by_frequency):
    args = [grad, indices, rows, padding_idx, by_frequency]
    return w.op("embedding_dense_backward", args, grad.dtype, n.shape)


@lower("embedding_renorm")
def _(w, n, weight, indices, max_norm, norm_type):
    """Only the rows that are looked up; a row that is looked up twice is written twice."""
    if not count(indices.shape):
        return weight
    indices = _flat(w, indices)
    rows = w.op("embedding", [weight, indices], weight.dtype, (*indices.shape, weight.shape[1]))
    wide = w.cast(rows, torch.float32)
    if norm_type == 2:
        norm = w.sum(wide.square(), [1], True).sqrt()
    elif norm_type == math.inf:
        norm = w.reduce("amax", wide.abs(), [1], True)
    else:
        total = w.sum(w.pointwise("pow", wide.abs(), float(norm_type)), [1], True)
        norm = w.pointwise("pow", total, 1.0 / norm_type)
    scaled = w.cast(wide * (max_norm / (norm + 1e-7)), weight.dtype)
    rows = w.where(norm > float(max_norm), scaled, rows)
    return w.op("index_copy", [weight, 0, indices, rows], weight.dtype, weight.shape)


@lower("_embedding_bag", "_embedding_bag_forward_only")
def _(w, n, weight, indices, offsets, _by_freq, mode, _sparse, weights, include_last, padding):
    if weights is not None:
        weights = w.cast(weights, weight.dtype)
    (_, shape), (dtype, places), (_, bags), (_, maxima) = n.types()
    types = [(weight.dtype, shape), (indices.dtype, indices.shape), (indices.dtype, bags)]
    types.append((indices.dtype, shape if mode == 2 else (0, shape[1])))
    args = [weight, indices, offsets, mode, weights, padding, bool(include_last)]
    out, bag_of, sizes, rows = w.ops("embedding_bag", args, types)
    bag_of = w.cast(bag_of, dtype) if places == indices.shape else w.full(0, dtype, places)
    rows = w.cast(rows, dtype) if mode == 2 else w.full(0, dtype, maxima)
    return [out, bag_of, w.cast(sizes, dtype), rows]


def _bag_grad(w, n, grad, indices, offsets, maxima, rows, by_freq, mode, weights, padding):
    if weights is not None:
        weights = w.cast(weights, grad.dtype)
    maxima = maxima if mode == 2 else None
    args = [grad, indices, offsets, rows, mode, weights, by_freq, padding, maxima]
    return w.op("embedding_bag_grad", args, grad.dtype, n.shape)


@lower("_embedding_bag_backward")
def _(w, n, grad, indices, offsets, _o2b, _sizes, maxima, rows, freq, mode, sparse, weights, pad):
    if sparse:
        raise MissingRow("sparse gradient")
    return _bag_grad(w, n, grad, indices, offsets, maxima, rows, freq, mode, weights, pad)


@lower("_embedding_bag_per_sample_weights_backward")
def _(w, n, grad, weight, indices, offsets, _offset2bag, mode, padding):
    args = [grad, weight, indices, offsets, padding]
    return w.op("embedding_bag_weight_grad", args, n.dtype, n.shape)
