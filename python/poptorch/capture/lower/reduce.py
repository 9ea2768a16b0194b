# SPDX-License-Identifier: Apache-2.0
"""Lowerings of reductions, norms, moments and scans."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from poptorch.capture.lower.shape import flipped
from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Number, Shape, Value, count
from poptorch.capture.text.writer import Writer

_HALF = (torch.float16, torch.bfloat16)


def _dims(dims: int | Sequence[int] | None) -> list[int]:
    if dims is None:
        return []
    return [dims] if isinstance(dims, int) else list(dims)


def _wide(w: Writer, x: Value, dtype: torch.dtype) -> Value:
    """x in the type that a float reduction with a result of type `dtype` is done in."""
    return w.cast(x, torch.float32 if dtype in _HALF else dtype)


def _dims_of(rest: Sequence[Any]) -> tuple[list[int], bool]:
    """(dims, keepdim) of an overload with (dims, keepdim, dtype) or with (dtype) only."""
    return (_dims(rest[0]), rest[1]) if len(rest) == 3 else ([], False)


def _total(
    w: Writer, name: str, x: Value, dtype: torch.dtype, dims: Sequence[int], keepdim: bool
) -> Value:
    """A sum or product; integers are widened by the row itself."""
    if dtype.is_floating_point:
        return w.reduce(name, w.cast(x, dtype), dims, keepdim)
    if x.dtype.is_floating_point or dtype is torch.bool:
        raise MissingRow(f"{name} of floats as integers")
    return w.cast(w.reduce(name, x, dims, keepdim, torch.int64), dtype)


@lower("sum")
def _(w: Writer, n: Results, x: Value, *rest: object) -> Value:
    return _total(w, "sum", x, n.dtype, *_dims_of(rest))


@lower("prod")
def _(w: Writer, n: Results, x: Value, *rest: object) -> Value:
    return _total(w, "prod", x, n.dtype, *_dims_of(rest))


@lower("nansum")
def _(
    w: Writer,
    n: Results,
    x: Value,
    dims: list[int] | None,
    keepdim: bool,
    dtype: torch.dtype | None,
) -> Value:
    if x.dtype.is_floating_point:
        x = w.where(x.isnan(), 0.0, x)
    return _total(w, "sum", x, n.dtype, _dims(dims), keepdim)


@lower("mean")
def _(w: Writer, n: Results, x: Value, *rest: object) -> Value:
    dims, keepdim = _dims_of(rest)
    return w.cast(w.reduce("mean", _wide(w, x, n.dtype), dims, keepdim), n.dtype)


@lower("amax")
def _(w: Writer, n: Results, x: Value, dims: list[int], keepdim: bool) -> Value:
    return w.reduce("amax", x, dims, keepdim)


@lower("amin")
def _(w: Writer, n: Results, x: Value, dims: list[int], keepdim: bool) -> Value:
    return w.reduce("amin", x, dims, keepdim)


def _register_logic(name: str) -> None:
    @lower(name)
    def _(
        w: Writer, n: Results, x: Value, dims: int | list[int] | None = None, keepdim: bool = False
    ) -> Value:
        if isinstance(dims, list) and not dims:  # no dim, as opposed to all
            return w.cast(w.cast(x, torch.bool), n.dtype)
        return w.reduce(name, x, _dims(dims), keepdim, n.dtype)


_register_logic("any")
_register_logic("all")


def _arg_reduce(
    w: Writer, name: str, x: Value, dim: int | None, keepdim: bool, shape: Shape
) -> Value:
    dim = dim if dim is None or not x.shape else dim % len(x.shape)
    return w.op(name, [x, dim, bool(keepdim)], torch.int64, shape)


@lower("argmax")
def _(w: Writer, n: Results, x: Value, dim: int | None, keepdim: bool) -> Value:
    return _arg_reduce(w, "argmax", x, dim, keepdim, n.shape)


@lower("argmin")
def _(w: Writer, n: Results, x: Value, dim: int | None, keepdim: bool) -> Value:
    return _arg_reduce(w, "argmin", x, dim, keepdim, n.shape)


def _register_extreme(name: str) -> None:
    @lower(name)
    def _(w: Writer, n: Results, x: Value) -> Value:
        return w.reduce("a" + name, x, [], False)

    @lower(name + ".dim")
    def _(w: Writer, n: Results, x: Value, dim: int, keepdim: bool) -> list[Value]:
        index = _arg_reduce(w, "arg" + name, x, dim, keepdim, n.shape)
        return [w.reduce("a" + name, x, [dim], keepdim), index]


_register_extreme("max")
_register_extreme("min")


@lower("aminmax")
def _(w: Writer, n: Results, x: Value, dim: int | None, keepdim: bool) -> list[Value]:
    dims = _dims(dim)
    low, high = w.reduce("amin", x, dims, keepdim), w.reduce("amax", x, dims, keepdim)
    return [w.view(low, n.shape), w.view(high, n.shape)]


@lower("count_nonzero")
def _(w: Writer, n: Results, x: Value, dims: int | list[int] | None = None) -> Value:
    return w.reduce("sum", w.cast(x, torch.bool), _dims(dims), False, torch.int64)


def _moments(
    w: Writer,
    n: Results,
    x: Value,
    dims: list[int] | None,
    correction: Number | None,
    keepdim: bool,
) -> tuple[Value, Value]:
    """(variance, mean) in the type of the computation."""
    gone, x = _dims(dims), _wide(w, x, n.dtype)
    mean = w.reduce("mean", x, gone, True)
    total = count(x.shape) // max(1, count(mean.shape))
    spread = w.sum((x - mean).square(), gone, keepdim)
    rest = max(0.0, total - (1 if correction is None else correction))
    var = spread * (1.0 / rest) if rest else spread / 0.0
    return var, w.view(mean, var.shape)


@lower("var.correction")
def _(
    w: Writer,
    n: Results,
    x: Value,
    dims: list[int] | None,
    correction: Number | None,
    keepdim: bool,
) -> Value:
    return w.cast(_moments(w, n, x, dims, correction, keepdim)[0], n.dtype)


@lower("std.correction")
def _(
    w: Writer,
    n: Results,
    x: Value,
    dims: list[int] | None,
    correction: Number | None,
    keepdim: bool,
) -> Value:
    return w.cast(_moments(w, n, x, dims, correction, keepdim)[0].sqrt(), n.dtype)


@lower("var_mean.correction")
def _(
    w: Writer,
    n: Results,
    x: Value,
    dims: list[int] | None,
    correction: Number | None,
    keepdim: bool,
) -> list[Value]:
    return [w.cast(v, n.dtype) for v in _moments(w, n, x, dims, correction, keepdim)]


@lower("std_mean.correction")
def _(
    w: Writer,
    n: Results,
    x: Value,
    dims: list[int] | None,
    correction: Number | None,
    keepdim: bool,
) -> list[Value]:
    var, mean = _moments(w, n, x, dims, correction, keepdim)
    return [w.cast(var.sqrt(), n.dtype), w.cast(mean, n.dtype)]


@lower("logsumexp")
def _(w: Writer, n: Results, x: Value, dims: list[int], keepdim: bool) -> Value:
    if not count(x.shape):
        return w.full(-math.inf, n.dtype, n.shape)
    x = _wide(w, x, n.dtype)
    top = w.reduce("amax", x, dims, True)
    top = w.where(top.isinf(), 0.0, top)
    total = w.sum((x - top).exp(), dims, keepdim).log()
    return w.cast(total + w.view(top, total.shape), n.dtype)


def _norm(w: Writer, x: Value, order: Number, dims: Sequence[int], keepdim: bool) -> Value:
    if order == 2:
        return w.sum(x.square(), dims, keepdim).sqrt()
    if order == 1:
        return w.sum(x.abs(), dims, keepdim)
    if order == math.inf:
        return w.reduce("amax", x.abs(), dims, keepdim)
    if order == -math.inf:
        return w.reduce("amin", x.abs(), dims, keepdim)
    if order == 0:
        return w.sum(w.cast(w.pointwise("ne", x, 0), x.dtype), dims, keepdim)
    total = w.sum(w.pointwise("pow", x.abs(), float(order)), dims, keepdim)
    return w.pointwise("pow", total, 1.0 / order)


@lower("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar")
def _(
    w: Writer,
    n: Results,
    x: Value,
    order: Number | None = 2,
    dims: list[int] | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:
    order = 2 if order is None else order
    if not count(x.shape):
        if order == math.inf and count(n.shape):
            return w.full(0, n.dtype, n.shape)
        if order < 0 and count(n.shape):
            return w.full(math.inf, n.dtype, n.shape)
    return w.cast(_norm(w, _wide(w, x, n.dtype), order, _dims(dims), keepdim), n.dtype)


@lower("dist")
def _(w: Writer, n: Results, a: Value, b: Value, order: Number) -> Value:
    return w.cast(_norm(w, _wide(w, a - b, n.dtype), order, [], False), n.dtype)


@lower("renorm")
def _(w: Writer, n: Results, x: Value, order: Number, dim: int, limit: Number) -> Value:
    dims = [d for d in range(len(x.shape)) if d != dim % len(x.shape)]
    wide = _wide(w, x, n.dtype)
    norm = _norm(w, wide, order, dims, True)
    factor = w.where(norm > limit, limit / (norm + 1e-7), 1.0)
    return w.cast(wide * factor, n.dtype)


# Scans. The scan of a flipped tensor is the flipped scan from the other end: so autograd's
# flip, cumsum, flip is one pass over memory.


def _scan(w: Writer, name: str, x: Value, dim: int) -> Value:
    dim = dim % len(x.shape) if x.shape else 0
    if x in w.flips and w.flips[x][1] == {dim}:
        return flipped(w, w.op(name, [w.flips[x][0], dim, True], x.dtype, x.shape), {dim})
    return w.op(name, [x, dim, False], x.dtype, x.shape)


def _register_scan(name: str) -> None:
    @lower(name)
    def _(w: Writer, n: Results, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
        if n.dtype is torch.bool:
            raise MissingRow(name)
        return _scan(w, name, w.cast(x, n.dtype), dim)


for _name in ("cumsum", "cumprod", "logcumsumexp"):
    _register_scan(_name)
