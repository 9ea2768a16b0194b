# SPDX-License-Identifier: Apache-2.0
"""Lowerings of matrix products, factorisations and solvers."""

import torch

from .lowering import lower
from .writer import MissingRow, Value, count

# Products


def _need_numbers(x):
    if x.dtype is torch.bool:
        raise MissingRow("product of bools")


def _product(w, a, b):
    _need_numbers(a)
    name = "mm" if len(a.shape) == 2 else "bmm"
    return w.op(name, [a, b], a.dtype, (*a.shape[:-1], b.shape[-1]))


def _weighted(x, factor):
    return x if factor == 1 else x * factor


def _sum_of(w, n, x, product, beta, alpha):
    """beta * x + alpha * product(); with a factor of zero x or the product is not looked at, not
    even for NaN."""
    if not n.dtype.is_floating_point:
        beta, alpha = int(beta), int(alpha)
    if alpha == 0:
        if beta == 0:
            return w.full(0, n.dtype, n.shape)
        return _weighted(w.expand(x, n.shape), beta)
    total = _weighted(product(), alpha)
    return total if beta == 0 else _weighted(w.expand(x, n.shape), beta) + total


@lower("mm", "bmm")
def _(w, n, a, b):
    return _product(w, a, b)


@lower("addmm", "baddbmm")
def _(w, n, x, a, b, beta, alpha):
    if not a.dtype.is_floating_point or beta == 0 or alpha == 0:
        return _sum_of(w, n, x, lambda: _product(w, a, b), beta, alpha)
    name = "addmm" if len(a.shape) == 2 else "baddbmm"
    return w.op(name, [x, a, b, beta, alpha], a.dtype, n.shape)


@lower("addbmm")
def _(w, n, x, a, b, beta, alpha):
    # The batch joins the inner dim: one product instead of a sum of many.
    def product():
        batch, rows, inner = a.shape
        left = w.view(w.permute(a, [1, 0, 2]), (rows, batch * inner))
        return _product(w, left, w.view(b, (batch * inner, b.shape[2])))

    return _sum_of(w, n, x, product, beta, alpha)


def _times_vector(w, a, v):
    rows, inner = a.shape
    return w.view(_product(w, a, w.view(v, (inner, 1))), (rows,))


@lower("mv")
def _(w, n, a, v):
    return _times_vector(w, a, v)


@lower("addmv")
def _(w, n, x, a, v, beta, alpha):
    return _sum_of(w, n, x, lambda: _times_vector(w, a, v), beta, alpha)


@lower("addr")
def _(w, n, x, a, b, beta, alpha):
    x, a, b = (w.cast(t, n.dtype) for t in (x, a, b))
    outer = w.view(a, (a.shape[0], 1)) * b
    if n.dtype is torch.bool:
        outer = outer if alpha else w.full(False, n.dtype, n.shape)
        return (w.expand(x, n.shape) | outer) if beta else outer
    outer = _weighted(outer, alpha)  # is read with any factor, as in eager
    return outer if beta == 0 else _weighted(w.expand(x, n.shape), beta) + outer


@lower("dot", "vdot")
def _(w, n, a, b):
    half = n.dtype in (torch.float16, torch.bfloat16)
    wide = torch.float32 if half else n.dtype if n.dtype.is_floating_point else torch.int64
    return w.cast(w.sum(w.cast(a, wide) * w.cast(b, wide)), n.dtype)


@lower("_trilinear")
def _(w, n, a, b, c, expand_a, expand_b, expand_c, sum_dims, _unroll):
    product = None
    for x, dims in ((a, expand_a), (b, expand_b), (c, expand_c)):
        for d in sorted(dims):
            x = w.unsqueeze(x, d)
        product = x if product is None else product * x
    return w.sum(product, sum_dims) if sum_dims else product


@lower("linalg_cross")
def _(w, n, a, b, dim):
    dim %= len(n.shape)
    a, b = (w.expand(w.cast(t, n.dtype), n.shape) for t in (a, b))

    def part(x, i):
        return w.slice(x, dim, i % 3, i % 3 + 1)

    parts = [part(a, i + 1) * part(b, i + 2) - part(a, i + 2) * part(b, i + 1) for i in range(3)]
    return w.op("cat", [parts, dim], n.dtype, n.shape)


def _diagonal(w, x):
    """The main diagonal of the last two dims, as a view."""
    *batch, rows, cols = x.shape
    size = min(rows, cols)
    flat = w.view(x, (*batch, rows * cols))
    if size == 0:
        return w.slice(flat, len(batch), 0, 0)
    return w.slice(flat, len(batch), 0, (size - 1) * (cols + 1) + 1, cols + 1)


