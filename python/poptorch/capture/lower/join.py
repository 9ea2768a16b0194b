# SPDX-License-Identifier: Apache-2.0
"""Lowerings of joins, padding, and of writes into a part of a tensor."""

from collections.abc import Sequence

from poptorch.capture.lower.shape import bounds
from poptorch.capture.lower.table import Results, lower, memory_order
from poptorch.capture.text.value import Number, Value, count, literal_of
from poptorch.capture.text.writer import Writer


@lower("block_diag")
def _(w: Writer, n: Results, parts: list[Value]) -> Value:
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
def _(w: Writer, n: Results, parts: list[Value], dim: int, chunks: int) -> Value:
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
def _(w: Writer, n: Results, parts: list[Value], dim: int) -> Value:
    parts = [w.cast(p, n.dtype) for p in parts if p.shape != (0,) or len(n.shape) == 1]
    return w.op("cat", [parts, dim % len(n.shape)], n.dtype, n.shape)


@lower("stack")
def _(w: Writer, n: Results, parts: list[Value], dim: int) -> Value:
    dim %= len(n.shape)
    parts = [w.unsqueeze(w.cast(p, n.dtype), dim) for p in parts]
    return w.op("cat", [parts, dim], n.dtype, n.shape)


@lower("constant_pad_nd")
def _(w: Writer, n: Results, x: Value, pad: list[int], value: Number) -> Value:
    rank = len(x.shape)
    for i in range(0, len(pad), 2):
        dim = rank - 1 - i // 2
        size = x.shape[dim]
        x = w.slice(x, dim, max(0, -pad[i]), size - max(0, -pad[i + 1]))
    pad = [max(0, p) for p in pad]
    return _pad(w, x, pad, value, n.shape)


def _pad(w: Writer, x: Value, pad: list[int], value: Number, shape: Sequence[int]) -> Value:
    if not any(pad):
        return x
    args = [x, list(pad), literal_of(value, x.dtype)]
    return w.op("constant_pad_nd", args, x.dtype, shape)


def _into_zeros(
    w: Writer, x: Value, shape: Sequence[int], dim: int, start: int, end: int, step: int
) -> Value:
    """x as the slice of an otherwise zero tensor."""
    if step == 1:
        pad = [0] * (2 * (len(shape) - dim))
        pad[-2:] = [start, shape[dim] - end]
        return _pad(w, x, pad, 0, shape)
    zeros = w.full(0, x.dtype, shape)
    return w.op("slice_scatter", [zeros, x, dim, start, end, step], x.dtype, shape)


@lower("slice_backward")
def _(
    w: Writer, n: Results, grad: Value, shape: list[int], dim: int, start: int, end: int, step: int
) -> Value:
    dim %= len(shape)
    return _into_zeros(w, grad, tuple(shape), dim, *bounds(shape[dim], start, end), step)


@lower("select_backward")
def _(w: Writer, n: Results, grad: Value, shape: list[int], dim: int, index: int) -> Value:
    dim %= len(shape)
    index %= shape[dim]
    return _into_zeros(w, w.unsqueeze(grad, dim), tuple(shape), dim, index, index + 1, 1)


@lower("slice_scatter")
def _(
    w: Writer,
    n: Results,
    x: Value,
    src: Value,
    dim: int,
    start: int | None,
    end: int | None,
    step: int,
) -> Value:
    dim %= len(x.shape)
    start, end = bounds(x.shape[dim], start, end)
    src = w.cast(src, x.dtype)
    if start == 0 and end == x.shape[dim] and step == 1:
        return src
    return w.op("slice_scatter", [x, src, dim, start, end, step], x.dtype, x.shape)


@lower("select_scatter")
def _(w: Writer, n: Results, x: Value, src: Value, dim: int, index: int) -> Value:
    dim %= len(x.shape)
    index %= x.shape[dim]
    src = w.unsqueeze(w.cast(src, x.dtype), dim)
    return w.op("slice_scatter", [x, src, dim, index, index + 1, 1], x.dtype, x.shape)


@lower("diagonal_scatter")
def _(w: Writer, n: Results, x: Value, src: Value, offset: int, dim1: int, dim2: int) -> Value:
    return _on_diagonal(w, x, w.cast(src, x.dtype), offset, dim1, dim2)


def _on_diagonal(w: Writer, x: Value, src: Value, offset: int, dim1: int, dim2: int) -> Value:
    if not count(src.shape):
        return x
    rank = len(x.shape)
    args = [x, src, offset, dim1 % rank, dim2 % rank]
    return w.op("diagonal_scatter", args, x.dtype, x.shape)


@lower("diag_embed")
def _(w: Writer, n: Results, x: Value, offset: int, dim1: int, dim2: int) -> Value:
    return _on_diagonal(w, w.full(0, x.dtype, n.shape), x, offset, dim1, dim2)


@lower("diagonal_backward")
def _(
    w: Writer, n: Results, grad: Value, shape: list[int], offset: int, dim1: int, dim2: int
) -> Value:
    return _on_diagonal(w, w.full(0, grad.dtype, tuple(shape)), grad, offset, dim1, dim2)


@lower("as_strided_scatter")
def _(
    w: Writer,
    n: Results,
    x: Value,
    src: Value,
    size: list[int],
    stride: list[int],
    offset: int | None,
) -> Value:
    """x comes in the order of memory; the result goes back to the order of its dims."""
    if count(size):
        args = [x, w.cast(src, x.dtype), list(size), list(stride), offset or 0]
        x = w.op("as_strided_scatter", args, x.dtype, x.shape)
    source = n.first_argument()
    if source.is_contiguous():
        return x
    order = memory_order(source)
    return w.permute(x, sorted(range(len(order)), key=order.__getitem__))


@lower("unfold_backward")
def _(
    w: Writer, n: Results, grad: Value, shape: list[int], dim: int, size: int, step: int
) -> Value:
    if not count(grad.shape):
        return w.full(0, grad.dtype, n.shape)
    if not shape:
        return w.view(grad, n.shape)
    args = [grad, list(shape), dim % len(shape), size, step]
    return w.op("unfold_backward", args, grad.dtype, n.shape)


@lower("resize", "resize_as")
def _(w: Writer, n: Results, x: Value, *_rest: object) -> Value:
    """The first elements; those that torch leaves uninitialised are zero."""
    have, want = count(x.shape), count(n.shape)
    x = w.view(x, (have,))
    x = w.slice(x, 0, 0, want) if want <= have else _pad(w, x, [0, want - have], 0, (want,))
    return w.view(x, n.shape)
