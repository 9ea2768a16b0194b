# SPDX-License-Identifier: Apache-2.0
"""``ai.onnx``: element-wise ops and activations."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from poptorch.capture.custom.named.table import Call, Named, Result, product

_Binary = Callable[[Tensor, Tensor], Tensor]


def unary(function: Callable[[Tensor], Tensor], since: int = 1, form: str = "x") -> Named:
    """A row of an op of one tensor."""
    return Named(lambda call: function(call.x()), since, form)


def operands(call: Call) -> tuple[Tensor, Tensor]:
    """Two tensors that are broadcast: by numpy's rule, before version 7 by attributes."""
    a, b = call.x(0), call.x(1)
    if call.version >= 7:
        return a, b
    broadcast, axis = call.flag("broadcast"), call.int_("axis", a.dim() - b.dim())
    if broadcast and b.dim() < a.dim():
        behind = a.dim() - call.axis(axis, a.dim()) - b.dim()
        b = b.reshape(*b.shape, *[1] * max(behind, 0))
    return a, b


def binary(function: _Binary, since: int = 1) -> Named:
    """A row of an op of two tensors."""
    return Named(lambda call: function(*operands(call)), since, "a, b")


def _joined(call: Call, function: _Binary) -> Tensor:
    out = call.x()
    for other in call.inputs[1:]:
        out = function(out, other)
    return out


