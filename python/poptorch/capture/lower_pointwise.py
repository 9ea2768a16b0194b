# SPDX-License-Identifier: Apache-2.0
"""Lowerings of elementwise arithmetic and comparisons to pointwise rows."""

import math

import torch

from .lowering import lower
from .writer import MissingRow

_UNARY = (
    "abs neg reciprocal rsqrt sign sqrt acos acosh asin asinh atan atanh cos cosh erf erfc exp "
    "exp2 expm1 log log10 log1p log2 sin sinh tan tanh sigmoid silu relu isnan isinf logical_not "
    "bitwise_not signbit"
).split()
_BINARY = (
    "atan2 maximum minimum fmod remainder eq ge gt le lt ne logical_and logical_or logical_xor "
    "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign fmax fmin "
    "gcd heaviside hypot lcm mul"
).split()
_PLAIN_GRADIENTS = "sigmoid_backward silu_backward tanh_backward threshold_backward".split()


def register_plain(name):
    """An ATen op that is a row of the same name."""
    lower(name)(lambda w, n, *xs: w.pointwise(name, *xs, dtype=n.dtype))


for _name in _UNARY + _BINARY + _PLAIN_GRADIENTS:
    register_plain(_name)


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


def clamped(w, x, low, high):
    return w.pointwise("minimum", w.pointwise("maximum", x, low), high)


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


@lower("deg2rad")
def _(w, n, x):
    return w.pointwise("mul", x, math.pi / 180.0, dtype=n.dtype)


@lower("rad2deg")
def _(w, n, x):
    return w.pointwise("mul", x, 180.0 / math.pi, dtype=n.dtype)


@lower("__lshift__")
def _(w, n, x, by):
    if n.dtype.is_floating_point:
        return w.pointwise("mul", x, w.pointwise("pow", 2.0, by), dtype=n.dtype)
    return w.pointwise("bitwise_left_shift", x, by, dtype=n.dtype)


@lower("__rshift__")
def _(w, n, x, by):
    if n.dtype.is_floating_point:
        return w.pointwise("div", x, w.pointwise("pow", 2.0, by), dtype=n.dtype)
    return w.pointwise("bitwise_right_shift", x, by, dtype=n.dtype)


@lower("ldexp.Tensor")
def _(w, n, x, exponent):
    return w.pointwise("mul", x, w.pointwise("pow", 2.0, exponent), dtype=n.dtype)


@lower("frexp.Tensor")
def _(w, n, x):
    return [x.frexp_mantissa(), w.cast(x.frexp_exponent(), torch.int32)]


@lower("nextafter")
def _(w, n, a, b):
    if n.dtype is torch.float16:
        return _next_half(w, a, b)
    # the neighbours of a bfloat16 are 2**16 float32 apart
    return w.pointwise("nextafter", a, b, 65536 if n.dtype is torch.bfloat16 else 1)


def _next_half(w, a, b):
    """float16 towards b, in float32: a step of one unit in the last of eleven digits, which is half
    as long below a power of two, and never shorter than 2**-24."""
    x, y = w.cast(a, torch.float32), w.cast(b, torch.float32)
    size, exponent = x.abs(), x.frexp_exponent()
    outward = w.pointwise("eq", x < y, x > 0) | x.equals(0)
    short = x.frexp_mantissa().abs().equals(0.5) & ~outward
    unit = w.pointwise("maximum", exponent - w.cast(short, torch.float32) - 11.0, -24.0).exp2()
    unit = w.where(x.equals(0), 2.0**-24, unit)
    moved = w.where(outward, size + unit, size - unit)
    moved = w.where(size.isinf(), 65504.0, moved)
    sign = w.where(x.equals(0), y, x)
    moved = w.where(x.equals(y), y, w.pointwise("copysign", moved, sign))
    return w.cast(w.where(x.isnan() | y.isnan(), math.nan, moved), torch.float16)


@lower("angle")
def _(w, n, x):
    x = w.cast(x, n.dtype)
    return w.where(x.isnan(), x, w.cast(x < 0, n.dtype) * math.pi)


@lower("_conj_physical", "real")
def _(w, n, x):
    return x


@lower("_efficientzerotensor")
def _(w, n, *_rest):
    return w.full(0, n.dtype, n.shape)  # as a constant it would have no memory
