# SPDX-License-Identifier: Apache-2.0
"""Lowerings of random ops: all numbers come from `uniform`, each draw on a stream of its own."""

import math
from collections.abc import Sequence

import torch

from poptorch.capture.errors import make_error
from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.outside import line_of
from poptorch.capture.text.value import MissingRow, Number, Operand, Value
from poptorch.capture.text.writer import Writer

# Bits of randomness that a type keeps below one; more would round up to one.
_FRACTION_BITS = {torch.float16: 11, torch.bfloat16: 8}


def _uniform(w: Writer, dtype: torch.dtype, shape: Sequence[int]) -> Value:
    """Numbers in [0, 1), never one, in any float type."""
    u = w.uniform(torch.float32, shape)
    bits = _FRACTION_BITS.get(dtype)
    if bits is not None:
        u = (u * 2.0**bits).floor() * 2.0**-bits
    return w.cast(u, dtype)


def _positive_uniform(w: Writer, shape: Sequence[int]) -> Value:
    """Numbers in (0, 1], for logarithms."""
    return 1.0 - w.uniform(torch.float32, shape)


def _exponential(w: Writer, shape: Sequence[int]) -> Value:
    """Exponential numbers of rate one; never zero, so that one may divide by them."""
    return w.pointwise("maximum", -_positive_uniform(w, shape).log(), 2.0**-25)


def _normal(w: Writer, shape: Sequence[int]) -> Value:
    """Box-Muller on two streams."""
    radius = (_positive_uniform(w, shape).log() * -2.0).sqrt()
    angle = (w.uniform(torch.float32, shape) * (2.0 * math.pi)).cos()
    return radius * angle


@lower("native_dropout")
def _(w: Writer, n: Results, x: Value, p: float, train: bool | None) -> list[Value]:
    if train is False or p == 0:
        return [w.op("clone", [x], x.dtype, x.shape), w.full(True, torch.bool, x.shape)]
    if p == 1:
        return [w.full(0, x.dtype, x.shape), w.full(False, torch.bool, x.shape)]
    keep = w.uniform(torch.float32, x.shape) >= float(p)
    return [x * w.cast(keep, x.dtype) * (1.0 / (1.0 - p)), keep]


@lower("native_dropout_backward")
def _(w: Writer, n: Results, grad: Value, mask: Value, scale: float) -> Value:
    return grad * w.cast(mask, grad.dtype) * float(scale)


@lower("rand", "rand_like")
def _(w: Writer, n: Results, *_rest: object) -> Value:
    return _uniform(w, n.dtype, n.shape)


@lower("uniform")
def _(w: Writer, n: Results, x: Value, low: float, high: float, _generator: None) -> Value:
    if (low, high) == (0, 1):
        return _uniform(w, n.dtype, n.shape)
    return w.cast(w.uniform(torch.float32, n.shape) * (high - low) + low, n.dtype)


@lower("randn", "randn_like")
def _(w: Writer, n: Results, *_rest: object) -> Value:
    return w.cast(_normal(w, n.shape), n.dtype)


def _scaled_normal(w: Writer, n: Results, mean: Operand, std: Operand) -> Value:
    return w.cast(_normal(w, n.shape) * std + mean, n.dtype)


@lower("normal_functional", "normal.out")
def _(w: Writer, n: Results, x: Value, mean: float, std: float, *_rest: object) -> Value:
    return _scaled_normal(w, n, mean, std)


