# SPDX-License-Identifier: Apache-2.0
"""Lowerings of elementwise ops, activations and their gradients to pointwise rows."""

import math

import torch

from .lowering import lower
from .writer import MissingRow

_UNARY = (
    "abs neg reciprocal rsqrt sign sqrt acos asin atan cos cosh erf erfc exp exp2 expm1 log "
    "log10 log1p log2 sin sinh tan tanh sigmoid silu relu isnan isinf logical_not bitwise_not"
).split()
_BINARY = (
    "atan2 maximum minimum fmod remainder eq ge gt le lt ne logical_and logical_or logical_xor "
    "bitwise_and bitwise_or bitwise_xor mul"
).split()
_PLAIN_GRADIENTS = "sigmoid_backward silu_backward tanh_backward threshold_backward".split()


def _register_plain(name):
    lower(name)(lambda w, n, *xs: w.pointwise(name, *xs, dtype=n.dtype))


for _name in _UNARY + _BINARY + _PLAIN_GRADIENTS:
    _register_plain(_name)


def _register_rounding(name):
    def run(w, n, x):
        return w.pointwise(name, x) if x.dtype.is_floating_point else x

    lower(name)(run)


for _name in ("ceil", "floor", "trunc", "round"):
    _register_rounding(_name)


@lower("round.decimals")
def _(w, n, x, decimals):
    if not x.dtype.is_floating_point:
        raise MissingRow("round.decimals")
    scale = 10.0 ** abs(decimals)
    return (x * scale).round() / scale if decimals >= 0 else (x / scale).round() * scale


@lower("sgn")
def _(w, n, x):
    return x.sign()


@lower("frac")
def _(w, n, x):
    return x - x.trunc()


@lower("add")
def _(w, n, a, b, alpha=1):
    return w.pointwise("add", a, b if alpha == 1 else b * alpha, dtype=n.dtype)


@lower("sub")
def _(w, n, a, b, alpha=1):
    return w.pointwise("sub", a, b if alpha == 1 else b * alpha, dtype=n.dtype)


@lower("rsub")
def _(w, n, a, b, alpha=1):
    return w.pointwise("sub", b, a if alpha == 1 else a * alpha, dtype=n.dtype)


_ROUNDED = {None: "div", "floor": "div_floor", "trunc": "div_trunc"}


@lower("div")
def _(w, n, a, b, mode=None):
    return w.pointwise(_ROUNDED[mode], a, b, dtype=n.dtype)


@lower("floor_divide")
def _(w, n, a, b):
    return w.pointwise("div_floor", a, b, dtype=n.dtype)


@lower("pow")
def _(w, n, a, b):
    known = b if isinstance(b, (int, float)) else None
    x = w.cast(a, n.dtype) if known is not None else a
    if known == 1:
        return x
    if known == 2:
        return x.square()
    if known == 3:
        return x * x * x
    if n.dtype.is_floating_point:
        if known == 0.5:
            return x.sqrt()
        if known == -0.5:
            return x.rsqrt()
        if known == -1:
            return x.reciprocal()
    if known == 0:
        return w.full(1, n.dtype, n.shape)
    return w.pointwise("pow", a, b, dtype=n.dtype)


@lower("clamp")
def _(w, n, x, low, high):
    out = w.cast(x, n.dtype)
    if low is not None:
        out = w.pointwise("maximum", out, low, dtype=n.dtype)
    if high is not None:
        out = w.pointwise("minimum", out, high, dtype=n.dtype)
    return out


@lower("clamp_min")
def _(w, n, x, low):
    return w.pointwise("maximum", x, low, dtype=n.dtype)


@lower("clamp_max")
def _(w, n, x, high):
    return w.pointwise("minimum", x, high, dtype=n.dtype)


@lower("where.self")
def _(w, n, condition, a, b):
    return w.cast(w.where(condition, a, b), n.dtype)


@lower("masked_fill")
def _(w, n, x, mask, value):
    return w.cast(w.where(mask, value, x), n.dtype)