@lower("trace")
def _(w, n, x):
    return w.sum(w.cast(_diagonal(w, x), n.dtype))


# Factorisations. All of them work on float32 matrices in the last two dims.


def _t(w, x):
    rank = len(x.shape)
    return w.permute(x, [*range(rank - 2), rank - 1, rank - 2])


def _batched(w, x, batch, inner=2):
    return w.expand(x, (*batch, *x.shape[len(x.shape) - inner :]))


def _need_f32(*values):
    if any(v.dtype is not torch.float32 for v in values):
        raise MissingRow("linear algebra in another type")


def _eye(w, rows, cols, batch=()):
    place = w.arange(cols) - w.view(w.arange(rows), (rows, 1))
    return w.expand(w.cast(place.equals(0), torch.float32), (*batch, rows, cols))


def _triangle(w, x, upper, diagonal=0):
    rows, cols = x.shape[-2:]
    place = w.arange(cols) - w.view(w.arange(rows), (rows, 1))
    return w.where(place >= diagonal if upper else place <= diagonal, x, 0.0)


def _cholesky(w, a, upper, check):
    _need_f32(a)
    types = [(torch.float32, a.shape), (torch.int32, a.shape[:-2])]
    return list(w.ops("linalg_cholesky_ex", [a, bool(upper), check], types))


@lower("linalg_cholesky_ex")
def _(w, n, a, upper, check_errors):
    return _cholesky(w, a, upper, n.check or ("linalg.cholesky_ex" if check_errors else None))


@lower("cholesky")
def _(w, n, a, upper):
    return _cholesky(w, a, upper, "cholesky")[0]


def _solve_triangular(w, a, b, upper, left=True, unitriangular=False):
    _need_f32(a, b)
    if not left:
        return _t(w, _solve_triangular(w, _t(w, a), _t(w, b), not upper, True, unitriangular))
    args = [a, b, bool(upper), bool(unitriangular)]
    return w.op("linalg_solve_triangular", args, torch.float32, b.shape)


@lower("linalg_solve_triangular")
def _(w, n, a, b, upper, left, unitriangular):
    batch = n.shape[:-2]
    a, b = _batched(w, a, batch), _batched(w, b, batch)
    return _solve_triangular(w, a, b, upper, left, unitriangular)


@lower("triangular_solve")
def _(w, n, b, a, upper, transpose, unitriangular):
    batch = n.shape[:-2]
    a, b = _batched(w, a, batch), _batched(w, b, batch)
    if transpose:
        x = _solve_triangular(w, _t(w, a), b, not upper, True, unitriangular)
    else:
        x = _solve_triangular(w, a, b, upper, True, unitriangular)
    return [x, a]


def _cholesky_solve(w, b, factor, upper):
    first, second = (_t(w, factor), factor) if upper else (factor, _t(w, factor))
    return _solve_triangular(w, second, _solve_triangular(w, first, b, False), True)


@lower("cholesky_solve", "_cholesky_solve_helper")
def _(w, n, b, factor, upper):
    batch = n.shape[:-2]
    return _cholesky_solve(w, _batched(w, b, batch), _batched(w, factor, batch), upper)


@lower("cholesky_inverse")
def _(w, n, factor, upper):
    size = n.shape[-1]
    return _cholesky_solve(w, _eye(w, size, size, n.shape[:-2]), factor, upper)


def _lu_factor(w, a, pivot=True, check=None):
    _need_f32(a)
    *batch, rows, cols = a.shape
    types = [
        (torch.float32, a.shape),
        (torch.int32, (*batch, min(rows, cols))),
        (torch.int32, tuple(batch)),
    ]
    return list(w.ops("linalg_lu_factor_ex", [a, bool(pivot), check], types))


@lower("linalg_lu_factor_ex")
def _(w, n, a, pivot, check_errors):
    check = n.check or ("torch.linalg.lu_factor_ex" if check_errors else None)
    return _lu_factor(w, a, pivot, check)