@lower("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "normal.float_float")
def _(w: Writer, n: Results, mean: Operand, std: Operand, *_rest: object) -> Value:
    return _scaled_normal(w, n, mean, std)


@lower("log_normal")
def _(w: Writer, n: Results, x: Value, mean: float, std: float, _generator: None) -> Value:
    return w.cast((_normal(w, n.shape) * std + mean).exp(), n.dtype)


@lower("cauchy")
def _(w: Writer, n: Results, x: Value, median: float, scale: float, _generator: None) -> Value:
    angle = (w.uniform(torch.float32, n.shape) - 0.5) * math.pi
    return w.cast(angle.tan() * scale + median, n.dtype)


@lower("exponential")
def _(w: Writer, n: Results, x: Value, rate: float, _generator: None) -> Value:
    return w.cast(_exponential(w, n.shape) * (1.0 / rate), n.dtype)


@lower("geometric")
def _(w: Writer, n: Results, x: Value, p: float, _generator: None) -> Value:
    if p == 1:
        return w.full(1, n.dtype, n.shape)
    trials = (_positive_uniform(w, n.shape).log() * (1.0 / math.log1p(-p))).ceil()
    return w.cast(w.pointwise("maximum", trials, 1.0), n.dtype)


@lower("bernoulli.p")
def _(w: Writer, n: Results, x: Value, p: float, _generator: None) -> Value:
    if not 0 <= p <= 1:
        raise make_error(f"bernoulli_ expects p to be in [0, 1], but got p={p}", line_of(n.node))
    return w.cast(w.uniform(torch.float32, n.shape) < float(p), n.dtype)


def _bernoulli(w: Writer, n: Results, p: Value) -> Value:
    p = w.cast(p, torch.float32)
    p = w.op("probability", [p], p.dtype, p.shape)
    return w.cast(w.uniform(torch.float32, n.shape) < p, n.dtype)


@lower("bernoulli")
def _(w: Writer, n: Results, p: Value, _generator: None) -> Value:
    return _bernoulli(w, n, p)


@lower("bernoulli.Tensor")
def _(w: Writer, n: Results, x: Value, p: Value, _generator: None) -> Value:
    return _bernoulli(w, n, p)


# Integers


def _words(w: Writer, shape: Sequence[int]) -> list[Value]:
    """Three random integers of 24 bits."""
    return [w.cast(w.uniform(torch.float32, shape) * 2.0**24, torch.int64) for _ in range(3)]


def _share(w: Writer, shape: Sequence[int], span: int) -> Value:
    """Random integers below a span of up to 2**63: a fraction of 62 bits times the span."""
    first, second, third = _words(w, shape)
    high = first * 2**7 + w.pointwise("floor_divide", third, 2**17)
    low = second * 2**7 + w.pointwise("remainder", third, 2**7)
    upper, lower_ = divmod(span, 2**31)
    whole = high * upper
    for part in (high * lower_, low * upper):
        whole = whole + w.pointwise("floor_divide", part, 2**31)
    return whole


def _integers(w: Writer, n: Results, low: int, span: int) -> Value:
    """low, low + 1, ... low + span - 1, each equally likely."""
    if span <= 2**20:
        whole = w.cast((w.uniform(torch.float32, n.shape) * float(span)).floor(), torch.int64)
    elif span <= 2**63:
        whole = _share(w, n.shape, span)
    elif span == 2**64:
        first, second, third = _words(w, n.shape)
        whole = first * 2**40 + second * 2**16 + w.pointwise("floor_divide", third, 2**8)
        low = 0
    else:
        raise MissingRow("random integers of an odd and very wide range")
    return w.cast(whole + low if low else whole, n.dtype)


@lower("randint", "randint_like", "randint.generator")
def _(
    w: Writer, n: Results, first: Value | int, *rest: Value | int | torch.dtype | list[int] | None
) -> Value:
    high = first if isinstance(first, int) else rest[0]
    if not isinstance(high, int):
        raise MissingRow("randint below a tensor")
    return _integers(w, n, 0, high)


@lower("randint.low", "randint.low_generator")
def _(w: Writer, n: Results, low: int, high: int, *_rest: object) -> Value:
    return _integers(w, n, low, high - low)


@lower("randint_like.low_dtype")
def _(w: Writer, n: Results, x: Value, low: int, high: int, *_rest: object) -> Value:
    return _integers(w, n, low, high - low)


@lower("random")
def _(w: Writer, n: Results, x: Value, _generator: None) -> Value:
    if n.dtype.is_floating_point:
        return _integers(w, n, 0, round(2 / torch.finfo(n.dtype).eps) + 1)
    return _integers(w, n, 0, 2 if n.dtype is torch.bool else torch.iinfo(n.dtype).max + 1)


@lower("random.to")
def _(w: Writer, n: Results, x: Value, to: int, _generator: None) -> Value:
    return _integers(w, n, 0, to)


@lower("random.from")
def _(w: Writer, n: Results, x: Value, low: int, high: int | None, _generator: None) -> Value:
    if high is not None:
        return _integers(w, n, low, high - low)
    if n.dtype.is_floating_point:
        return _integers(w, n, low, round(2 / torch.finfo(n.dtype).eps) + 1 - low)
    return _integers(
        w, n, low, (1 if n.dtype is torch.bool else torch.iinfo(n.dtype).max) + 1 - low
    )


@lower("randperm", "randperm.generator")
def _(w: Writer, n: Results, *_rest: object) -> Value:
    order = w.op("randperm", [w.rng(), w.next_stream()], torch.int64, n.shape)
    return w.cast(order, n.dtype)


@lower("multinomial")
def _(
    w: Writer, n: Results, weights: Value, samples: int, replacement: bool, _generator: None
) -> Value:
    args = [w.rng(), w.next_stream(), weights, samples, bool(replacement)]
    return w.op("multinomial", args, torch.int64, n.shape)


# Activations with noise


@lower("rrelu_with_noise_functional")
def _(
    w: Writer,
    n: Results,
    x: Value,
    noise: Value,
    low: Number,
    high: Number,
    training: bool,
    _generator: None,
) -> list[Value]:
    if not training:
        return [w.where(x > 0, x, x * ((low + high) / 2)), noise]
    drawn = w.cast(w.uniform(torch.float32, x.shape) * (high - low) + low, x.dtype)
    noise = w.where(x <= 0, drawn, 1.0)
    return [x * noise, noise]


@lower("rrelu_with_noise_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    x: Value,
    noise: Value,
    low: Number,
    high: Number,
    training: bool,
    is_result: bool,
) -> Value:
    if training and high - low > 1e-6:
        return noise * grad
    return w.where(x > 0, grad, grad * ((low + high) / 2))
