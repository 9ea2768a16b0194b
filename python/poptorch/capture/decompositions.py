# SPDX-License-Identifier: Apache-2.0
"""ATen ops that are taken apart while tracing, because they hide a write or cannot be traced.

All other composite ops are lowered when the text is written (lower_*.py): that costs no tracing.
"""

import torch

aten = torch.ops.aten


def _native_batch_norm(x, weight, bias, mean, var, training, momentum, eps):
    """The schema of native_batch_norm does not say that it changes the running statistics."""
    if mean is None and var is None:
        return aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
    if not training:
        return aten._native_batch_norm_legit_no_training(x, weight, bias, mean, var, momentum, eps)
    out, save_mean, save_rstd, new_mean, new_var = aten._native_batch_norm_legit_functional(
        x, weight, bias, mean, var, training, momentum, eps
    )
    mean.copy_(new_mean)
    var.copy_(new_var)
    return out, save_mean, save_rstd


def _rrelu_with_noise(x, noise, lower=1 / 8, upper=1 / 3, training=False, generator=None):
    """The second argument is a result."""
    out, drawn = aten.rrelu_with_noise_functional(x, noise, lower, upper, training)
    noise.copy_(drawn)
    return out


def _random_from(x, low, high=None, *, generator=None):
    """torch.fx cannot write the name of this overload, `from`, as Python."""
    if high is None:
        if x.dtype.is_floating_point:
            high = round(2 / torch.finfo(x.dtype).eps) + 1
        else:
            high = 2 if x.dtype is torch.bool else min(torch.iinfo(x.dtype).max, 2**63 - 2) + 1
    return x.copy_(aten.randint_like.low_dtype(x, low, high))


def _gradient_of_nothing(grad, x, target, *_rest):
    """Torch divides by the number of elements to learn the type of this gradient."""
    return NotImplemented if x.numel() or target.numel() else torch.zeros_like(x)


_table = None


def trace_table():
    """Decompositions for make_fx."""
    global _table
    if _table is None:
        _table = {
            aten.native_batch_norm.default: _native_batch_norm,
            aten.rrelu_with_noise.default: _rrelu_with_noise,
            aten.mse_loss_backward.default: _gradient_of_nothing,
            aten.smooth_l1_loss_backward.default: _gradient_of_nothing,
            aten.huber_loss_backward.default: _gradient_of_nothing,
            getattr(aten.random_, "from"): _random_from,
        }
    return _table
