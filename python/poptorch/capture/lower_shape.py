# SPDX-License-Identifier: Apache-2.0
"""Lowerings of views, fills and joins."""

import torch

from ._torch_private import without_modes
from .lowering import lower, memory_order
from .writer import MissingRow, Value, count, literal_of

_FULL_END = 2**62


@lower("alias", "alias_copy", "detach", "detach_copy", "lift_fresh", "tessera::mark_loss")
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


@lower("view", "_unsafe_view", "_reshape_alias", "_reshape_copy", "view_copy")
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
    order = list(range(rank))
    order[a], order[b] = order[b], order[a]
    return w.permute(x, order)


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


@lower("narrow_copy")
def _(w, n, x, dim, start, length):
    dim %= len(x.shape)
    start %= max(1, x.shape[dim])
    return w.slice(x, dim, start, start + length)


@lower("diagonal", "diagonal_copy")
def _(w, n, x, offset, dim1, dim2):
    rank = len(x.shape)
    return w.op("diagonal", [x, offset, dim1 % rank, dim2 % rank], x.dtype, n.shape)


@lower("unfold", "unfold_copy")
def _(w, n, x, dim, size, step):
    if not x.shape:
        return w.view(x, n.shape) if size else w.full(0, x.dtype, n.shape)
    return w.op("unfold", [x, dim % len(x.shape), size, step], x.dtype, n.shape)


def _dense_strides(shape):
    strides, step = [], 1
    for s in reversed(shape):
        strides.insert(0, step)
        step *= s
    return strides


@lower("as_strided", "as_strided_copy")
def _(w, n, x, size, stride, offset):
    plain = all(
        a == b or s == 1 for a, b, s in zip(_dense_strides(size), stride, size, strict=True)
    )
    if plain and not offset and count(size) == count(x.shape):
        return w.view(x, size)
    if not count(size):
        return w.full(0, x.dtype, size)
    return w.op("as_strided", [x, list(size), list(stride), offset or 0], x.dtype, n.shape)


def _register_fill(names, value):
    for name in names.split():
        lower(name)(lambda w, n, *args: w.full(value, n.dtype, n.shape))


# Memory that torch leaves uninitialised is zero here: a program has no garbage to read.
_register_fill("zeros zeros_like new_zeros zero empty empty_like new_empty", 0)
_register_fill("empty_strided new_empty_strided empty_permuted", 0)
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


def _number(x):
    return x.literal if isinstance(x, Value) else x


