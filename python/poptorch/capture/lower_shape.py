# SPDX-License-Identifier: Apache-2.0
"""Lowerings of views, fills, joins, gathers and scatters."""

import torch

from ._torch_private import without_modes
from .lowering import lower
from .writer import MissingRow, Value, count, literal_of

_FULL_END = 2**62


@lower("alias", "detach", "lift_fresh", "tessera::mark_loss")
def _(w, n, x, *_rest):
    return x


@lower("lift_fresh_copy", "clone", "_to_copy", "copy")
def _(w, n, x, *rest):
    source = rest[0] if rest and isinstance(rest[0], Value) else x  # copy(self, src)
    if source.literal is not None:
        return w.full(source.literal, n.dtype, n.shape)
    if source.dtype is not n.dtype:
        source = w.cast(source, n.dtype)
    elif source is x:
        source = w.op("clone", [x], x.dtype, x.shape)
    return w.expand(source, n.shape)


@lower("view", "_unsafe_view", "_reshape_alias", "view_copy")
def _(w, n, x, *_rest):
    if x.dtype is not n.dtype:
        raise MissingRow("view of another dtype")
    return w.view(x, n.shape)


@lower("expand", "expand_copy")
def _(w, n, x, *_rest):
    return w.expand(x, n.shape)


@lower("permute", "permute_copy")
def _(w, n, x, dims):
    return w.permute(x, [d % len(x.shape) for d in dims])


@lower("transpose", "transpose_copy", "t", "t_copy")
def _(w, n, x, a=0, b=1):
    rank = len(x.shape)
    if rank < 2 or a % rank == b % rank:
        return x
    return w.op("transpose", [x, a % rank, b % rank], x.dtype, n.shape)


@lower("unsqueeze", "unsqueeze_copy")
def _(w, n, x, dim):
    return w.unsqueeze(x, dim % (len(x.shape) + 1))


@lower("squeeze", "squeeze_copy")
def _(w, n, x, dims=None):
    rank = len(x.shape)
    dims = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = sorted({d % rank for d in dims if x.shape[d % rank] == 1}) if rank else []
    return w.op("squeeze", [x, gone], x.dtype, n.shape) if gone else x


@lower("select", "select_copy")
def _(w, n, x, dim, index):
    dim %= len(x.shape)
    return w.select(x, dim, index % x.shape[dim])


def _bounds(size, start, end):
    start = 0 if start is None else start + size if start < 0 else start
    end = size if end is None or end >= _FULL_END else end + size if end < 0 else end
    start = min(max(start, 0), size)
    return start, min(max(end, start), size)


@lower("slice", "slice_copy")
def _(w, n, x, dim, start, end, step):
    dim %= len(x.shape)
    return w.slice(x, dim, *_bounds(x.shape[dim], start, end), step)


@lower("unbind", "unbind_copy")
def _(w, n, x, dim):
    dim %= len(x.shape)
    return [w.select(x, dim, i) for i in range(x.shape[dim])]


@lower("split", "split_with_sizes", "unsafe_split", "split_copy", "split_with_sizes_copy")
def _(w, n, x, _sizes, dim):
    dim %= len(x.shape)
    out, at = [], 0
    for val in n.vals:
        out.append(w.slice(x, dim, at, at + val.shape[dim]))
        at += val.shape[dim]
    return out


@lower("as_strided", "as_strided_copy")
def _(w, n, x, size, stride, offset):
    dense, expected = 1, []
    for s in reversed(size):
        expected.insert(0, dense)
        dense *= s
    plain = all(a == b or s == 1 for a, b, s in zip(expected, stride, size, strict=False))
    if plain and not offset and count(size) == count(x.shape):
        return w.view(x, size)
    raise MissingRow("as_strided")


def _register_fill(names, value):
    for name in names.split():
        lower(name)(lambda w, n, *args: w.full(value, n.dtype, n.shape))


# Memory that torch leaves uninitialised is zero here: a program has no garbage to read.
_register_fill("zeros zeros_like new_zeros zero empty empty_like new_empty", 0)
_register_fill("empty_strided new_empty_strided", 0)
_register_fill("ones ones_like new_ones", 1)


@lower("scalar_tensor")
def _(w, n, value, *_rest):
    return w.full(value, n.dtype, n.shape)


@lower("full", "full_like", "new_full", "fill")
def _(w, n, first, *rest):
    value = rest[0] if not isinstance(rest[0], (list, tuple)) else rest[1]
    if isinstance(value, Value):
        if value.literal is None:
            return w.expand(w.cast(value, n.dtype), n.shape)
        value = value.literal
    return w.full(value, n.dtype, n.shape)


@lower("arange.start_step")
def _(w, n, start, end, step, *_rest):
    return w.arange(n.shape[0], start, step, n.dtype)


