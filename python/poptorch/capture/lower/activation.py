# SPDX-License-Identifier: Apache-2.0
"""Lowerings of activations and their gradients that are no pointwise row by themselves."""

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import Value
from poptorch.capture.text.writer import Writer


@lower("gelu")
def _(w: Writer, n: Results, x: Value, approximate: str) -> Value:
    return w.pointwise("gelu_tanh" if approximate == "tanh" else "gelu", x)


@lower("gelu_backward")
def _(w: Writer, n: Results, grad: Value, x: Value, approximate: str) -> Value:
    name = "gelu_tanh_backward" if approximate == "tanh" else "gelu_backward"
    return w.pointwise(name, grad, x)


@lower("log_sigmoid_forward")
def _(w: Writer, n: Results, x: Value) -> list[Value]:
    out = w.pointwise("minimum", x, 0.0) - (-x.abs()).exp().log1p()
    return [out, w.full(0, *n.type(1))]  # the second result only serves ATen's own gradient


@lower("log_sigmoid_backward")
def _(w: Writer, n: Results, grad: Value, x: Value, buffer: Value) -> Value:
    return grad * (-x).sigmoid()


@lower("_prelu_kernel_backward")
def _(w: Writer, n: Results, grad: Value, x: Value, weight: Value) -> list[Value]:
    return [w.where(x > 0, grad, weight * grad), w.where(x > 0, 0.0, x * grad)]


def _halves(w: Writer, x: Value, dim: int) -> tuple[int, Value, Value]:
    dim %= len(x.shape)
    half = x.shape[dim] // 2
    return dim, w.slice(x, dim, 0, half), w.slice(x, dim, half, 2 * half)


@lower("glu")
def _(w: Writer, n: Results, x: Value, dim: int) -> Value:
    _, a, b = _halves(w, x, dim)
    return a * b.sigmoid()


@lower("glu_backward")
def _(w: Writer, n: Results, grad: Value, x: Value, dim: int) -> Value:
    dim, a, b = _halves(w, x, dim)
    s = b.sigmoid()
    return w.op("cat", [[grad * s, grad * a * s * (1.0 - s)], dim], n.dtype, n.shape)