@lower("linspace", "logspace")
def _(w, n, start, end, steps, *rest):
    base = rest[0] if rest and isinstance(rest[0], float) else None
    ends = [_number(start), _number(end)]
    if None not in ends:  # known now: exactly as torch makes it
        make = torch.linspace if base is None else torch.logspace
        more = [steps] if base is None else [steps, base]
        return w.constant(without_modes(lambda: make(*ends, *more, dtype=n.dtype)))
    if not n.dtype.is_floating_point:
        raise MissingRow("linspace of integers")
    # As torch: a line in half precision is rounded at every step, the exponents of a power are only
    # rounded at the ends, and one alone not at all.
    wide = n.dtype if base is None else torch.promote_types(n.dtype, torch.float32)
    narrow = n.dtype if steps > 1 else wide

    def rounded(x):
        if isinstance(x, Value):
            return w.cast(w.cast(x, narrow), wide)
        return without_modes(lambda: torch.tensor(x, dtype=narrow).item())

    start, end = rounded(start), rounded(end)
    if steps == 1:
        line = w.expand(start, n.shape) if isinstance(start, Value) else w.full(start, wide, (1,))
    else:
        # From both ends towards the middle.
        at = w.arange(steps, dtype=wide)
        step = (end - start) / float(steps - 1)
        line = w.where(at < steps // 2, start + step * at, end - step * (float(steps - 1) - at))
    return line if base is None else w.cast(w.pointwise("pow", base, line), n.dtype)


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
    dims = {d for d in dims if x.shape[d] != 1}
    source, done = w.flips.get(x, (None, None))
    if done == dims:
        return source
    if not dims or not count(x.shape):
        return x
    if x in w.permutes:  # a flip copies: along the order in memory, not across it
        source, order = w.permutes[x]
        return w.permute(flipped(w, source, {order[d] for d in dims}), order)
    out = w.op("flip", [x, sorted(dims)], x.dtype, x.shape)
    w.flips[out] = (x, dims)
    return out


@lower("flip")
def _(w, n, x, dims):
    return flipped(w, x, {d % len(x.shape) for d in dims}) if x.shape else x


@lower("rot90")
def _(w, n, x, k, dims):
    a, b = (d % len(x.shape) for d in dims)
    k %= 4
    x = flipped(w, x, [set(), {b}, {a, b}, {a}][k])
    return w.op("transpose", [x, a, b], x.dtype, n.shape) if k % 2 else x


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


@lower("resize", "resize_as")
def _(w, n, x, *_rest):
    """The first elements; those that torch leaves uninitialised are zero."""
    have, want = count(x.shape), count(n.shape)
    x = w.view(x, (have,))
    x = w.slice(x, 0, 0, want) if want <= have else _pad(w, x, [0, want - have], 0, (want,))
    return w.view(x, n.shape)


# Joins


@lower("block_diag")
def _(w, n, parts):
    """Blocks written into zeros."""
    out = w.full(0, n.dtype, n.shape)
    at, width = 0, n.shape[1]
    for p in parts:
        rows, columns = ((1, 1) + p.shape)[-2:]
        if rows and columns:
            args = [
                out,
                w.view(w.cast(p, n.dtype), (rows, columns)),
                [rows, columns],
                [width, 1],
                at,
            ]
            out = w.op("as_strided_scatter", args, n.dtype, n.shape)
        at += rows * width + columns
    return out


@lower("_chunk_cat")
def _(w, n, parts, dim, chunks):
    dim %= len(parts[0].shape)
    cut = []
    for p in parts:
        size = -(-p.shape[dim] // chunks) * chunks
        pad = [0] * (2 * (len(p.shape) - dim))
        pad[-1] = size - p.shape[dim]
        shape = (*p.shape[:dim], size, *p.shape[dim + 1 :])
        p = w.cast(_pad(w, p, pad, 0, shape), n.dtype)
        cut.append(w.view(p, (*shape[:dim], chunks, count(shape[dim:]) // chunks)))
    return w.op("cat", [cut, dim + 1], n.dtype, n.shape)


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


@lower("diagonal_scatter")
def _(w, n, x, src, offset, dim1, dim2):
    return _on_diagonal(w, x, w.cast(src, x.dtype), offset, dim1, dim2)


def _on_diagonal(w, x, src, offset, dim1, dim2):
    if not count(src.shape):
        return x
    rank = len(x.shape)
    args = [x, src, offset, dim1 % rank, dim2 % rank]
    return w.op("diagonal_scatter", args, x.dtype, x.shape)


@lower("diag_embed")
def _(w, n, x, offset, dim1, dim2):
    return _on_diagonal(w, w.full(0, x.dtype, n.shape), x, offset, dim1, dim2)


@lower("diagonal_backward")
def _(w, n, grad, shape, offset, dim1, dim2):
    return _on_diagonal(w, w.full(0, grad.dtype, tuple(shape)), grad, offset, dim1, dim2)


@lower("as_strided_scatter")
def _(w, n, x, src, size, stride, offset):
    """x comes in the order of memory; the result goes back to the order of its dims."""
    if count(size):
        args = [x, w.cast(src, x.dtype), list(size), list(stride), offset or 0]
        x = w.op("as_strided_scatter", args, x.dtype, x.shape)
    source = n.node.args[0].meta["val"]
    if source.is_contiguous():
        return x
    order = memory_order(source)
    return w.permute(x, sorted(range(len(order)), key=order.__getitem__))


@lower("unfold_backward")
def _(w, n, grad, shape, dim, size, step):
    if not count(grad.shape):
        return w.full(0, grad.dtype, n.shape)
    if not shape:
        return w.view(grad, n.shape)
    args = [grad, list(shape), dim % len(shape), size, step]
    return w.op("unfold_backward", args, grad.dtype, n.shape)


@lower("tessera::checkpoint")
def _checkpoint(w, n, x):
    return w.op("clone", [x, "checkpoint"], x.dtype, x.shape)