@lower("gelu")
def _(w, n, x, approximate):
    return w.pointwise("gelu_tanh" if approximate == "tanh" else "gelu", x)


@lower("gelu_backward")
def _(w, n, grad, x, approximate):
    name = "gelu_tanh_backward" if approximate == "tanh" else "gelu_backward"
    return w.pointwise(name, grad, x)


@lower("threshold")
def _(w, n, x, threshold, value):
    return w.where(x <= threshold, value, x)


@lower("leaky_relu")
def _(w, n, x, slope):
    return w.where(x > 0, x, x * slope)


@lower("leaky_relu_backward")
def _(w, n, grad, x, slope, is_result):
    return w.where(x > 0, grad, grad * slope)


@lower("elu")
def _(w, n, x, alpha, scale, input_scale):
    return w.where(x > 0, x * scale, (x * input_scale).expm1() * (alpha * scale))


@lower("elu_backward")
def _(w, n, grad, alpha, scale, input_scale, is_result, x):
    if is_result:
        below = grad * input_scale * (x + alpha * scale)
    else:
        below = grad * (input_scale * alpha * scale) * (x * input_scale).exp()
    return w.where(x <= 0, below, grad * scale)


@lower("celu")
def _(w, n, x, alpha):
    return w.where(x > 0, x, (x * (1.0 / alpha)).expm1() * alpha)


def _clamped(w, x, low, high):
    return w.pointwise("minimum", w.pointwise("maximum", x, low), high)


@lower("hardtanh")
def _(w, n, x, low, high):
    return _clamped(w, x, low, high)


@lower("hardtanh_backward")
def _(w, n, grad, x, low, high):
    return w.where((x <= low) | (x >= high), 0.0, grad)


