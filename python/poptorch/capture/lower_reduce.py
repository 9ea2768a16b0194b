# SPDX-License-Identifier: Apache-2.0
"""Lowerings of reductions, norms, moments and running results along a dim."""

import math

import torch

from .lower_shape import flipped
from .lowering import lower
from .writer import MissingRow, count

_HALF = (torch.float16, torch.bfloat16)


def _dims(dims):
    if dims is None:
        return []
    return [dims] if isinstance(dims, int) else list(dims)


def _wide(w, x, dtype):
    """x in the type that a float reduction with a result of type `dtype` is done in."""
    return w.cast(x, torch.float32 if dtype in _HALF else dtype)


def _dims_of(rest):
    """(dims, keepdim) of an overload with (dims, keepdim, dtype) or with (dtype) only."""
    return (_dims(rest[0]), rest[1]) if len(rest) == 3 else ([], False)


def _total(w, name, x, dtype, dims, keepdim):
    """A sum or product; integers are widened by the row itself."""
    if dtype.is_floating_point:
        return w.reduce(name, w.cast(x, dtype), dims, keepdim)
    if x.dtype.is_floating_point or dtype is torch.bool:
        raise MissingRow(f"{name} of floats as integers")
    return w.cast(w.reduce(name, x, dims, keepdim, torch.int64), dtype)


@lower("sum")
def _(w, n, x, *rest):
    return _total(w, "sum", x, n.dtype, *_dims_of(rest))


@lower("prod")
def _(w, n, x, *rest):
    return _total(w, "prod", x, n.dtype, *_dims_of(rest))


@lower("nansum")
def _(w, n, x, dims, keepdim, dtype):
    if x.dtype.is_floating_point:
        x = w.where(x.isnan(), 0.0, x)
    return _total(w, "sum", x, n.dtype, _dims(dims), keepdim)


@lower("mean")
def _(w, n, x, *rest):
    dims, keepdim = _dims_of(rest)
    return w.cast(w.reduce("mean", _wide(w, x, n.dtype), dims, keepdim), n.dtype)


@lower("amax")
def _(w, n, x, dims, keepdim):
    return w.reduce("amax", x, dims, keepdim)


@lower("amin")
def _(w, n, x, dims, keepdim):
    return w.reduce("amin", x, dims, keepdim)


def _register_logic(name):
    @lower(name)
    def _(w, n, x, dims=None, keepdim=False):
        if isinstance(dims, list) and not dims:  # no dim, as opposed to all
            return w.cast(w.cast(x, torch.bool), n.dtype)
        return w.reduce(name, x, _dims(dims), keepdim, n.dtype)


_register_logic("any")
_register_logic("all")


def _arg_reduce(w, name, x, dim, keepdim, shape):
    dim = dim if dim is None or not x.shape else dim % len(x.shape)
    return w.op(name, [x, dim, bool(keepdim)], torch.int64, shape)


@lower("argmax")
def _(w, n, x, dim, keepdim):
    return _arg_reduce(w, "argmax", x, dim, keepdim, n.shape)


@lower("argmin")
def _(w, n, x, dim, keepdim):
    return _arg_reduce(w, "argmin", x, dim, keepdim, n.shape)


def _register_extreme(name):
    @lower(name)
    def _(w, n, x):
        return w.reduce("a" + name, x, [], False)

    @lower(name + ".dim")
    def _(w, n, x, dim, keepdim):
        index = _arg_reduce(w, "arg" + name, x, dim, keepdim, n.shape)
        return [w.reduce("a" + name, x, [dim], keepdim), index]


_register_extreme("max")
_register_extreme("min")


@lower("aminmax")
def _(w, n, x, dim, keepdim):
    dims = _dims(dim)
    low, high = w.reduce("amin", x, dims, keepdim), w.reduce("amax", x, dims, keepdim)
    return [w.view(low, n.shape), w.view(high, n.shape)]