@lower("arange.start")
def _(w, n, start, *_rest):
    return w.arange(n.shape[0], start, 1, n.dtype)


@lower("arange")
def _(w, n, *_rest):
    return w.arange(n.shape[0], 0, 1, n.dtype)


@lower("linspace")
def _(w, n, start, end, steps, *_rest):
    if isinstance(start, Value) or isinstance(end, Value):
        raise MissingRow("linspace")
    return w.constant(without_modes(lambda: torch.linspace(start, end, steps, dtype=n.dtype)))


def _row_minus_column(w, rows, columns):
    return w.arange(columns) - w.view(w.arange(rows), (rows, 1))


def _zero(x):
    return literal_of(0, x.dtype)


@lower("eye", "eye.m")
def _(w, n, *_rest):
    return w.cast(_row_minus_column(w, *n.shape).equals(0), n.dtype)


@lower("tril")
def _(w, n, x, diagonal):
    return w.where(_row_minus_column(w, *x.shape[-2:]) <= diagonal, x, _zero(x))


@lower("triu")
def _(w, n, x, diagonal):
    return w.where(_row_minus_column(w, *x.shape[-2:]) >= diagonal, x, _zero(x))


@lower("repeat")
def _(w, n, x, repeats):
    shape = (1,) * (len(repeats) - len(x.shape)) + x.shape
    split = [d for s in shape for d in (1, s)]
    wide = [d for r, s in zip(repeats, shape, strict=False) for d in (r, s)]
    return w.view(w.expand(w.view(x, split), wide), n.shape)


def flipped(w, x, dims):
    """x with some dims in reverse; flipping twice gives x itself."""
    source, done = w.flips.get(x, (None, None))
    if done == dims:
        return source
    out = x
    for d in dims:
        index = w.arange(x.shape[d], x.shape[d] - 1, -1)
        out = w.op("index_select", [out, d, index], x.dtype, x.shape)
    w.flips[out] = (x, dims)
    return out


@lower("flip")
def _(w, n, x, dims):
    return flipped(w, x, {d % len(x.shape) for d in dims}) if x.shape else x


@lower("roll")
def _(w, n, x, shifts, dims):
    shape = x.shape
    if not dims:
        x, dims = w.view(x, (count(shape),)), [0]
    for shift, d in zip(shifts, dims, strict=False):
        d %= len(x.shape)
        size = x.shape[d]
        cut = (size - shift) % size if size else 0
        if cut:
            parts = [w.slice(x, d, cut, size), w.slice(x, d, 0, cut)]
            x = w.op("cat", [parts, d], x.dtype, x.shape)
    return w.view(x, shape)


# Joins


@lower("cat")
def _(w, n, parts, dim):
    parts = [w.cast(p, n.dtype) for p in parts if p.shape != (0,) or len(n.shape) == 1]
    return w.op("cat", [parts, dim % len(n.shape)], n.dtype, n.shape)


@lower("stack")
def _(w, n, parts, dim):
    dim %= len(n.shape)
    parts = [w.unsqueeze(w.cast(p, n.dtype), dim) for p in parts]
    return w.op("cat", [parts, dim], n.dtype, n.shape)


@lower("constant_pad_nd")
def _(w, n, x, pad, value):
    rank = len(x.shape)
    for i in range(0, len(pad), 2):
        dim = rank - 1 - i // 2
        size = x.shape[dim]
        x = w.slice(x, dim, max(0, -pad[i]), size - max(0, -pad[i + 1]))
    pad = [max(0, p) for p in pad]
    return _pad(w, x, pad, value, n.shape)


def _pad(w, x, pad, value, shape):
    if not any(pad):
        return x
    args = [x, list(pad), literal_of(value, x.dtype)]
    return w.op("constant_pad_nd", args, x.dtype, shape)


def _into_zeros(w, x, shape, dim, start, end, step):
    """x as the slice of an otherwise zero tensor."""
    if step == 1:
        pad = [0] * (2 * (len(shape) - dim))
        pad[-2:] = [start, shape[dim] - end]
        return _pad(w, x, pad, 0, shape)
    zeros = w.full(0, x.dtype, shape)
    return w.op("slice_scatter", [zeros, x, dim, start, end, step], x.dtype, shape)


@lower("slice_backward")
def _(w, n, grad, shape, dim, start, end, step):
    dim %= len(shape)
    return _into_zeros(w, grad, tuple(shape), dim, *_bounds(shape[dim], start, end), step)


@lower("select_backward")
def _(w, n, grad, shape, dim, index):
    dim %= len(shape)
    index %= shape[dim]
    return _into_zeros(w, w.unsqueeze(grad, dim), tuple(shape), dim, index, index + 1, 1)


