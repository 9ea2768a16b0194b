# SPDX-License-Identifier: Apache-2.0
"""Lowerings of softmax and attention."""

import math

import torch

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import Value, count
from poptorch.capture.text.writer import Writer

# Softmax


def _register_softmax(name: str) -> None:
    log = "log" in name

    def forward(w: Writer, n: Results, x: Value, dim: int, half_to_float: bool) -> Value:
        if not x.shape:
            return w.full(0.0 if log else 1.0, n.dtype, ())
        if n.dtype is torch.float64:
            return double_forward(w, x, dim % len(x.shape))
        return w.op(name, [x, dim % len(x.shape), half_to_float], n.dtype, n.shape)

    def double_forward(w: Writer, x: Value, dim: int) -> Value:
        """The row computes in float32."""
        if not count(x.shape):
            return x
        moved = x - w.reduce("amax", x, [dim], True)
        total = w.sum(moved.exp(), [dim], True)
        return moved - total.log() if log else moved.exp() / total

    def backward(
        w: Writer, n: Results, grad: Value, out: Value, dim: int, input_dtype: torch.dtype
    ) -> Value:
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
def _(w: Writer, n: Results, x: Value, dim: int, _dtype: torch.dtype | None) -> Value:
    dim %= len(x.shape)
    x = w.cast(x, n.dtype)
    y = w.op("_softmax", [x, dim, False], n.dtype, n.shape)
    masked = w.reduce("all", x.equals(-math.inf), [dim], True)
    return w.where(masked, 0.0, y)


# Attention


@lower("tessera::sdpa")
def _(
    w: Writer,
    n: Results,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    stream: int,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> list[Value]:
    key = w.rng() if dropout_p > 0 else None
    args = [q, k, v, mask, key, stream, dropout_p, is_causal, scale]
    return list(w.ops("sdpa", args, n.types()))


@lower("tessera::sdpa_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    out: Value,
    lse: Value,
    stream: int,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> list[Value]:
    key = w.rng() if dropout_p > 0 else None
    args = [grad, q, k, v, mask, out, lse, key, stream, dropout_p, is_causal, scale]
    return list(w.ops("sdpa_backward", args, n.types()))