def variadic(function: _Binary) -> Named:
    """A row of an op that joins any number of tensors."""
    return Named(lambda call: _joined(call, function))


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Integers are divided towards zero."""
    if a.is_floating_point():
        return a / b
    return torch.div(a, b, rounding_mode="trunc")


def _power(a: Tensor, b: Tensor) -> Tensor:
    return torch.pow(a, b).to(a.dtype)


def _mod(call: Call) -> Tensor:
    a, b = operands(call)
    return torch.fmod(a, b) if call.flag("fmod") else torch.remainder(a, b)


def _bit_shift(call: Call) -> Tensor:
    left = call.choice("direction", "", ("LEFT", "RIGHT")) == "LEFT"
    shift = torch.bitwise_left_shift if left else torch.bitwise_right_shift
    return shift(call.x(0), call.x(1))


def _mean(call: Call) -> Tensor:
    return _joined(call, torch.add) / len(call.inputs)


def _clip(call: Call) -> Tensor:
    x = call.x()
    if call.version >= 11:
        low, high = call.maybe(1), call.maybe(2)
        x = x if low is None else torch.maximum(x, low)
        return x if high is None else torch.minimum(x, high)
    most = torch.finfo(torch.float32).max
    bounds = call.float_("min", -most), call.float_("max", most)
    least, greatest = (None if abs(b) >= most else b for b in bounds)
    return x if least is None and greatest is None else torch.clamp(x, least, greatest)


def _cast(call: Call) -> Tensor:
    call.known("saturate")
    return call.x().to(call.dtype("to"))


def _is_inf(call: Call) -> Tensor:
    x = call.x()
    low, high = call.flag("detect_negative", True), call.flag("detect_positive", True)
    if low and high:
        return torch.isinf(x)
    if not low and not high:
        return torch.zeros_like(x, dtype=torch.bool)
    return x == (float("-inf") if low else float("inf"))


# activations


def _elu(call: Call) -> Tensor:
    return F.elu(call.x(), call.float_("alpha", 1.0))


def _celu(call: Call) -> Tensor:
    return F.celu(call.x(), call.float_("alpha", 1.0))


def _selu(call: Call) -> Tensor:
    old = call.version < 6
    alpha = call.float_("alpha", 1.6732 if old else 1.67326319217681884765625)
    gamma = call.float_("gamma", 1.0507 if old else 1.05070102214813232421875)
    return gamma * F.elu(call.x(), alpha)


def _leaky_relu(call: Call) -> Tensor:
    return F.leaky_relu(call.x(), call.float_("alpha", 0.01))


def _prelu(call: Call) -> Tensor:
    x, slope = call.x(0), call.x(1, "slope")
    if call.version < 7 and slope.numel() > 1:  # one for each channel
        slope = slope.reshape(-1, *[1] * (x.dim() - 2))
    return torch.where(x < 0, slope * x, x)


def _thresholded_relu(call: Call) -> Tensor:
    x = call.x()
    return torch.where(x > call.float_("alpha", 1.0), x, torch.zeros_like(x))


def _hard_sigmoid(call: Call) -> Tensor:
    alpha, beta = call.float_("alpha", 0.2), call.float_("beta", 0.5)
    return torch.clamp(call.x() * alpha + beta, 0.0, 1.0)


def _hard_swish(x: Tensor) -> Tensor:
    return x * torch.clamp(x / 6 + 0.5, 0.0, 1.0)


def _shrink(call: Call) -> Tensor:
    x, bias, bound = call.x(), call.float_("bias", 0.0), call.float_("lambd", 0.5)
    zero = torch.zeros_like(x)
    return torch.where(x < -bound, x + bias, torch.where(x > bound, x - bias, zero)).to(x.dtype)


def gelu(call: Call) -> Tensor:
    """Gelu, exact unless asked for otherwise."""
    return F.gelu(call.x(), approximate=call.choice("approximate", "none", ("none", "tanh")))


def swish(call: Call) -> Tensor:
    """x times the sigmoid of it."""
    x, alpha = call.x(), call.float_("alpha", 1.0)
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


def over_classes(function: Callable[[Tensor, int], Tensor]) -> Named:
    """A row of softmax and its kin.

    Before version 13 all dimensions from the axis on are the classes.
    """

    def run(call: Call) -> Result:
        x = call.x()
        if call.version >= 13:
            return function(x, call.axis(call.int_("axis", -1), x.dim()))
        axis = call.axis(call.int_("axis", min(1, x.dim() - 1)), x.dim())
        rows, classes = product(x.shape[:axis]), product(x.shape[axis:])
        return function(x.reshape(rows, classes), 1).reshape(x.shape)

    return Named(run)


def _hardmax(x: Tensor, dim: int) -> Tensor:
    return torch.zeros_like(x).scatter(dim, x.argmax(dim, keepdim=True), 1.0)


ROWS: dict[str, Named] = {
    "Abs": unary(torch.abs),
    "Acos": unary(torch.acos, 7),
    "Acosh": unary(torch.acosh, 9),
    "Add": binary(torch.add),
    "And": binary(torch.logical_and),
    "Asin": unary(torch.asin, 7),
    "Asinh": unary(torch.asinh, 9),
    "Atan": unary(torch.atan, 7),
    "Atanh": unary(torch.atanh, 9),
    "BitShift": Named(_bit_shift, 11),
    "BitwiseAnd": binary(torch.bitwise_and, 18),
    "BitwiseNot": unary(torch.bitwise_not, 18),
    "BitwiseOr": binary(torch.bitwise_or, 18),
    "BitwiseXor": binary(torch.bitwise_xor, 18),
    "Cast": Named(_cast),
    "CastLike": Named(lambda call: call.x(0).to(call.x(1).dtype), 15),
    "Ceil": unary(torch.ceil),
    "Celu": Named(_celu, 12),
    "Clip": Named(_clip),
    "Cos": unary(torch.cos, 7),
    "Cosh": unary(torch.cosh, 9),
    "Div": binary(divide),
    "Elu": Named(_elu),
    "Equal": binary(torch.eq),
    "Erf": unary(torch.erf, 9),
    "Exp": unary(torch.exp),
    "Floor": unary(torch.floor),
    "Gelu": Named(gelu, 20),
    "Greater": binary(torch.gt),
    "GreaterOrEqual": binary(torch.ge, 12),
    "HardSigmoid": Named(_hard_sigmoid),
    "HardSwish": unary(_hard_swish, 14),
    "Hardmax": over_classes(_hardmax),
    "Identity": unary(torch.clone),
    "IsInf": Named(_is_inf, 10),
    "IsNaN": unary(torch.isnan, 9),
    "LeakyRelu": Named(_leaky_relu),
    "Less": binary(torch.lt),
    "LessOrEqual": binary(torch.le, 12),
    "Log": unary(torch.log),
    "LogSoftmax": over_classes(torch.log_softmax),
    "Max": variadic(torch.maximum),
    "Mean": Named(_mean),
    "Min": variadic(torch.minimum),
    "Mish": unary(F.mish, 18),
    "Mod": Named(_mod, 10),
    "Mul": binary(torch.mul),
    "Neg": unary(torch.neg),
    "Not": unary(torch.logical_not),
    "Or": binary(torch.logical_or),
    "PRelu": Named(_prelu),
    "Pow": binary(_power),
    "Reciprocal": unary(torch.reciprocal),
    "Relu": unary(torch.relu),
    "Round": unary(torch.round, 11),
    "Selu": Named(_selu),
    "Shrink": Named(_shrink, 9),
    "Sigmoid": unary(torch.sigmoid),
    "Sign": unary(torch.sign, 9),
    "Sin": unary(torch.sin, 7),
    "Sinh": unary(torch.sinh, 9),
    "Softmax": over_classes(torch.softmax),
    "Softplus": unary(F.softplus),
    "Softsign": unary(F.softsign),
    "Sqrt": unary(torch.sqrt),
    "Sub": binary(torch.sub),
    "Sum": variadic(torch.add),
    "Swish": Named(swish, 24),
    "Tan": unary(torch.tan, 7),
    "Tanh": unary(torch.tanh),
    "ThresholdedRelu": Named(_thresholded_relu, 10),
    "Where": Named(lambda call: torch.where(call.x(0), call.x(1), call.x(2)), 9),
    "Xor": binary(torch.logical_xor),
}
