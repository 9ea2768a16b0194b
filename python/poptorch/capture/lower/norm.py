# SPDX-License-Identifier: Apache-2.0
"""Lowerings of normalisation layers and weight norm."""

from collections.abc import Sequence

import torch

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import Number, Shape, Type, Value
from poptorch.capture.text.writer import Writer

# Weight norm


def _all_but(x: Value, dim: int) -> list[int]:
    return [d for d in range(len(x.shape)) if d != dim % len(x.shape)]


@lower("_weight_norm_interface")
def _(w: Writer, n: Results, v: Value, g: Value, dim: int) -> list[Value]:
    wide = n.type(1)[0]
    v, g = w.cast(v, wide), w.cast(g, wide)
    norm = w.sum(v.square(), _all_but(v, dim), True).sqrt()
    return [w.cast(v * (g / norm), n.type(0)[0]), norm]


@lower("_weight_norm_interface_backward")
def _(w: Writer, n: Results, grad: Value, v: Value, g: Value, norm: Value, dim: int) -> list[Value]:
    grad, v, g = (w.cast(x, norm.dtype) for x in (grad, v, g))
    along = w.sum(grad * v, _all_but(v, dim), True)
    gradients = [(g / norm) * (grad - v * (along / norm.square())), along / norm]
    return [w.cast(x, n.type(i)[0]) for i, x in enumerate(gradients)]


# Normalisation. Statistics, weights and their gradients are float32, whatever the type of the
# input. Backward rows always have three results; those that the mask does not want are empty.


def _f32(w: Writer, x: Value | None) -> Value | None:
    return x if x is None else w.cast(x, torch.float32)


def _statistics(n: Results) -> list[Type]:
    return [n.type(0)] + [(torch.float32, shape) for _, shape in n.types()[1:]]


def _norm_backward(
    w: Writer,
    name: str,
    args: Sequence[object],
    x: Value,
    weight_shape: Shape,
    mask: list[bool],
    weight_dtype: torch.dtype,
) -> list[Value | None]:
    shapes = [x.shape, weight_shape, weight_shape]
    types: list[Type] = [
        (x.dtype if i == 0 else torch.float32, shape if wanted else (0,))
        for i, (shape, wanted) in enumerate(zip(shapes, mask, strict=True))
    ]
    results = w.ops(name, [*args, list(mask)], types)
    out = [r if wanted else None for r, wanted in zip(results, mask, strict=True)]
    return [out[0], *[None if r is None else w.cast(r, weight_dtype) for r in out[1:]]]


def _dtype_of(weight: Value | None, x: Value) -> torch.dtype:
    return x.dtype if weight is None else weight.dtype


@lower("native_layer_norm")
def _(
    w: Writer,
    n: Results,
    x: Value,
    shape: list[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> list[Value]:
    args = [x, list(shape), _f32(w, weight), _f32(w, bias), eps]
    return list(w.ops("native_layer_norm", args, _statistics(n)))


@lower("native_layer_norm_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    x: Value,
    shape: list[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    mask: list[bool],
) -> list[Value | None]:
    args = [grad, x, list(shape), mean, rstd, _f32(w, weight), _f32(w, bias)]
    dtype = _dtype_of(weight, x)
    return _norm_backward(w, "native_layer_norm_backward", args, x, tuple(shape), mask, dtype)


@lower("native_group_norm")
def _(
    w: Writer, n: Results, x: Value, weight: Value | None, bias: Value | None, *rest: Number
) -> list[Value]:
    args = [x, _f32(w, weight), _f32(w, bias), *rest]
    return list(w.ops("native_group_norm", args, _statistics(n)))


@lower("native_group_norm_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
    mask: list[bool],
) -> list[Value | None]:
    args = [grad, x, mean, rstd, _f32(w, weight), batch, channels, area, groups]
    dtype = _dtype_of(weight, x)
    return _norm_backward(w, "native_group_norm_backward", args, x, (channels,), mask, dtype)


def _batch_norm(
    w: Writer,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    momentum: float,
    eps: float,
) -> list[Value]:
    channels = (torch.float32, (x.shape[1],))
    args = [x, _f32(w, weight), _f32(w, bias), _f32(w, mean), _f32(w, var), True, momentum, eps]
    types = [(x.dtype, x.shape), channels, channels, channels, channels]
    return list(w.ops("_native_batch_norm_legit_functional", args, types))


@lower("_native_batch_norm_legit_functional")
def _(
    w: Writer,
    n: Results,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Value]:
    if not training:
        kept = [w.cast(mean, n.type(3)[0]), w.cast(var, n.type(4)[0])]
        return _batch_norm_eval(w, n, x, weight, bias, mean, var, momentum, eps) + kept
    out = _batch_norm(w, x, weight, bias, mean, var, momentum, eps)
    return [*out[:3], *[w.cast(out[i], n.type(i)[0]) for i in (3, 4)]]


@lower("_native_batch_norm_legit.no_stats")
def _(
    w: Writer,
    n: Results,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Value]:
    channels = (x.shape[1],)
    mean, var = w.full(0, torch.float32, channels), w.full(1, torch.float32, channels)
    return _batch_norm(w, x, weight, bias, mean, var, momentum, eps)[:3]


def _batch_norm_eval(
    w: Writer,
    n: Results,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    momentum: float,
    eps: float,
) -> list[Value]:
    args = [x, _f32(w, weight), _f32(w, bias), _f32(w, mean), _f32(w, var), momentum, eps]
    none: Type = (torch.float32, (0,))
    y = w.ops("_native_batch_norm_legit_no_training", args, [(x.dtype, x.shape), none, none])[0]
    return [y, *[w.full(0, *n.type(i)) for i in (1, 2)]]


@lower("_native_batch_norm_legit_no_training")
def _(
    w: Writer,
    n: Results,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    momentum: float,
    eps: float,
) -> list[Value]:
    return _batch_norm_eval(w, n, x, weight, bias, mean, var, momentum, eps)


@lower("native_batch_norm_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    x: Value,
    weight: Value | None,
    mean: Value | None,
    var: Value | None,
    save_mean: Value | None,
    save_rstd: Value | None,
    train: bool,
    eps: float,
    mask: list[bool],
) -> list[Value | None]:
    channels = (x.shape[1],)
    mean = _f32(w, mean) or w.full(0, torch.float32, channels)
    var = _f32(w, var) or w.full(1, torch.float32, channels)
    args = [grad, x, _f32(w, weight), mean, var, save_mean, save_rstd, train, eps]
    dtype = _dtype_of(weight, x)
    return _norm_backward(w, "native_batch_norm_backward", args, x, channels, mask, dtype)
