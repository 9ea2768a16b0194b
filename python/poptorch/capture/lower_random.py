# SPDX-License-Identifier: Apache-2.0
"""Lowerings of random ops: all numbers come from `uniform`, each draw on a stream of its own."""

import math

import torch

from .lowering import lower
from .writer import MissingRow


def _float_type(dtype):
    return dtype if dtype.is_floating_point else torch.float32


@lower("native_dropout")
def _(w, n, x, p, train):
    if train is False or p == 0:
        return [w.op("clone", [x], x.dtype, x.shape), w.full(True, torch.bool, x.shape)]
    if p == 1:
        return [w.full(0, x.dtype, x.shape), w.full(False, torch.bool, x.shape)]
    keep = w.uniform(torch.float32, x.shape) >= float(p)
    return [x * w.cast(keep, x.dtype) * (1.0 / (1.0 - p)), keep]


@lower("native_dropout_backward")
def _(w, n, grad, mask, scale):
    return grad * w.cast(mask, grad.dtype) * float(scale)


@lower("rand", "rand_like")
def _(w, n, *_rest):
    return w.uniform(_float_type(n.dtype), n.shape)


@lower("uniform")
def _(w, n, x, low, high, _generator):
    u = w.uniform(n.dtype, n.shape)
    return u * (high - low) + low if (low, high) != (0, 1) else u


def _normal(w, dtype, shape):
    """Box-Muller on two streams."""
    radius = ((1.0 - w.uniform(torch.float32, shape)).log() * -2.0).sqrt()
    angle = (w.uniform(torch.float32, shape) * (2.0 * math.pi)).cos()
    return w.cast(radius * angle, dtype)


@lower("randn", "randn_like")
def _(w, n, *_rest):
    return _normal(w, n.dtype, n.shape)


@lower("normal_functional")
def _(w, n, x, mean, std, _generator):
    return _normal(w, n.dtype, n.shape) * std + mean


@lower("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def _(w, n, mean, std, *_rest):
    return _normal(w, n.dtype, n.shape) * std + mean


@lower("bernoulli.p")
def _(w, n, x, p, _generator):
    return w.cast(w.uniform(torch.float32, n.shape) < float(p), n.dtype)


@lower("bernoulli", "bernoulli.Tensor")
def _(w, n, x, *rest):
    p = rest[0] if len(rest) == 2 else x
    return w.cast(w.uniform(torch.float32, n.shape) < p, n.dtype)


@lower("exponential")
def _(w, n, x, rate, _generator):
    return w.cast((1.0 - w.uniform(torch.float32, n.shape)).log() * (-1.0 / rate), n.dtype)


def _integers(w, n, low, high):
    span = high - low
    if span >= 2**24:
        raise MissingRow("random integers of a wide range")
    whole = w.cast((w.uniform(torch.float32, n.shape) * float(span)).floor(), n.dtype)
    return whole + low if low else whole


@lower("randint")
def _(w, n, high, *_rest):
    return _integers(w, n, 0, high)


@lower("randint.low")
def _(w, n, low, high, *_rest):
    return _integers(w, n, low, high)


@lower("randint_like")
def _(w, n, x, high, *_rest):
    return _integers(w, n, 0, high)


@lower("randint_like.low_dtype")
def _(w, n, x, low, high, *_rest):
    return _integers(w, n, low, high)


@lower("randperm")
def _(w, n, *_rest):
    draw = w.uniform(torch.float32, n.shape)
    order = w.host_call("aten::argsort.stable", [draw, True, 0, False], [(torch.int64, n.shape)])[0]
    return w.cast(order, n.dtype)


@lower("rrelu_with_noise_functional")
def _(w, n, x, noise, low, high, training, _generator):
    if not training:
        return [w.where(x > 0, x, x * ((low + high) / 2)), noise]
    drawn = w.uniform(x.dtype, x.shape) * (high - low) + low
    noise = w.where(x <= 0, drawn, 1.0)
    return [x * noise, noise]


@lower("rrelu_with_noise_backward")
def _(w, n, grad, x, noise, low, high, training, is_result):
    if training and high - low > 1e-6:
        return noise * grad
    return w.where(x > 0, grad, grad * ((low + high) / 2))
