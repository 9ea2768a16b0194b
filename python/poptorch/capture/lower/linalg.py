# SPDX-License-Identifier: Apache-2.0
"""Lowerings of factorisations and solvers, which work on float32 matrices in the last two dims."""

from collections.abc import Sequence

import torch

from poptorch.capture.lower.fill import column_minus_row
from poptorch.capture.lower.matmul import main_diagonal, matrix_product
from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Value, count
from poptorch.capture.text.writer import Writer


def transposed(w: Writer, x: Value) -> Value:
    rank = len(x.shape)
    return w.permute(x, [*range(rank - 2), rank - 1, rank - 2])


def _batched(w: Writer, x: Value, batch: Sequence[int], inner: int = 2) -> Value:
    return w.expand(x, (*batch, *x.shape[len(x.shape) - inner :]))


def need_f32(*values: Value) -> None:
    if any(v.dtype is not torch.float32 for v in values):
        raise MissingRow("linear algebra in another type")


def _eye(w: Writer, rows: int, cols: int, batch: Sequence[int] = ()) -> Value:
    ones = w.cast(column_minus_row(w, rows, cols).equals(0), torch.float32)
    return w.expand(ones, (*batch, rows, cols))


def triangle(w: Writer, x: Value, upper: bool, diagonal: int = 0) -> Value:
    above = column_minus_row(w, *x.shape[-2:])
    return w.where(above >= diagonal if upper else above <= diagonal, x, 0.0)


def _cholesky(w: Writer, a: Value, upper: bool, check: str | None) -> list[Value]:
    need_f32(a)
    types = [(torch.float32, a.shape), (torch.int32, a.shape[:-2])]
    return list(w.ops("linalg_cholesky_ex", [a, bool(upper), check], types))


@lower("linalg_cholesky_ex")
def _(w: Writer, n: Results, a: Value, upper: bool, check_errors: bool) -> list[Value]:
    return _cholesky(w, a, upper, n.check or ("linalg.cholesky_ex" if check_errors else None))


@lower("cholesky")
def _(w: Writer, n: Results, a: Value, upper: bool) -> Value:
    return _cholesky(w, a, upper, "cholesky")[0]


