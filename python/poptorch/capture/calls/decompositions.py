# SPDX-License-Identifier: Apache-2.0
"""ATen ops that are decomposed while tracing, because they hide a write or cannot be traced.

All other composite ops are lowered when the text is written (capture/lower): that costs no tracing.
"""

from typing import Any

import torch
from torch import Tensor

from poptorch.capture._torch_private import Decompositions

aten = torch.ops.aten


def _native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The schema of native_batch_norm does not say that it changes the running statistics."""
    if mean is None and var is None:
        return aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
    if not training:
        return aten._native_batch_norm_legit_no_training(x, weight, bias, mean, var, momentum, eps)
    out, save_mean, save_rstd, new_mean, new_var = aten._native_batch_norm_legit_functional(
        x, weight, bias, mean, var, training, momentum, eps
    )
    if mean is not None and var is not None:  # ATen has refused one without the other
        mean.copy_(new_mean)
        var.copy_(new_var)
    return out, save_mean, save_rstd


def _rrelu_with_noise(
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The second argument is a result."""
    out, drawn = aten.rrelu_with_noise_functional(x, noise, lower, upper, training)
    noise.copy_(drawn)
    return out


def _random_from(
    x: Tensor, low: int, high: int | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    """torch.fx cannot write the name of this overload, `from`, as Python."""
    if high is None:
        if x.dtype.is_floating_point:
            high = round(2 / torch.finfo(x.dtype).eps) + 1
        else:
            high = 2 if x.dtype is torch.bool else min(torch.iinfo(x.dtype).max, 2**63 - 2) + 1
    return x.copy_(aten.randint_like.low_dtype(x, low, high))


def _gradient_of_nothing(grad: Tensor, x: Tensor, target: Tensor, *_rest: Any) -> Any:
    """Torch divides by the number of elements to learn the type of this gradient."""
    return NotImplemented if x.numel() or target.numel() else torch.zeros_like(x)


TABLE: Decompositions = {
    aten.native_batch_norm.default: _native_batch_norm,
    aten.rrelu_with_noise.default: _rrelu_with_noise,
    aten.mse_loss_backward.default: _gradient_of_nothing,
    aten.smooth_l1_loss_backward.default: _gradient_of_nothing,
    aten.huber_loss_backward.default: _gradient_of_nothing,
    getattr(aten.random_, "from"): _random_from,
}
