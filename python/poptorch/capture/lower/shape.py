# SPDX-License-Identifier: Apache-2.0
"""Lowerings of copies, views, and rearrangements along a dim."""

from collections.abc import Sequence

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Value, count
from poptorch.capture.text.writer import Writer

_FULL_END = 2**62


@lower("alias", "alias_copy", "detach", "detach_copy", "lift_fresh", "tessera::mark_loss")
def _(w: Writer, n: Results, x: Value, *_rest: object) -> Value:
    return x


@lower("lift_fresh_copy", "clone", "_to_copy", "copy")
def _(w: Writer, n: Results, x: Value, *rest: object) -> Value:
    source = rest[0] if rest and isinstance(rest[0], Value) else x  # copy(self, src)
    if source.literal is not None:
        return w.full(source.literal, n.dtype, n.shape)
    if source.dtype is not n.dtype:
        source = w.cast(source, n.dtype)
    elif source is x:
        source = w.op("clone", [x], x.dtype, x.shape)
    return w.expand(source, n.shape)


@lower("tessera::checkpoint")
def _(w: Writer, n: Results, x: Value) -> Value:
    return w.op("clone", [x, "checkpoint"], x.dtype, x.shape)


@lower("view", "_unsafe_view", "_reshape_alias", "_reshape_copy", "view_copy")
def _(w: Writer, n: Results, x: Value, *_rest: object) -> Value:
    if x.dtype is not n.dtype:
        raise MissingRow("view of another dtype")
    return w.view(x, n.shape)


@lower("expand", "expand_copy")
def _(w: Writer, n: Results, x: Value, *_rest: object) -> Value:
    return w.expand(x, n.shape)


@lower("permute", "permute_copy")
def _(w: Writer, n: Results, x: Value, dims: list[int]) -> Value:
    return w.permute(x, [d % len(x.shape) for d in dims])


@lower("transpose", "transpose_copy", "t", "t_copy")
def _(w: Writer, n: Results, x: Value, a: int = 0, b: int = 1) -> Value:
    rank = len(x.shape)
    if rank < 2 or a % rank == b % rank:
        return x
    order = list(range(rank))
    order[a], order[b] = order[b], order[a]
    return w.permute(x, order)


@lower("unsqueeze", "unsqueeze_copy")
def _(w: Writer, n: Results, x: Value, dim: int) -> Value:
    return w.unsqueeze(x, dim % (len(x.shape) + 1))


@lower("squeeze", "squeeze_copy")
def _(w: Writer, n: Results, x: Value, dims: int | list[int] | None = None) -> Value:
    rank = len(x.shape)
    asked = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = sorted({d % rank for d in asked if x.shape[d % rank] == 1}) if rank else []
    return w.op("squeeze", [x, gone], x.dtype, n.shape) if gone else x


@lower("select", "select_copy")
def _(w: Writer, n: Results, x: Value, dim: int, index: int) -> Value:
    dim %= len(x.shape)
    return w.select(x, dim, index % x.shape[dim])


def bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """(start, end) of a slice within the size of its dim."""
    start = 0 if start is None else start + size if start < 0 else start
    end = size if end is None or end >= _FULL_END else end + size if end < 0 else end
    start = min(max(start, 0), size)
    return start, min(max(end, start), size)


@lower("slice", "slice_copy")
def _(
    w: Writer, n: Results, x: Value, dim: int, start: int | None, end: int | None, step: int
) -> Value:
    dim %= len(x.shape)
    begin, stop = bounds(x.shape[dim], start, end)
    return w.slice(x, dim, begin, stop, step)


@lower("unbind", "unbind_copy")
def _(w: Writer, n: Results, x: Value, dim: int) -> list[Value]:
    dim %= len(x.shape)
    return [w.select(x, dim, i) for i in range(x.shape[dim])]


@lower("split", "split_with_sizes", "unsafe_split", "split_copy", "split_with_sizes_copy")
def _(w: Writer, n: Results, x: Value, _sizes: int | list[int], dim: int) -> list[Value]:
    dim %= len(x.shape)
    out, at = [], 0
    for _, shape in n.types():
        out.append(w.slice(x, dim, at, at + shape[dim]))
        at += shape[dim]
    return out


