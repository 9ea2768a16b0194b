# SPDX-License-Identifier: Apache-2.0
"""Lowerings of products, convolution, pooling, normalisation, softmax and attention."""

import math

import torch

from .lowering import lower
from .writer import count

# Weight norm


def _all_but(x, dim):
    return [d for d in range(len(x.shape)) if d != dim % len(x.shape)]


@lower("_weight_norm_interface")
def _(w, n, v, g, dim):
    wide = n.type(1)[0]
    v, g = w.cast(v, wide), w.cast(g, wide)
    norm = w.sum(v.square(), _all_but(v, dim), True).sqrt()
    return [w.cast(v * (g / norm), n.type(0)[0]), norm]


@lower("_weight_norm_interface_backward")
def _(w, n, grad, v, g, norm, dim):
    grad, v, g = (w.cast(x, norm.dtype) for x in (grad, v, g))
    along = w.sum(grad * v, _all_but(v, dim), True)
    gradients = [(g / norm) * (grad - v * (along / norm.square())), along / norm]
    return [w.cast(x, n.type(i)[0]) for i, x in enumerate(gradients)]


# Normalisation. Statistics, weights and their gradients are float32 whatever the type of the
# input; backward rows
# always have three results, those the mask does not want being empty.


def _f32(w, x):
    return x if x is None else w.cast(x, torch.float32)


def _statistics(n):
    return [n.type(0)] + [(torch.float32, tuple(v.shape)) for v in n.vals[1:]]


def _norm_backward(w, name, args, x, weight_shape, mask, weight_dtype):
    shapes = [x.shape, weight_shape, weight_shape]
    types = [
        (x.dtype if i == 0 else torch.float32, shape if wanted else (0,))
        for i, (shape, wanted) in enumerate(zip(shapes, mask, strict=False))
    ]
    results = w.ops(name, [*args, list(mask)], types)
    out = [r if wanted else None for r, wanted in zip(results, mask, strict=False)]
    return [out[0], *[None if r is None else w.cast(r, weight_dtype) for r in out[1:]]]


def _dtype_of(weight, x):
    return x.dtype if weight is None else weight.dtype


@lower("native_layer_norm")
def _(w, n, x, shape, weight, bias, eps):
    args = [x, list(shape), _f32(w, weight), _f32(w, bias), eps]
    return list(w.ops("native_layer_norm", args, _statistics(n)))


@lower("native_layer_norm_backward")
def _(w, n, grad, x, shape, mean, rstd, weight, bias, mask):
    args = [grad, x, list(shape), mean, rstd, _f32(w, weight), _f32(w, bias)]
    dtype = _dtype_of(weight, x)
    return _norm_backward(w, "native_layer_norm_backward", args, x, tuple(shape), mask, dtype)


@lower("native_group_norm")
def _(w, n, x, weight, bias, *rest):
    args = [x, _f32(w, weight), _f32(w, bias), *rest]
    return list(w.ops("native_group_norm", args, _statistics(n)))


@lower("native_group_norm_backward")
def _(w, n, grad, x, mean, rstd, weight, batch, channels, area, groups, mask):
    args = [grad, x, mean, rstd, _f32(w, weight), batch, channels, area, groups]
    dtype = _dtype_of(weight, x)
    return _norm_backward(w, "native_group_norm_backward", args, x, (channels,), mask, dtype)


def _batch_norm(w, x, weight, bias, mean, var, momentum, eps):
    channels = (torch.float32, (x.shape[1],))
    args = [x, _f32(w, weight), _f32(w, bias), _f32(w, mean), _f32(w, var), True, momentum, eps]
    types = [(x.dtype, x.shape), channels, channels, channels, channels]
    return list(w.ops("_native_batch_norm_legit_functional", args, types))


@lower("_native_batch_norm_legit_functional")
def _(w, n, x, weight, bias, mean, var, training, momentum, eps):
    if not training:
        kept = [w.cast(mean, n.vals[3].dtype), w.cast(var, n.vals[4].dtype)]
        return _batch_norm_eval(w, n, x, weight, bias, mean, var, momentum, eps) + kept
    out = _batch_norm(w, x, weight, bias, mean, var, momentum, eps)
    return [*out[:3], *[w.cast(out[i], n.vals[i].dtype) for i in (3, 4)]]