@lower("count_nonzero")
def _(w, n, x, dims=None):
    return w.reduce("sum", w.cast(x, torch.bool), _dims(dims), False, torch.int64)


def _moments(w, n, x, dims, correction, keepdim):
    """(variance, mean) in the type of the computation."""
    dims, x = _dims(dims), _wide(w, x, n.dtype)
    mean = w.reduce("mean", x, dims, True)
    total = count(x.shape) // max(1, count(mean.shape))
    spread = w.sum((x - mean).square(), dims, keepdim)
    rest = max(0.0, total - (1 if correction is None else correction))
    var = spread * (1.0 / rest) if rest else spread / 0.0
    return var, w.view(mean, var.shape)


@lower("var.correction")
def _(w, n, x, dims, correction, keepdim):
    return w.cast(_moments(w, n, x, dims, correction, keepdim)[0], n.dtype)


@lower("std.correction")
def _(w, n, x, dims, correction, keepdim):
    return w.cast(_moments(w, n, x, dims, correction, keepdim)[0].sqrt(), n.dtype)


@lower("var_mean.correction")
def _(w, n, x, dims, correction, keepdim):
    return [w.cast(v, n.dtype) for v in _moments(w, n, x, dims, correction, keepdim)]


@lower("std_mean.correction")
def _(w, n, x, dims, correction, keepdim):
    var, mean = _moments(w, n, x, dims, correction, keepdim)
    return [w.cast(var.sqrt(), n.dtype), w.cast(mean, n.dtype)]


@lower("logsumexp")
def _(w, n, x, dims, keepdim):
    if not count(x.shape):
        return w.full(-math.inf, n.dtype, n.shape)
    x = _wide(w, x, n.dtype)
    top = w.reduce("amax", x, dims, True)
    top = w.where(top.isinf(), 0.0, top)
    total = w.sum((x - top).exp(), dims, keepdim).log()
    return w.cast(total + w.view(top, total.shape), n.dtype)


def _norm(w, x, order, dims, keepdim):
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
def _(w, n, x, order=2, dims=None, keepdim=False, dtype=None):
    order = 2 if order is None else order
    if not count(x.shape):
        if order == math.inf and count(n.shape):
            return w.full(0, n.dtype, n.shape)
        if order < 0 and count(n.shape):
            return w.full(math.inf, n.dtype, n.shape)
    return w.cast(_norm(w, _wide(w, x, n.dtype), order, _dims(dims), keepdim), n.dtype)


@lower("dist")
def _(w, n, a, b, order):
    return w.cast(_norm(w, _wide(w, a - b, n.dtype), order, [], False), n.dtype)


@lower("renorm")
def _(w, n, x, order, dim, limit):
    dims = [d for d in range(len(x.shape)) if d != dim % len(x.shape)]
    wide = _wide(w, x, n.dtype)
    norm = _norm(w, wide, order, dims, True)
    factor = w.where(norm > limit, limit / (norm + 1e-7), 1.0)
    return w.cast(wide * factor, n.dtype)


# Running results. A scan of a flipped tensor is the flipped scan from the other end: so autograd's
# flip, cumsum, flip is one pass over memory.


def _scan(w, name, x, dim):
    dim = dim % len(x.shape) if x.shape else 0
    source, dims = w.flips.get(x, (None, None))
    if dims == {dim}:
        return flipped(w, w.op(name, [source, dim, True], x.dtype, x.shape), dims)
    return w.op(name, [x, dim, False], x.dtype, x.shape)


def _register_scan(name):
    @lower(name)
    def _(w, n, x, dim, dtype=None):
        if n.dtype is torch.bool:
            raise MissingRow(name)
        return _scan(w, name, w.cast(x, n.dtype), dim)


for _name in ("cumsum", "cumprod", "logcumsumexp"):
    _register_scan(_name)


@lower("cummax")
def _(w, n, x, dim):
    return list(w.ops("cummax", [x, dim], n.types()))


@lower("cummin")
def _(w, n, x, dim):
    return list(w.ops("cummin", [x, dim], n.types()))