def _unpacked(w, n, lu, pivots):
    """P, L and U, those that were asked for."""
    *batch, rows, cols = lu.shape
    size = min(rows, cols)
    rank = len(lu.shape)
    wanted = [(*batch, rows, rows), (*batch, rows, size), (*batch, size, cols)]
    out = [
        None if tuple(v.shape) == s else w.full(0, v.dtype, v.shape)
        for v, s in zip(n.vals, wanted, strict=True)
    ]
    if out[0] is None:
        # Row i of the factors is row order[i] of the matrix.
        order = w.op("lu_permutation", [pivots], torch.int64, (*batch, rows))
        here = w.view(w.arange(rows), (rows, 1))
        out[0] = w.cast(w.unsqueeze(order, rank - 2).equals(here), torch.float32)
    if out[1] is None:
        low = _triangle(w, w.slice(lu, rank - 1, 0, size), False, -1)
        out[1] = low + _eye(w, rows, size)
    if out[2] is None:
        out[2] = _triangle(w, w.slice(lu, rank - 2, 0, size), True)
    return out


@lower("lu_unpack")
def _(w, n, lu, pivots, _data, _pivots):
    _need_f32(lu)
    return _unpacked(w, n, lu, w.cast(pivots, torch.int32))


@lower("linalg_lu")
def _(w, n, a, pivot):
    lu, pivots, _ = _lu_factor(w, a, pivot)
    return _unpacked(w, n, lu, pivots)


def _lu_solve(w, lu, pivots, b, left=True, adjoint=False):
    _need_f32(lu, b)
    if not left:
        return _t(w, _lu_solve(w, lu, pivots, _t(w, b), True, not adjoint))
    return w.op("linalg_lu_solve", [lu, pivots, b, bool(adjoint)], torch.float32, b.shape)


@lower("linalg_lu_solve")
def _(w, n, lu, pivots, b, left, adjoint):
    batch = n.shape[:-2]
    pivots = _batched(w, w.cast(pivots, torch.int32), batch, 1)
    return _lu_solve(w, _batched(w, lu, batch), pivots, _batched(w, b, batch), left, adjoint)


def _factors_transpose(n):
    """For determinants torch factors the transpose of a contiguous matrix; gradients rely on it."""
    return n.node.args[0].meta["val"].is_contiguous()


@lower("_linalg_solve_ex")
def _(w, n, a, b, left, check_errors):
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
def _(w, n, a, check_errors):
    check = n.check or ("linalg.inv_ex" if check_errors else None)
    lu, pivots, info = _lu_factor(w, a, True, check)
    size = a.shape[-1]
    return [_lu_solve(w, lu, pivots, _eye(w, size, size, a.shape[:-2])), info]


def _parity(w, pivots):
    """1 for an even number of row exchanges, -1 for an odd one."""
    size = pivots.shape[-1]
    moved = w.pointwise("ne", pivots, w.arange(size, 1, 1, torch.int32))
    odd = w.pointwise("remainder", w.sum(w.cast(moved, torch.int64), [-1]), 2)
    return 1.0 - w.cast(odd, torch.float32) * 2.0


def _factored(w, n, a):
    lu, pivots, _ = _lu_factor(w, _t(w, a) if _factors_transpose(n) else a)
    return lu, pivots, _diagonal(w, lu)


@lower("_linalg_det")
def _(w, n, a):
    lu, pivots, diagonal = _factored(w, n, a)
    return [_parity(w, pivots) * w.reduce("prod", diagonal, [-1], False), lu, pivots]


@lower("_linalg_slogdet")
def _(w, n, a):
    lu, pivots, diagonal = _factored(w, n, a)
    sign = _parity(w, pivots) * w.reduce("prod", diagonal.sign(), [-1], False)
    return [sign, w.sum(diagonal.abs().log(), [-1]), lu, pivots]


def _geqrf(w, a):
    _need_f32(a)
    *batch, rows, cols = a.shape
    types = [(torch.float32, a.shape), (torch.float32, (*batch, min(rows, cols)))]
    return w.ops("geqrf", [a], types)


@lower("geqrf")
def _(w, n, a):
    return list(_geqrf(w, a))


def _orthogonal(w, packed, tau, columns):
    shape = (*packed.shape[:-1], columns)
    return w.op("linalg_householder_product", [packed, tau], torch.float32, shape)


@lower("linalg_householder_product", "orgqr")
def _(w, n, packed, tau):
    _need_f32(packed, tau)
    return _orthogonal(w, packed, tau, packed.shape[-1])


@lower("ormqr")
def _(w, n, packed, tau, other, left, transpose):
    _need_f32(packed, tau, other)
    q = _orthogonal(w, packed, tau, packed.shape[-2])
    q = _t(w, q) if transpose else q
    a, b = (q, other) if left else (other, q)
    if len(n.shape) == 2:
        return _product(w, a, b)
    size = count(n.shape[:-2])
    a, b = (w.view(x, (size, *x.shape[-2:])) for x in (a, b))
    return w.view(_product(w, a, b), n.shape)


