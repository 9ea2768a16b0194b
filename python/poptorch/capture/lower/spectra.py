# SPDX-License-Identifier: Apache-2.0
"""Lowerings of eigenvalues, singular values and what is made of them."""

from collections.abc import Callable

import torch

from poptorch import _core
from poptorch.capture.lower.linalg import need_f32, transposed, triangle
from poptorch.capture.lower.matmul import matrix_product
from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Operand, Value, count
from poptorch.capture.text.writer import Writer


def _need_fast(op: str, a: Value, results: int = 1) -> None:
    """Leaves matrices to torch where the core says that torch is faster."""
    if _core.host_is_faster(op, a.shape, results):
        raise MissingRow(f"{op} of a large matrix")


@lower("linalg_matrix_exp")
def _(w: Writer, n: Results, a: Value) -> Value:
    need_f32(a)
    _need_fast("linalg_matrix_exp", a)
    return w.op("linalg_matrix_exp", [a], torch.float32, a.shape)


# Vectors are unique up to their sign only. They are torch's own, unless nothing but a gradient
# reads them: it does not depend on the sign.


def _values(
    w: Writer, n: Results, i: int, native: Callable[[], Value], target: str, args: list[object]
) -> list[Value]:
    """The values alone, result i: capture makes torch ask for the vectors as well.

    They come from the row, or from a host call of `target` if there is none.
    """
    try:
        values = native()
    except MissingRow:
        values = w.host_call(target, args, [n.type(i)])[0]
    return [values if k == i else w.full(0, *n.type(k)) for k in range(len(n.vals))]


@lower("_linalg_eigh")
def _(w: Writer, n: Results, a: Value, uplo: str, compute_v: bool) -> list[Value]:
    need_f32(a)
    args = [a, uplo.upper() == "U"]

    def native() -> Value:
        _need_fast("eigh", a)
        return w.op("eigh", args, torch.float32, n.shape)

    if not compute_v or n.unused(1):
        return _values(w, n, 0, native, "aten::linalg_eigvalsh.default", [a, uplo])
    if n.only_in_backward(1):
        _need_fast("eigh", a, 2)
        return list(w.ops("eigh", args, n.types()))
    raise MissingRow("eigenvectors")


def _svd(w: Writer, a: Value) -> tuple[Value, ...]:
    need_f32(a)
    _need_fast("svd_thin", a, 3)
    *batch, rows, cols = a.shape
    size = min(rows, cols)
    shapes = [(*batch, rows, size), (*batch, size), (*batch, size, cols)]
    return w.ops("svd_thin", [a], [(torch.float32, s) for s in shapes])


@lower("_linalg_svd")
def _(
    w: Writer, n: Results, a: Value, full: bool, compute_uv: bool, driver: str | None
) -> list[Value]:
    need_f32(a)

    def native() -> Value:
        _need_fast("svd_thin", a)
        return w.op("svd_thin", [a], *n.type(1))

    if not compute_uv or (n.unused(0) and n.unused(2)):
        return _values(w, n, 1, native, "aten::linalg_svdvals.default", [a, driver])
    thin = not full or a.shape[-2] == a.shape[-1]
    if thin and n.only_in_backward(0) and n.only_in_backward(2):
        return list(_svd(w, a))
    raise MissingRow("singular vectors")


def _tolerance(w: Writer, x: Operand | None) -> Operand | None:
    """A tolerance as it broadcasts with the singular values of its matrix."""
    if not isinstance(x, Value):
        return x
    return w.unsqueeze(w.cast(x, torch.float32), len(x.shape))


@lower("linalg_pinv.atol_rtol_tensor")
def _(
    w: Writer, n: Results, a: Value, atol: Operand | None, rtol: Operand | None, hermitian: bool
) -> Value:
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
        lower_half = triangle(w, a, False)
        a = lower_half + transposed(w, triangle(w, a, False, -1))
    u, s, vh = _svd(w, a)
    rank = len(s.shape)
    limit = w.pointwise("maximum", w.slice(s, rank - 1, 0, 1) * rtol, 0.0 if atol is None else atol)
    inverse = w.where(s > limit, s.reciprocal(), 0.0)
    left = transposed(w, vh) * w.unsqueeze(inverse, rank - 1)
    size = count(n.shape[:-2])
    left, right = (w.view(x, (size, *x.shape[-2:])) for x in (left, transposed(w, u)))
    return w.view(matrix_product(w, left, right), n.shape)