@lower("hardsigmoid")
def _(w, n, x):
    return _clamped(w, x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


@lower("hardsigmoid_backward")
def _(w, n, grad, x):
    return w.where((x > -3.0) & (x < 3.0), grad * (1.0 / 6.0), 0.0)


@lower("hardswish")
def _(w, n, x):
    return x * _clamped(w, x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


@lower("hardswish_backward")
def _(w, n, grad, x):
    middle = grad * (x * (1.0 / 3.0) + 0.5)
    return w.where(x <= -3.0, 0.0, w.where(x < 3.0, middle, grad))


@lower("softplus")
def _(w, n, x, beta, threshold):
    scaled = x * beta
    return w.where(scaled > threshold, x, scaled.exp().log1p() * (1.0 / beta))


@lower("softplus_backward")
def _(w, n, grad, x, beta, threshold):
    scaled = x * beta
    return w.where(scaled > threshold, grad, grad * scaled.sigmoid())


@lower("softshrink")
def _(w, n, x, lambd):
    return w.where(x > lambd, x - lambd, w.where(x < -lambd, x + lambd, x * 0.0))


@lower("hardshrink")
def _(w, n, x, lambd):
    return w.where((x >= -lambd) & (x <= lambd), 0.0, x)


@lower("softshrink_backward", "hardshrink_backward")
def _(w, n, grad, x, lambd):
    return w.where((x >= -lambd) & (x <= lambd), 0.0, grad)


def _softplus1(w, x):
    return w.where(x > 20.0, x, x.exp().log1p())


@lower("mish")
def _(w, n, x):
    return x * _softplus1(w, x).tanh()


@lower("mish_backward")
def _(w, n, grad, x):
    t = _softplus1(w, x).tanh()
    return grad * (t + x * x.sigmoid() * (1.0 - t * t))


@lower("log_sigmoid_forward")
def _(w, n, x):
    out = w.pointwise("minimum", x, 0.0) - (-x.abs()).exp().log1p()
    return [out, w.full(0, *n.type(1))]  # the second result only serves ATen's own gradient


@lower("log_sigmoid_backward")
def _(w, n, grad, x, buffer):
    return grad * (-x).sigmoid()


@lower("_prelu_kernel")
def _(w, n, x, weight):
    return w.where(x > 0, x, weight * x)


@lower("_prelu_kernel_backward")
def _(w, n, grad, x, weight):
    return [w.where(x > 0, grad, weight * grad), w.where(x > 0, 0.0, x * grad)]


def _halves(w, x, dim):
    dim %= len(x.shape)
    half = x.shape[dim] // 2
    return dim, w.slice(x, dim, 0, half), w.slice(x, dim, half, 2 * half)


@lower("glu")
def _(w, n, x, dim):
    _, a, b = _halves(w, x, dim)
    return a * b.sigmoid()


@lower("glu_backward")
def _(w, n, grad, x, dim):
    dim, a, b = _halves(w, x, dim)
    s = b.sigmoid()
    return w.op("cat", [[grad * s, grad * a * s * (1.0 - s)], dim], n.dtype, n.shape)


@lower("lerp.Scalar", "lerp.Tensor")
def _(w, n, a, b, weight):
    if isinstance(weight, (int, float)):
        # The form that is exact at the nearer end.
        return a + (b - a) * weight if abs(weight) < 0.5 else b - (b - a) * (1 - weight)
    return w.where(weight.abs() < 0.5, a + (b - a) * weight, b - (b - a) * (1.0 - weight))


@lower("addcmul")
def _(w, n, x, a, b, value):
    product = a * b
    return w.pointwise("add", x, product if value == 1 else product * value, dtype=n.dtype)


@lower("addcdiv")
def _(w, n, x, a, b, value):
    quotient = a / b
    return w.pointwise("add", x, quotient if value == 1 else quotient * value, dtype=n.dtype)


@lower("xlogy")
def _(w, n, a, b):
    b_log = b.log() if not isinstance(b, (int, float)) else math.log(b)
    zero = w.pointwise("eq", a, 0)
    if not isinstance(b, (int, float)):
        zero = zero & ~b.isnan()
    return w.cast(w.where(zero, 0.0, w.pointwise("mul", a, b_log)), n.dtype)


@lower("logit")
def _(w, n, x, eps):
    if eps is not None:
        x = _clamped(w, x, eps, 1 - eps)
    return (x / (1.0 - x)).log()


@lower("logit_backward")
def _(w, n, grad, x, eps):
    low = 0.0 if eps is None else eps
    outside = (x < low) | (x > 1.0 - low)
    return w.where(outside, math.nan if eps is None else 0.0, grad / (x * (1.0 - x)))


@lower("nan_to_num")
def _(w, n, x, nan, posinf, neginf):
    if not x.dtype.is_floating_point:
        return x
    limits = torch.finfo(x.dtype)
    nan = 0.0 if nan is None else nan
    posinf = limits.max if posinf is None else posinf
    neginf = limits.min if neginf is None else neginf
    x = w.where(x.isnan(), nan, x)
    return w.where(x.equals(math.inf), posinf, w.where(x.equals(-math.inf), neginf, x))


@lower("isposinf")
def _(w, n, x):
    return x.equals(math.inf)


@lower("isneginf")
def _(w, n, x):
    return x.equals(-math.inf)


@lower("fmax")
def _(w, n, a, b):
    return w.where(a.isnan(), b, w.where(b.isnan(), a, w.pointwise("maximum", a, b)))


@lower("fmin")
def _(w, n, a, b):
    return w.where(a.isnan(), b, w.where(b.isnan(), a, w.pointwise("minimum", a, b)))


@lower("logaddexp")
def _(w, n, a, b):
    high, low = w.pointwise("maximum", a, b), w.pointwise("minimum", a, b)
    same = high.isinf() & high.equals(low)
    return w.where(same, a, high + (low - high).exp().log1p())


@lower("heaviside")
def _(w, n, x, values):
    return w.cast(w.where(x.equals(0), values, x > 0), n.dtype)


@lower("deg2rad")
def _(w, n, x):
    return w.pointwise("mul", x, math.pi / 180.0, dtype=n.dtype)


@lower("rad2deg")
def _(w, n, x):
    return w.pointwise("mul", x, 180.0 / math.pi, dtype=n.dtype)
