# SPDX-License-Identifier: Apache-2.0
"""Lowerings of elementwise ops. An op whose arguments are the operands of a row needs none."""

import math

import torch

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Number, Operand, Value
from poptorch.capture.text.writer import Writer


@lower("round.decimals")
def _(w: Writer, n: Results, x: Value, decimals: int) -> Value:
    if not x.dtype.is_floating_point:
        raise MissingRow("round.decimals")
    scale = 10.0 ** abs(decimals)
    return (x * scale).round() / scale if decimals >= 0 else (x / scale).round() * scale


@lower("add")
def _(w: Writer, n: Results, a: Operand, b: Operand, alpha: Number = 1) -> Value:
    return w.pointwise("add", a, b if alpha == 1 else b * alpha, dtype=n.dtype)


@lower("sub")
def _(w: Writer, n: Results, a: Operand, b: Operand, alpha: Number = 1) -> Value:
    return w.pointwise("sub", a, b if alpha == 1 else b * alpha, dtype=n.dtype)


@lower("rsub")
def _(w: Writer, n: Results, a: Operand, b: Operand, alpha: Number = 1) -> Value:
    return w.pointwise("sub", b, a if alpha == 1 else a * alpha, dtype=n.dtype)


_ROUNDED = {None: "div", "floor": "floor_divide", "trunc": "div_trunc"}


@lower("div")
def _(w: Writer, n: Results, a: Operand, b: Operand, mode: str | None = None) -> Value:
    return w.pointwise(_ROUNDED[mode], a, b, dtype=n.dtype)


@lower("pow")
def _(w: Writer, n: Results, a: Operand, b: Operand) -> Value:
    if isinstance(a, Value) and not isinstance(b, Value):
        x = w.cast(a, n.dtype)
        if b == 1:
            return x
        if b == 2:
            return x.square()
        if b == 3:
            return x * x * x
        if n.dtype.is_floating_point:
            if b == 0.5:
                return x.sqrt()
            if b == -0.5:
                return x.rsqrt()
            if b == -1:
                return x.reciprocal()
        if b == 0:
            return w.full(1, n.dtype, n.shape)
    return w.pointwise("pow", a, b, dtype=n.dtype)


def clamped(w: Writer, x: Value, low: Operand, high: Operand) -> Value:
    """x between two limits."""
    return w.pointwise("minimum", w.pointwise("maximum", x, low), high)


@lower("clamp")
def _(w: Writer, n: Results, x: Value, low: Operand | None, high: Operand | None) -> Value:
    out = w.cast(x, n.dtype)
    if low is not None:
        out = w.pointwise("maximum", out, low, dtype=n.dtype)
    if high is not None:
        out = w.pointwise("minimum", out, high, dtype=n.dtype)
    return out


@lower("where.self")
def _(w: Writer, n: Results, condition: Value, a: Operand, b: Operand) -> Value:
    return w.cast(w.where(condition, a, b), n.dtype)


@lower("masked_fill")
def _(w: Writer, n: Results, x: Value, mask: Value, value: Operand) -> Value:
    return w.cast(w.where(mask, value, x), n.dtype)


@lower("nan_to_num")
def _(
    w: Writer, n: Results, x: Value, nan: float | None, posinf: float | None, neginf: float | None
) -> Value:
    if not x.dtype.is_floating_point:
        return x
    limits = torch.finfo(x.dtype)
    nan = 0.0 if nan is None else nan
    posinf = limits.max if posinf is None else posinf
    neginf = limits.min if neginf is None else neginf
    x = w.where(x.isnan(), nan, x)
    return w.where(x.equals(math.inf), posinf, w.where(x.equals(-math.inf), neginf, x))


@lower("__lshift__")
def _(w: Writer, n: Results, x: Value, by: Operand) -> Value:
    if n.dtype.is_floating_point:
        return w.pointwise("mul", x, w.pointwise("pow", 2.0, by), dtype=n.dtype)
    return w.pointwise("bitwise_left_shift", x, by, dtype=n.dtype)


@lower("__rshift__")
def _(w: Writer, n: Results, x: Value, by: Operand) -> Value:
    if n.dtype.is_floating_point:
        return w.pointwise("div", x, w.pointwise("pow", 2.0, by), dtype=n.dtype)
    return w.pointwise("bitwise_right_shift", x, by, dtype=n.dtype)


@lower("ldexp.Tensor")
def _(w: Writer, n: Results, x: Value, exponent: Operand) -> Value:
    return w.pointwise("mul", x, w.pointwise("pow", 2.0, exponent), dtype=n.dtype)


@lower("frexp.Tensor")
def _(w: Writer, n: Results, x: Value) -> list[Value]:
    return [x.frexp_mantissa(), w.cast(x.frexp_exponent(), torch.int32)]


@lower("nextafter")
def _(w: Writer, n: Results, a: Value, b: Value) -> Value:
    if n.dtype is torch.float16:
        return _next_half(w, a, b)
    # the neighbours of a bfloat16 are 2**16 float32 apart
    return w.pointwise("nextafter", a, b, 65536 if n.dtype is torch.bfloat16 else 1)


def _next_half(w: Writer, a: Value, b: Value) -> Value:
    """The next float16 after a towards b, computed in float32.

    A step is one unit in the last of eleven digits. Below a power of two it is half as long, and it
    is never shorter than 2**-24.
    """
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


@lower("_conj_physical", "real")
def _(w: Writer, n: Results, x: Value) -> Value:
    return x


@lower("_efficientzerotensor")
def _(w: Writer, n: Results, *_rest: object) -> Value:
    return w.full(0, n.dtype, n.shape)  # as a constant it would have no memory
