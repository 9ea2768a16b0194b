# SPDX-License-Identifier: Apache-2.0
"""Lowerings of products of matrices and vectors."""

from collections.abc import Callable

import torch

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Number, Value
from poptorch.capture.text.writer import Writer


def _need_numbers(x: Value) -> None:
    if x.dtype is torch.bool:
        raise MissingRow("product of bools")


def matrix_product(w: Writer, a: Value, b: Value) -> Value:
    _need_numbers(a)
    name = "mm" if len(a.shape) == 2 else "bmm"
    return w.op(name, [a, b], a.dtype, (*a.shape[:-1], b.shape[-1]))


def _weighted(x: Value, factor: Number) -> Value:
    return x if factor == 1 else x * factor


def _sum_of(
    w: Writer, n: Results, x: Value, product: Callable[[], Value], beta: Number, alpha: Number
) -> Value:
    """beta * x + alpha * product(). A factor of zero means that an operand is not read at all."""
    if not n.dtype.is_floating_point:
        beta, alpha = int(beta), int(alpha)
    if alpha == 0:
        if beta == 0:
            return w.full(0, n.dtype, n.shape)
        return _weighted(w.expand(x, n.shape), beta)
    total = _weighted(product(), alpha)
    return total if beta == 0 else _weighted(w.expand(x, n.shape), beta) + total


@lower("mm", "bmm")
def _(w: Writer, n: Results, a: Value, b: Value) -> Value:
    return matrix_product(w, a, b)


@lower("addmm", "baddbmm")
def _(w: Writer, n: Results, x: Value, a: Value, b: Value, beta: Number, alpha: Number) -> Value:
    if not a.dtype.is_floating_point or beta == 0 or alpha == 0:
        return _sum_of(w, n, x, lambda: matrix_product(w, a, b), beta, alpha)
    name = "addmm" if len(a.shape) == 2 else "baddbmm"
    return w.op(name, [x, a, b, beta, alpha], a.dtype, n.shape)


@lower("addbmm")
def _(w: Writer, n: Results, x: Value, a: Value, b: Value, beta: Number, alpha: Number) -> Value:
    # The batch joins the inner dim: one product instead of a sum of many.
    def product() -> Value:
        batch, rows, inner = a.shape
        left = w.view(w.permute(a, [1, 0, 2]), (rows, batch * inner))
        return matrix_product(w, left, w.view(b, (batch * inner, b.shape[2])))

    return _sum_of(w, n, x, product, beta, alpha)


def _times_vector(w: Writer, a: Value, v: Value) -> Value:
    rows, inner = a.shape
    return w.view(matrix_product(w, a, w.view(v, (inner, 1))), (rows,))


@lower("mv")
def _(w: Writer, n: Results, a: Value, v: Value) -> Value:
    return _times_vector(w, a, v)


@lower("addmv")
def _(w: Writer, n: Results, x: Value, a: Value, v: Value, beta: Number, alpha: Number) -> Value:
    return _sum_of(w, n, x, lambda: _times_vector(w, a, v), beta, alpha)


@lower("addr")
def _(w: Writer, n: Results, x: Value, a: Value, b: Value, beta: Number, alpha: Number) -> Value:
    x, a, b = (w.cast(t, n.dtype) for t in (x, a, b))
    outer = w.view(a, (a.shape[0], 1)) * b
    if n.dtype is torch.bool:
        outer = outer if alpha else w.full(False, n.dtype, n.shape)
        return (w.expand(x, n.shape) | outer) if beta else outer
    outer = _weighted(outer, alpha)  # is read with any factor, as in eager
    return outer if beta == 0 else _weighted(w.expand(x, n.shape), beta) + outer


@lower("dot", "vdot")
def _(w: Writer, n: Results, a: Value, b: Value) -> Value:
    half = n.dtype in (torch.float16, torch.bfloat16)
    wide = torch.float32 if half else n.dtype if n.dtype.is_floating_point else torch.int64
    return w.cast(w.sum(w.cast(a, wide) * w.cast(b, wide)), n.dtype)


@lower("_trilinear")
def _(
    w: Writer,
    n: Results,
    a: Value,
    b: Value,
    c: Value,
    expand_a: list[int],
    expand_b: list[int],
    expand_c: list[int],
    sum_dims: list[int],
    _unroll: int,
) -> Value:
    def expanded(x: Value, dims: list[int]) -> Value:
        for d in sorted(dims):
            x = w.unsqueeze(x, d)
        return x

    product = expanded(a, expand_a) * expanded(b, expand_b) * expanded(c, expand_c)
    return w.sum(product, sum_dims) if sum_dims else product


@lower("linalg_cross")
def _(w: Writer, n: Results, a: Value, b: Value, dim: int) -> Value:
    dim %= len(n.shape)
    a, b = (w.expand(w.cast(t, n.dtype), n.shape) for t in (a, b))

    def part(x: Value, i: int) -> Value:
        return w.slice(x, dim, i % 3, i % 3 + 1)

    parts = [part(a, i + 1) * part(b, i + 2) - part(a, i + 2) * part(b, i + 1) for i in range(3)]
    return w.op("cat", [parts, dim], n.dtype, n.shape)


def main_diagonal(w: Writer, x: Value) -> Value:
    """The main diagonal of the last two dims, as a view."""
    *batch, rows, cols = x.shape
    size = min(rows, cols)
    flat = w.view(x, (*batch, rows * cols))
    if size == 0:
        return w.slice(flat, len(batch), 0, 0)
    return w.slice(flat, len(batch), 0, (size - 1) * (cols + 1) + 1, cols + 1)


@lower("trace")
def _(w: Writer, n: Results, x: Value) -> Value:
    return w.sum(w.cast(main_diagonal(w, x), n.dtype))
