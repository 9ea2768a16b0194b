# SPDX-License-Identifier: Apache-2.0
"""Lowerings of loss functions and their gradients."""

from .lowering import lower
from .writer import count

_NONE, _MEAN, _SUM = 0, 1, 2


def _reduced(w, loss, reduction):
    if reduction == _NONE:
        return loss
    return w.reduce("mean" if reduction == _MEAN else "sum", loss, [], False)


def _scaled(grad, x, target, reduction):
    """Gradient of one element of the unreduced loss."""
    return grad * (1.0 / _elements(x, target)) if reduction == _MEAN else grad


def _elements(x, target):
    return max(count(x.shape), count(target.shape), 1)


@lower("mse_loss")
def _(w, n, x, target, reduction):
    return _reduced(w, (x - target).square(), reduction)


@lower("mse_loss_backward")
def _(w, n, grad, x, target, reduction):
    factor = 2.0 / _elements(x, target) if reduction == _MEAN else 2.0
    return (x - target) * factor * grad


@lower("smooth_l1_loss")
def _(w, n, x, target, reduction, beta):
    far = (x - target).abs()
    if beta == 0:
        return _reduced(w, far, reduction)
    loss = w.where(far < beta, far.square() * (0.5 / beta), far - 0.5 * beta)
    return _reduced(w, loss, reduction)


@lower("smooth_l1_loss_backward")
def _(w, n, grad, x, target, reduction, beta):
    far = x - target
    grad = _scaled(grad, x, target, reduction)
    if beta == 0:
        return far.sign() * grad
    return w.where(far.abs() < beta, far * (1.0 / beta), far.sign()) * grad


@lower("huber_loss")
def _(w, n, x, target, reduction, delta):
    far = (x - target).abs()
    loss = w.where(far <= delta, far.square() * 0.5, (far - 0.5 * delta) * delta)
    return _reduced(w, loss, reduction)


@lower("huber_loss_backward")
def _(w, n, grad, x, target, reduction, delta):
    far = x - target
    grad = _scaled(grad, x, target, reduction)
    return w.where(far.abs() <= delta, far, far.sign() * delta) * grad


@lower("binary_cross_entropy")
def _(w, n, x, target, weight, reduction):
    low = w.pointwise("maximum", (-x).log1p(), -100.0)
    high = w.pointwise("maximum", x.log(), -100.0)
    loss = (target - 1.0) * low - target * high
    return _reduced(w, loss if weight is None else loss * weight, reduction)


@lower("binary_cross_entropy_backward")
def _(w, n, grad, x, target, weight, reduction):
    slope = (x - target) / w.pointwise("maximum", (1.0 - x) * x, 1e-12)
    slope = slope if weight is None else slope * weight
    return slope * _scaled(grad, x, target, reduction)


@lower("binary_cross_entropy_with_logits")
def _(w, n, x, target, weight, pos_weight, reduction):
    softplus = (-x.abs()).exp().log1p() - w.pointwise("minimum", x, 0.0)  # log(1 + exp(-x))
    if pos_weight is None:
        loss = (1.0 - target) * x + softplus
    else:
        loss = (1.0 - target) * x + ((pos_weight - 1.0) * target + 1.0) * softplus
    return _reduced(w, loss if weight is None else loss * weight, reduction)


@lower("soft_margin_loss")
def _(w, n, x, target, reduction):
    return _reduced(w, (-(target * x)).exp().log1p(), reduction)


@lower("soft_margin_loss_backward")
def _(w, n, grad, x, target, reduction):
    slope = -(target * (-(target * x)).sigmoid())
    return slope * _scaled(grad, x, target, reduction)


@lower("nll_loss_forward")
def _(w, n, x, target, weight, reduction, ignore_index):
    flat = x if len(x.shape) == 2 else w.unsqueeze(x, 0)
    target = w.view(target, flat.shape[:1])
    out = flat.shape[:1] if reduction == _NONE else ()
    args = [flat, target, weight, reduction, ignore_index]
    types = [(x.dtype, out), (x.dtype, n.type(1)[1])]
    loss, total = w.ops("nll_loss_forward", args, types)
    return [w.view(loss, n.shape), total]


@lower("nll_loss_backward")
def _(w, n, grad, x, target, weight, reduction, ignore_index, total):
    flat = x if len(x.shape) == 2 else w.unsqueeze(x, 0)
    target = w.view(target, flat.shape[:1])
    grad = w.view(grad, flat.shape[:1]) if reduction == _NONE else grad
    args = [grad, flat, target, weight, reduction, ignore_index, total]
    return w.view(w.op("nll_loss_backward", args, x.dtype, flat.shape), x.shape)


def _positions(w, x, target):
    """[N, C, H, W] as [N, C, H*W], and the targets with it."""
    flat = (*x.shape[:2], x.shape[2] * x.shape[3])
    return w.view(x, flat), w.view(target, (flat[0], flat[2]))


@lower("nll_loss2d_forward")
def _(w, n, x, target, weight, reduction, ignore_index):
    flat, target = _positions(w, x, target)
    out = target.shape if reduction == _NONE else ()
    args = [flat, target, weight, reduction, ignore_index]
    loss, total = w.ops("nll_loss_forward", args, [(x.dtype, out), (x.dtype, ())])
    return [w.view(loss, n.shape), w.view(total, n.type(1)[1])]


@lower("nll_loss2d_backward")
def _(w, n, grad, x, target, weight, reduction, ignore_index, total):
    flat, target = _positions(w, x, target)
    grad = w.view(grad, target.shape if reduction == _NONE else ())
    args = [grad, flat, target, weight, reduction, ignore_index, w.view(total, ())]
    return w.view(w.op("nll_loss_backward", args, x.dtype, flat.shape), x.shape)
