# SPDX-License-Identifier: Apache-2.0
"""Lowerings of activations and their gradients to pointwise rows."""

from .lower_pointwise import clamped
from .lowering import lower
from .writer import literal_of


def _of_type(dtype, *numbers):
    """Numbers as a tensor type holds them: activations of integers have float defaults."""
    return [literal_of(x, dtype) for x in numbers]


@lower("gelu")
def _(w, n, x, approximate):
    return w.pointwise("gelu_tanh" if approximate == "tanh" else "gelu", x)


@lower("gelu_backward")
def _(w, n, grad, x, approximate):
    name = "gelu_tanh_backward" if approximate == "tanh" else "gelu_backward"
    return w.pointwise(name, grad, x)


@lower("threshold")
def _(w, n, x, threshold, value):
    threshold, value = _of_type(n.dtype, threshold, value)
    return w.where(x <= threshold, value, x)


@lower("leaky_relu")
def _(w, n, x, slope):
    return w.where(x > 0, x, x * slope)


@lower("leaky_relu_backward")
def _(w, n, grad, x, slope, is_result):
    return w.where(x > 0, grad, grad * slope)


def _below(w, x):
    """What is left of x where it counts: the other branch must not overflow."""
    return w.pointwise("minimum", x, 0.0)


@lower("elu")
def _(w, n, x, alpha, scale, input_scale):
    return w.where(x > 0, x * scale, (_below(w, x) * input_scale).expm1() * (alpha * scale))


@lower("elu_backward")
def _(w, n, grad, alpha, scale, input_scale, is_result, x):
    if is_result:
        below = grad * input_scale * (x + alpha * scale)
    else:
        below = grad * (input_scale * alpha * scale) * (_below(w, x) * input_scale).exp()
    return w.where(x <= 0, below, grad * scale)


@lower("celu")
def _(w, n, x, alpha):
    return w.where(x > 0, x, (_below(w, x) * (1.0 / alpha)).expm1() * alpha)


@lower("hardtanh")
def _(w, n, x, low, high):
    return clamped(w, x, *_of_type(n.dtype, low, high))


@lower("hardtanh_backward")
def _(w, n, grad, x, low, high):
    low, high, zero = _of_type(n.dtype, low, high, 0)
    return w.where((x <= low) | (x >= high), zero, grad)


@lower("hardsigmoid")
def _(w, n, x):
    return clamped(w, x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


@lower("hardsigmoid_backward")
def _(w, n, grad, x):
    return w.where((x > -3.0) & (x < 3.0), grad * (1.0 / 6.0), 0.0)


@lower("hardswish")
def _(w, n, x):
    return x * clamped(w, x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


@lower("hardswish_backward")
def _(w, n, grad, x):
    middle = grad * (x * (1.0 / 3.0) + 0.5)
    return w.where(x <= -3.0, 0.0, w.where(x < 3.0, middle, grad))


@lower("softplus")
def _(w, n, x, beta, threshold):
    return w.pointwise("softplus", x, float(beta), float(threshold))


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


@lower("mish")
def _(w, n, x):
    return x * w.pointwise("softplus", x, 1.0, 20.0).tanh()


@lower("mish_backward")
def _(w, n, grad, x):
    t = w.pointwise("softplus", x, 1.0, 20.0).tanh()
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