@lower("narrow_copy")
def _(w: Writer, n: Results, x: Value, dim: int, start: int, length: int) -> Value:
    dim %= len(x.shape)
    start %= max(1, x.shape[dim])
    return w.slice(x, dim, start, start + length)


@lower("diagonal", "diagonal_copy")
def _(w: Writer, n: Results, x: Value, offset: int, dim1: int, dim2: int) -> Value:
    rank = len(x.shape)
    return w.op("diagonal", [x, offset, dim1 % rank, dim2 % rank], x.dtype, n.shape)


@lower("unfold", "unfold_copy")
def _(w: Writer, n: Results, x: Value, dim: int, size: int, step: int) -> Value:
    if not x.shape:
        return w.view(x, n.shape) if size else w.full(0, x.dtype, n.shape)
    return w.op("unfold", [x, dim % len(x.shape), size, step], x.dtype, n.shape)


def _dense_strides(shape: Sequence[int]) -> list[int]:
    strides: list[int] = []
    step = 1
    for s in reversed(shape):
        strides.insert(0, step)
        step *= s
    return strides


@lower("as_strided", "as_strided_copy")
def _(
    w: Writer, n: Results, x: Value, size: list[int], stride: list[int], offset: int | None
) -> Value:
    plain = all(
        a == b or s == 1 for a, b, s in zip(_dense_strides(size), stride, size, strict=True)
    )
    if plain and not offset and count(size) == count(x.shape):
        return w.view(x, size)
    if not count(size):
        return w.full(0, x.dtype, size)
    return w.op("as_strided", [x, list(size), list(stride), offset or 0], x.dtype, n.shape)


@lower("repeat")
def _(w: Writer, n: Results, x: Value, repeats: list[int]) -> Value:
    shape = (1,) * (len(repeats) - len(x.shape)) + x.shape
    split = [d for s in shape for d in (1, s)]
    wide = [d for r, s in zip(repeats, shape, strict=True) for d in (r, s)]
    return w.view(w.expand(w.view(x, split), wide), n.shape)


def flipped(w: Writer, x: Value, dims: set[int]) -> Value:
    """x with some dims in reverse; flipping twice gives x itself."""
    dims = {d for d in dims if x.shape[d] != 1}
    if x in w.flips and w.flips[x][1] == dims:
        return w.flips[x][0]
    if not dims or not count(x.shape):
        return x
    if x in w.permutes:  # a flip copies: along the order in memory, not across it
        source, order = w.permutes[x]
        return w.permute(flipped(w, source, {order[d] for d in dims}), order)
    out = w.op("flip", [x, sorted(dims)], x.dtype, x.shape)
    w.flips[out] = (x, dims)
    return out


@lower("flip")
def _(w: Writer, n: Results, x: Value, dims: list[int]) -> Value:
    return flipped(w, x, {d % len(x.shape) for d in dims}) if x.shape else x


@lower("rot90")
def _(w: Writer, n: Results, x: Value, k: int, dims: list[int]) -> Value:
    a, b = (d % len(x.shape) for d in dims)
    k %= 4
    x = flipped(w, x, [set(), {b}, {a, b}, {a}][k])
    return w.op("transpose", [x, a, b], x.dtype, n.shape) if k % 2 else x


@lower("roll")
def _(w: Writer, n: Results, x: Value, shifts: list[int], dims: list[int]) -> Value:
    shape = x.shape
    if not dims:
        x, dims = w.view(x, (count(shape),)), [0]
    for shift, d in zip(shifts, dims, strict=True):
        d %= len(x.shape)
        size = x.shape[d]
        cut = (size - shift) % size if size else 0
        if cut:
            parts = [w.slice(x, d, cut, size), w.slice(x, d, 0, cut)]
            x = w.op("cat", [parts, d], x.dtype, x.shape)
    return w.view(x, shape)