@lower("slice_scatter")
def _(w, n, x, src, dim, start, end, step):
    dim %= len(x.shape)
    start, end = _bounds(x.shape[dim], start, end)
    src = w.cast(src, x.dtype)
    if start == 0 and end == x.shape[dim] and step == 1:
        return src
    return w.op("slice_scatter", [x, src, dim, start, end, step], x.dtype, x.shape)


@lower("select_scatter")
def _(w, n, x, src, dim, index):
    dim %= len(x.shape)
    index %= x.shape[dim]
    src = w.unsqueeze(w.cast(src, x.dtype), dim)
    return w.op("slice_scatter", [x, src, dim, index, index + 1, 1], x.dtype, x.shape)


# Gather and scatter


@lower("gather")
def _(w, n, x, dim, index, sparse_grad):
    if not x.shape:
        return w.expand(x, n.shape)
    return w.op("gather", [x, dim % len(x.shape), index, False], x.dtype, n.shape)


@lower("index_select")
def _(w, n, x, dim, index):
    if not x.shape:
        return x
    index = w.view(index, (count(index.shape),))
    return w.op("index_select", [x, dim % len(x.shape), index], x.dtype, n.shape)


@lower("scatter_add")
def _(w, n, x, dim, index, src):
    if not x.shape or index.shape != src.shape:
        raise MissingRow("scatter_add")
    return w.op("scatter_add", [x, dim % len(x.shape), index, src], x.dtype, n.shape)


@lower("scatter.value")
def _(w, n, x, dim, index, value):
    if not x.shape:
        raise MissingRow("scatter.value")
    args = [x, dim % len(x.shape), index, literal_of(value, x.dtype)]
    return w.op("scatter.value", args, x.dtype, n.shape)


@lower("scatter.src")
def _(w, n, x, dim, index, src):
    # With one index along the dim no element is written twice, so adding into a cleared place is
    # exact.
    if not x.shape or index.shape != src.shape or index.shape[dim % len(x.shape)] != 1:
        raise MissingRow("scatter.src")
    dim %= len(x.shape)
    cleared = w.op("scatter.value", [x, dim, index, _zero(x)], x.dtype, x.shape)
    return w.op("scatter_add", [cleared, dim, index, src], x.dtype, x.shape)


def _index_shape(x, indices):
    """Whether an indexing can be a row: integer indices next to each other."""
    if any(i is not None and i.dtype is torch.bool for i in indices):
        raise MissingRow("index by mask")


@lower("index", "_unsafe_index")
def _(w, n, x, indices):
    _index_shape(x, indices)
    given = [d for d, i in enumerate(indices) if i is not None]
    if len(given) == 1 and len(indices[given[0]].shape) == 1:
        return w.op("index_select", [x, given[0], indices[given[0]]], x.dtype, n.shape)
    return w.op("index", [x, list(indices)], x.dtype, n.shape)


@lower("index_put", "_unsafe_index_put")
def _(w, n, x, indices, values, accumulate):
    values = w.cast(values, x.dtype)
    if any(i is not None and i.dtype is torch.bool for i in indices):
        mask = indices[0]
        if len(indices) != 1 or values.shape or mask.dtype is not torch.bool:
            raise MissingRow("index_put by mask")
        mask = w.view(mask, mask.shape + (1,) * (len(x.shape) - len(mask.shape)))
        return w.where(mask, x + values if accumulate else values, x)
    return w.op("index_put", [x, list(indices), values, accumulate], x.dtype, n.shape)


def _along(dim, index):
    return [None] * dim + [index]


@lower("index_add")
def _(w, n, x, dim, index, source, alpha):
    if not x.shape or not source.shape:
        raise MissingRow("index_add")
    source = w.cast(source if alpha == 1 else source * alpha, x.dtype)
    indices = _along(dim % len(x.shape), index)
    return w.op("index_put", [x, indices, source, True], x.dtype, n.shape)


@lower("index_fill.int_Scalar")
def _(w, n, x, dim, index, value):
    if not x.shape or len(index.shape) != 1:
        raise MissingRow("index_fill")
    dim %= len(x.shape)
    values = w.full(value, x.dtype, (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]))
    return w.op("index_put", [x, _along(dim, index), values, False], x.dtype, n.shape)


@lower("index_copy")
def _(w, n, x, dim, index, source):
    if not x.shape or not source.shape:
        raise MissingRow("index_copy")
    indices = _along(dim % len(x.shape), index)
    return w.op("index_put", [x, indices, source, False], x.dtype, n.shape)


@lower("embedding")
def _(w, n, weight, indices, *_rest):
    args = [weight, indices, -1, False, False]
    return w.op("embedding", args, weight.dtype, n.shape)


@lower("embedding_dense_backward")
def _(w, n, grad, indices, rows, padding_idx, by_frequency):
    args = [grad, indices, rows, padding_idx, by_frequency]
    return w.op("embedding_dense_backward", args, grad.dtype, n.shape)