def _solve_triangular(
    w: Writer, a: Value, b: Value, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    need_f32(a, b)
    if not left:
        return transposed(
            w,
            _solve_triangular(
                w, transposed(w, a), transposed(w, b), not upper, True, unitriangular
            ),
        )
    args = [a, b, bool(upper), bool(unitriangular)]
    return w.op("linalg_solve_triangular", args, torch.float32, b.shape)


@lower("linalg_solve_triangular")
def _(
    w: Writer, n: Results, a: Value, b: Value, upper: bool, left: bool, unitriangular: bool
) -> Value:
    batch = n.shape[:-2]
    a, b = _batched(w, a, batch), _batched(w, b, batch)
    return _solve_triangular(w, a, b, upper, left, unitriangular)


@lower("triangular_solve")
def _(
    w: Writer, n: Results, b: Value, a: Value, upper: bool, transpose: bool, unitriangular: bool
) -> list[Value]:
    batch = n.shape[:-2]
    a, b = _batched(w, a, batch), _batched(w, b, batch)
    if transpose:
        x = _solve_triangular(w, transposed(w, a), b, not upper, True, unitriangular)
    else:
        x = _solve_triangular(w, a, b, upper, True, unitriangular)
    return [x, a]


def _cholesky_solve(w: Writer, b: Value, factor: Value, upper: bool) -> Value:
    first, second = (transposed(w, factor), factor) if upper else (factor, transposed(w, factor))
    return _solve_triangular(w, second, _solve_triangular(w, first, b, False), True)


@lower("cholesky_solve", "_cholesky_solve_helper")
def _(w: Writer, n: Results, b: Value, factor: Value, upper: bool) -> Value:
    batch = n.shape[:-2]
    return _cholesky_solve(w, _batched(w, b, batch), _batched(w, factor, batch), upper)


@lower("cholesky_inverse")
def _(w: Writer, n: Results, factor: Value, upper: bool) -> Value:
    size = n.shape[-1]
    return _cholesky_solve(w, _eye(w, size, size, n.shape[:-2]), factor, upper)


def _lu_factor(w: Writer, a: Value, pivot: bool = True, check: str | None = None) -> list[Value]:
    need_f32(a)
    *batch, rows, cols = a.shape
    types = [
        (torch.float32, a.shape),
        (torch.int32, (*batch, min(rows, cols))),
        (torch.int32, tuple(batch)),
    ]
    return list(w.ops("linalg_lu_factor_ex", [a, bool(pivot), check], types))


@lower("linalg_lu_factor_ex")
def _(w: Writer, n: Results, a: Value, pivot: bool, check_errors: bool) -> list[Value]:
    check = n.check or ("torch.linalg.lu_factor_ex" if check_errors else None)
    return _lu_factor(w, a, pivot, check)


def _unpacked(w: Writer, n: Results, lu: Value, pivots: Value) -> list[Value | None]:
    """P, L and U, those that were asked for."""
    *batch, rows, cols = lu.shape
    size = min(rows, cols)
    rank = len(lu.shape)
    wanted = [(*batch, rows, rows), (*batch, rows, size), (*batch, size, cols)]
    out = [
        None if shape == s else w.full(0, dtype, shape)
        for (dtype, shape), s in zip(n.types(), wanted, strict=True)
    ]
    if out[0] is None:
        # Row i of the factors is row order[i] of the matrix.
        order = w.op("lu_permutation", [pivots], torch.int64, (*batch, rows))
        here = w.view(w.arange(rows), (rows, 1))
        out[0] = w.cast(w.unsqueeze(order, rank - 2).equals(here), torch.float32)
    if out[1] is None:
        low = triangle(w, w.slice(lu, rank - 1, 0, size), False, -1)
        out[1] = low + _eye(w, rows, size)
    if out[2] is None:
        out[2] = triangle(w, w.slice(lu, rank - 2, 0, size), True)
    return out


@lower("lu_unpack")
def _(
    w: Writer, n: Results, lu: Value, pivots: Value, _data: bool, _pivots: bool
) -> list[Value | None]:
    need_f32(lu)
    return _unpacked(w, n, lu, w.cast(pivots, torch.int32))


@lower("linalg_lu")
def _(w: Writer, n: Results, a: Value, pivot: bool) -> list[Value | None]:
    lu, pivots, _ = _lu_factor(w, a, pivot)
    return _unpacked(w, n, lu, pivots)


def _lu_solve(
    w: Writer, lu: Value, pivots: Value, b: Value, left: bool = True, adjoint: bool = False
) -> Value:
    need_f32(lu, b)
    if not left:
        return transposed(w, _lu_solve(w, lu, pivots, transposed(w, b), True, not adjoint))
    return w.op("linalg_lu_solve", [lu, pivots, b, bool(adjoint)], torch.float32, b.shape)


@lower("linalg_lu_solve")
def _(
    w: Writer, n: Results, lu: Value, pivots: Value, b: Value, left: bool, adjoint: bool
) -> Value:
    batch = n.shape[:-2]
    pivots = _batched(w, w.cast(pivots, torch.int32), batch, 1)
    return _lu_solve(w, _batched(w, lu, batch), pivots, _batched(w, b, batch), left, adjoint)


def _factors_transpose(n: Results) -> bool:
    """For determinants torch factors the transpose of a contiguous matrix; gradients rely on it."""
    return n.first_argument().is_contiguous()


@lower("_linalg_solve_ex")
def _(w: Writer, n: Results, a: Value, b: Value, left: bool, check_errors: bool) -> list[Value]:
    check = n.check or ("torch.linalg.solve_ex" if check_errors else None)
    lu, pivots, info = _lu_factor(w, a, True, check)
    vector = len(b.shape) == 1 or (len(b.shape) == len(a.shape) - 1 and b.shape == a.shape[:-1])
    rhs = w.unsqueeze(b, len(b.shape)) if vector else b
    batch = n.shape[: len(n.shape) - (1 if vector else 2)]
    x = _lu_solve(
        w,
        _batched(w, lu, batch),
        _batched(w, pivots, batch, 1),
        _batched(w, rhs, batch),
        left,
    )
    return [w.view(x, n.shape) if vector else x, lu, pivots, info]


@lower("linalg_inv_ex")
def _(w: Writer, n: Results, a: Value, check_errors: bool) -> list[Value]:
    check = n.check or ("linalg.inv_ex" if check_errors else None)
    lu, pivots, info = _lu_factor(w, a, True, check)
    size = a.shape[-1]
    return [_lu_solve(w, lu, pivots, _eye(w, size, size, a.shape[:-2])), info]


def _parity(w: Writer, pivots: Value) -> Value:
    """1 for an even number of row exchanges, -1 for an odd one."""
    size = pivots.shape[-1]
    moved = w.pointwise("ne", pivots, w.arange(size, 1, 1, torch.int32))
    odd = w.pointwise("remainder", w.sum(w.cast(moved, torch.int64), [-1]), 2)
    return 1.0 - w.cast(odd, torch.float32) * 2.0


def _factored(w: Writer, n: Results, a: Value) -> tuple[Value, Value, Value]:
    lu, pivots, _ = _lu_factor(w, transposed(w, a) if _factors_transpose(n) else a)
    return lu, pivots, main_diagonal(w, lu)


@lower("_linalg_det")
def _(w: Writer, n: Results, a: Value) -> list[Value]:
    lu, pivots, diagonal = _factored(w, n, a)
    return [_parity(w, pivots) * w.reduce("prod", diagonal, [-1], False), lu, pivots]


@lower("_linalg_slogdet")
def _(w: Writer, n: Results, a: Value) -> list[Value]:
    lu, pivots, diagonal = _factored(w, n, a)
    sign = _parity(w, pivots) * w.reduce("prod", diagonal.sign(), [-1], False)
    return [sign, w.sum(diagonal.abs().log(), [-1]), lu, pivots]


def _geqrf(w: Writer, a: Value) -> tuple[Value, ...]:
    need_f32(a)
    *batch, rows, cols = a.shape
    types = [(torch.float32, a.shape), (torch.float32, (*batch, min(rows, cols)))]
    return w.ops("geqrf", [a], types)


@lower("geqrf")
def _(w: Writer, n: Results, a: Value) -> list[Value]:
    return list(_geqrf(w, a))


def _orthogonal(w: Writer, packed: Value, tau: Value, columns: int) -> Value:
    shape = (*packed.shape[:-1], columns)
    return w.op("linalg_householder_product", [packed, tau], torch.float32, shape)


@lower("linalg_householder_product", "orgqr")
def _(w: Writer, n: Results, packed: Value, tau: Value) -> Value:
    need_f32(packed, tau)
    return _orthogonal(w, packed, tau, packed.shape[-1])


@lower("ormqr")
def _(
    w: Writer, n: Results, packed: Value, tau: Value, other: Value, left: bool, transpose: bool
) -> Value:
    need_f32(packed, tau, other)
    q = _orthogonal(w, packed, tau, packed.shape[-2])
    q = transposed(w, q) if transpose else q
    a, b = (q, other) if left else (other, q)
    if len(n.shape) == 2:
        return matrix_product(w, a, b)
    size = count(n.shape[:-2])
    a, b = (w.view(x, (size, *x.shape[-2:])) for x in (a, b))
    return w.view(matrix_product(w, a, b), n.shape)


@lower("linalg_qr")
def _(w: Writer, n: Results, a: Value, mode: str) -> list[Value]:
    packed, tau = _geqrf(w, a)
    r_shape = n.type(1)[1]
    r = triangle(w, w.slice(packed, len(a.shape) - 2, 0, r_shape[-2]), True)
    if mode == "r":
        return [w.full(0, torch.float32, n.shape), r]
    return [_orthogonal(w, packed, tau, n.shape[-1]), r]