@lower("linalg_qr")
def _(w, n, a, mode):
    packed, tau = _geqrf(w, a)
    r_shape = n.type(1)[1]
    r = _triangle(w, w.slice(packed, len(a.shape) - 2, 0, r_shape[-2]), True)
    if mode == "r":
        return [w.full(0, torch.float32, n.shape), r]
    return [_orthogonal(w, packed, tau, n.shape[-1]), r]


def _need_small(a, one, many):
    """Sizes up to which our kernels, which share a batch but not a matrix between threads, beat the
    blocked ones of LAPACK."""
    *batch, rows, cols = a.shape
    if min(rows, cols) > (many if count(batch) > 1 else one):
        raise MissingRow("a large matrix")


@lower("linalg_matrix_exp")
def _(w, n, a):
    _need_f32(a)
    _need_small(a, 128, 512)
    return w.op("linalg_matrix_exp", [a], torch.float32, a.shape)


# Spectra. Vectors are unique up to their sign only: they are torch's own unless nothing but a
# gradient, which does not depend on the sign, looks at them.


def _values(w, n, i, native, hosted):
    """The values alone, result i; captured tensors make torch ask for the vectors as well."""
    try:
        values = native()
    except MissingRow:
        values = w.host_call(*hosted, [n.type(i)])[0]
    return [values if k == i else w.full(0, *n.type(k)) for k in range(len(n.vals))]


@lower("_linalg_eigh")
def _(w, n, a, uplo, compute_v):
    _need_f32(a)
    args = [a, uplo.upper() == "U"]

    def native():
        _need_small(a, 32, 64)
        return w.op("eigh", args, torch.float32, n.shape)

    if not compute_v or n.unused(1):
        return _values(w, n, 0, native, ("aten::linalg_eigvalsh.default", [a, uplo]))
    if n.only_in_backward(1):
        _need_small(a, 32, 64)
        return list(w.ops("eigh", args, n.types()))
    raise MissingRow("eigenvectors")


def _svd(w, a):
    _need_f32(a)
    _need_small(a, 64, 128)
    *batch, rows, cols = a.shape
    size = min(rows, cols)
    shapes = [(*batch, rows, size), (*batch, size), (*batch, size, cols)]
    return w.ops("svd_thin", [a], [(torch.float32, s) for s in shapes])


@lower("_linalg_svd")
def _(w, n, a, full, compute_uv, driver):
    _need_f32(a)

    def native():
        _need_small(a, 32, 64)
        return w.op("svd_thin", [a], *n.type(1))

    if not compute_uv or (n.unused(0) and n.unused(2)):
        return _values(w, n, 1, native, ("aten::linalg_svdvals.default", [a, driver]))
    thin = not full or a.shape[-2] == a.shape[-1]
    if thin and n.only_in_backward(0) and n.only_in_backward(2):
        return list(_svd(w, a))
    raise MissingRow("singular vectors")


def _tolerance(w, x):
    """A tolerance per matrix beside its singular values: a tensor, a number or nothing."""
    if not isinstance(x, Value):
        return x
    return w.unsqueeze(w.cast(x, torch.float32), len(x.shape))


@lower("linalg_pinv.atol_rtol_tensor")
def _(w, n, a, atol, rtol, hermitian):
    rows, cols = a.shape[-2:]
    if count(a.shape) == 0:
        return w.full(0, torch.float32, n.shape)
    atol, rtol = _tolerance(w, atol), _tolerance(w, rtol)
    if rtol is None:
        rtol = torch.finfo(torch.float32).eps * max(rows, cols)
        if isinstance(atol, Value):
            rtol = w.where(atol > 0, 0.0, rtol)
        elif atol:
            rtol = 0.0
    if hermitian:
        lower_half = _triangle(w, a, False)
        a = lower_half + _t(w, _triangle(w, a, False, -1))
    u, s, vh = _svd(w, a)
    rank = len(s.shape)
    limit = w.pointwise("maximum", w.slice(s, rank - 1, 0, 1) * rtol, 0.0 if atol is None else atol)
    inverse = w.where(s > limit, s.reciprocal(), 0.0)
    left = _t(w, vh) * w.unsqueeze(inverse, rank - 1)
    size = count(n.shape[:-2])
    left, right = (w.view(x, (size, *x.shape[-2:])) for x in (left, _t(w, u)))
    return w.view(_product(w, left, right), n.shape)