@lower("_native_batch_norm_legit.no_stats")
def _(w, n, x, weight, bias, training, momentum, eps):
    channels = (x.shape[1],)
    mean, var = w.full(0, torch.float32, channels), w.full(1, torch.float32, channels)
    return _batch_norm(w, x, weight, bias, mean, var, momentum, eps)[:3]


def _batch_norm_eval(w, n, x, weight, bias, mean, var, momentum, eps):
    args = [x, _f32(w, weight), _f32(w, bias), _f32(w, mean), _f32(w, var), momentum, eps]
    none = (torch.float32, (0,))
    y = w.ops("_native_batch_norm_legit_no_training", args, [(x.dtype, x.shape), none, none])[0]
    return [y, *[w.full(0, *n.type(i)) for i in (1, 2)]]


@lower("_native_batch_norm_legit_no_training")
def _(w, n, x, weight, bias, mean, var, momentum, eps):
    return _batch_norm_eval(w, n, x, weight, bias, mean, var, momentum, eps)


@lower("native_batch_norm_backward")
def _(w, n, grad, x, weight, mean, var, save_mean, save_rstd, train, eps, mask):
    channels = (x.shape[1],)
    mean = _f32(w, mean) or w.full(0, torch.float32, channels)
    var = _f32(w, var) or w.full(1, torch.float32, channels)
    args = [grad, x, _f32(w, weight), mean, var, save_mean, save_rstd, train, eps]
    dtype = _dtype_of(weight, x)
    return _norm_backward(w, "native_batch_norm_backward", args, x, channels, mask, dtype)


# Softmax


def _register_softmax(name):
    log = "log" in name

    def forward(w, n, x, dim, half_to_float):
        if not x.shape:
            return w.full(0.0 if log else 1.0, n.dtype, ())
        if n.dtype is torch.float64:
            return double_forward(w, x, dim % len(x.shape))
        return w.op(name, [x, dim % len(x.shape), half_to_float], n.dtype, n.shape)

    def double_forward(w, x, dim):
        """The row computes in float32."""
        if not count(x.shape):
            return x
        moved = x - w.reduce("amax", x, [dim], True)
        total = w.sum(moved.exp(), [dim], True)
        return moved - total.log() if log else moved.exp() / total

    def backward(w, n, grad, out, dim, input_dtype):
        if not out.shape:
            return w.full(0.0, n.dtype, ())
        dim %= len(out.shape)
        if out.dtype is torch.float64:
            total = w.sum(grad if log else grad * out, [dim], True)
            found = grad - out.exp() * total if log else (grad - total) * out
            return w.cast(found, n.dtype)
        return w.op(name + "_backward_data", [grad, out, dim, input_dtype], n.dtype, n.shape)

    lower(name)(forward)
    lower(name + "_backward_data")(backward)


_register_softmax("_softmax")
_register_softmax("_log_softmax")


@lower("_safe_softmax")
def _(w, n, x, dim, _dtype):
    dim %= len(x.shape)
    x = w.cast(x, n.dtype)
    y = w.op("_softmax", [x, dim, False], n.dtype, n.shape)
    masked = w.reduce("all", x.equals(-math.inf), [dim], True)
    return w.where(masked, 0.0, y)


# Attention


@lower("tessera::sdpa")
def _(w, n, q, k, v, mask, stream, dropout_p, is_causal, scale):
    key = w.rng() if dropout_p > 0 else None
    args = [q, k, v, mask, key, stream, dropout_p, is_causal, scale]
    return list(w.ops("sdpa", args, n.types()))


@lower("tessera::sdpa_backward")
def _(w, n, grad, q, k, v, mask, out, lse, stream, dropout_p, is_causal, scale):
    key = w.rng() if dropout_p > 0 else None
    args = [grad, q, k, v, mask, out, lse, key, stream, dropout_p, is_causal, scale]
    return list(w.ops("sdpa_backward", args, n.types()))
