# SPDX-License-Identifier: Apache-2.0
"""Lowerings of loss functions and their gradients."""

import torch

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import Number, Operand, Value, count
from poptorch.capture.text.writer import Writer

_NONE, _MEAN, _SUM = 0, 1, 2


def _reduced(w: Writer, loss: Value, reduction: int) -> Value:
    if reduction == _NONE:
        return loss
    return w.reduce("mean" if reduction == _MEAN else "sum", loss, [], False)


def _scaled(grad: Value, x: Value, target: Value, reduction: int) -> Value:
    """Gradient of one element of the unreduced loss."""
    return grad * (1.0 / _elements(x, target)) if reduction == _MEAN else grad


def _elements(x: Value, target: Value) -> int:
    return max(count(x.shape), count(target.shape), 1)


@lower("tessera::loss_seed")
def _(w: Writer, n: Results, loss: Value) -> Value:
    """Where backward starts: 1, or the loss scaling if the program has one."""
    if w.loss_scale is None:
        return w.full(1.0, loss.dtype, loss.shape)
    return w.expand(w.cast(w.loss_scale, loss.dtype), loss.shape)


@lower("mse_loss")
def _(w: Writer, n: Results, x: Value, target: Value, reduction: int) -> Value:
    return _reduced(w, (x - target).square(), reduction)


@lower("mse_loss_backward")
def _(w: Writer, n: Results, grad: Value, x: Value, target: Value, reduction: int) -> Value:
    factor = 2.0 / _elements(x, target) if reduction == _MEAN else 2.0
    return (x - target) * factor * grad


@lower("smooth_l1_loss")
def _(w: Writer, n: Results, x: Value, target: Value, reduction: int, beta: float) -> Value:
    far = (x - target).abs()
    if beta == 0:
        return _reduced(w, far, reduction)
    loss = w.where(far < beta, far.square() * (0.5 / beta), far - 0.5 * beta)
    return _reduced(w, loss, reduction)


@lower("smooth_l1_loss_backward")
def _(
    w: Writer, n: Results, grad: Value, x: Value, target: Value, reduction: int, beta: float
) -> Value:
    far = x - target
    grad = _scaled(grad, x, target, reduction)
    if beta == 0:
        return far.sign() * grad
    return w.where(far.abs() < beta, far * (1.0 / beta), far.sign()) * grad


@lower("huber_loss")
def _(w: Writer, n: Results, x: Value, target: Value, reduction: int, delta: float) -> Value:
    far = (x - target).abs()
    loss = w.where(far <= delta, far.square() * 0.5, (far - 0.5 * delta) * delta)
    return _reduced(w, loss, reduction)


@lower("huber_loss_backward")
def _(
    w: Writer, n: Results, grad: Value, x: Value, target: Value, reduction: int, delta: float
) -> Value:
    far = x - target
    grad = _scaled(grad, x, target, reduction)
    return w.where(far.abs() <= delta, far, far.sign() * delta) * grad


@lower("binary_cross_entropy")
def _(
    w: Writer, n: Results, x: Value, target: Value, weight: Value | None, reduction: int
) -> Value:
    low = w.pointwise("maximum", (-x).log1p(), -100.0)
    high = w.pointwise("maximum", x.log(), -100.0)
    loss = (target - 1.0) * low - target * high
    return _reduced(w, loss if weight is None else loss * weight, reduction)


@lower("binary_cross_entropy_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
) -> Value:
    slope = (x - target) / w.pointwise("maximum", (1.0 - x) * x, 1e-12)
    slope = slope if weight is None else slope * weight
    return slope * _scaled(grad, x, target, reduction)


@lower("binary_cross_entropy_with_logits")
def _(
    w: Writer,
    n: Results,
    x: Value,
    target: Value,
    weight: Value | None,
    pos_weight: Value | None,
    reduction: int,
) -> Value:
    softplus = (-x.abs()).exp().log1p() - w.pointwise("minimum", x, 0.0)  # log(1 + exp(-x))
    if pos_weight is None:
        loss = (1.0 - target) * x + softplus
    else:
        loss = (1.0 - target) * x + ((pos_weight - 1.0) * target + 1.0) * softplus
    return _reduced(w, loss if weight is None else loss * weight, reduction)


@lower("soft_margin_loss")
def _(w: Writer, n: Results, x: Value, target: Value, reduction: int) -> Value:
    return _reduced(w, (-(target * x)).exp().log1p(), reduction)


@lower("soft_margin_loss_backward")
def _(w: Writer, n: Results, grad: Value, x: Value, target: Value, reduction: int) -> Value:
    slope = -(target * (-(target * x)).sigmoid())
    return slope * _scaled(grad, x, target, reduction)


@lower("nll_loss_forward")
def _(
    w: Writer,
    n: Results,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
) -> list[Value]:
    flat = x if len(x.shape) == 2 else w.unsqueeze(x, 0)
    target = w.view(target, flat.shape[:1])
    out = flat.shape[:1] if reduction == _NONE else ()
    args = [flat, target, weight, reduction, ignore_index]
    types = [(x.dtype, out), (x.dtype, n.type(1)[1])]
    loss, total = w.ops("nll_loss_forward", args, types)
    return [w.view(loss, n.shape), total]


@lower("nll_loss_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total: Value,
) -> Value:
    flat = x if len(x.shape) == 2 else w.unsqueeze(x, 0)
    target = w.view(target, flat.shape[:1])
    grad = w.view(grad, flat.shape[:1]) if reduction == _NONE else grad
    args = [grad, flat, target, weight, reduction, ignore_index, total]
    return w.view(w.op("nll_loss_backward", args, x.dtype, flat.shape), x.shape)


def _positions(w: Writer, x: Value, target: Value) -> tuple[Value, Value]:
    """[N, C, H, W] as [N, C, H*W], and the targets with it."""
    flat = (*x.shape[:2], x.shape[2] * x.shape[3])
    return w.view(x, flat), w.view(target, (flat[0], flat[2]))


@lower("nll_loss2d_forward")
def _(
    w: Writer,
    n: Results,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
) -> list[Value]:
    flat, target = _positions(w, x, target)
    out = target.shape if reduction == _NONE else ()
    args = [flat, target, weight, reduction, ignore_index]
    loss, total = w.ops("nll_loss_forward", args, [(x.dtype, out), (x.dtype, ())])
    return [w.view(loss, n.shape), w.view(total, n.type(1)[1])]


@lower("nll_loss2d_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total: Value,
) -> Value:
    flat, target = _positions(w, x, target)
    grad = w.view(grad, target.shape if reduction == _NONE else ())
    args = [grad, flat, target, weight, reduction, ignore_index, w.view(total, ())]
    return w.view(w.op("nll_loss_backward", args, x.dtype, flat.shape), x.shape)


@lower("tessera::ctc_loss")
def _(w: Writer, n: Results, *args: object) -> list[Value]:
    return list(w.ops("ctc_loss", list(args), n.types()))


@lower("tessera::ctc_beam_search")
def _(w: Writer, n: Results, *args: Value | int) -> list[Value]:
    return list(w.ops("ctc_beam_search", list(args), n.types()))


@lower("tessera::ctc_loss_backward")
def _(w: Writer, n: Results, *args: object) -> Value:
    return w.op("ctc_loss_backward", list(args), n.dtype, n.shape)


# Margin losses compare every class of a sample with the labelled ones.


def _samples(w: Writer, x: Value) -> Value:
    """A sample or a batch of them as [samples, classes]."""
    return w.view(x, (1,) * (2 - len(x.shape)) + x.shape)


def _other(w: Writer, x: Value, target: Value) -> Value:
    """[samples, classes]: classes that are not the target."""
    classes = w.view(w.arange(x.shape[1]), (1, x.shape[1]))
    return w.pointwise("ne", classes, target)


def _multi_margin(
    w: Writer, x: Value, target: Value, margin: Number, weight: Value | None
) -> tuple[Value, Value, Operand]:
    """By how much other classes come too near, the targets, and the factor of each sample."""
    x = _samples(w, x)
    target = w.view(w.cast(target, torch.int64), (x.shape[0], 1))
    right = w.op("gather", [x, 1, target, False], x.dtype, (x.shape[0], 1))
    over = w.pointwise("maximum", x - right + margin, 0.0)
    over = w.where(_other(w, x, target), over, 0.0)
    factor: Operand = 1.0 / x.shape[1]
    if weight is not None:
        flat = w.view(target, (x.shape[0],))
        picked = w.op("index_select", [weight, 0, flat], weight.dtype, flat.shape)
        factor = w.view(picked, target.shape) * factor
    return over, target, factor


@lower("multi_margin_loss")
def _(
    w: Writer,
    n: Results,
    x: Value,
    target: Value,
    p: Number,
    margin: Number,
    weight: Value | None,
    reduction: int,
) -> Value:
    over, _, factor = _multi_margin(w, x, target, margin, weight)
    loss = w.sum((over if p == 1 else over.square()) * factor, [1])
    return w.view(_reduced(w, loss, reduction), n.shape)


@lower("multi_margin_loss_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    x: Value,
    target: Value,
    p: Number,
    margin: Number,
    weight: Value | None,
    reduction: int,
) -> Value:
    over, target, factor = _multi_margin(w, x, target, margin, weight)
    slope = w.cast(over > 0.0, x.dtype) if p == 1 else over * 2.0
    samples = over.shape[0]
    grad = grad * (1.0 / samples) if reduction == _MEAN else grad
    grad = w.view(grad, (samples, 1) if count(grad.shape) > 1 else (1, 1))
    slope = slope * factor * grad
    right = -w.sum(slope, [1], True)
    return w.view(w.where(_other(w, over, target), slope, right), x.shape)


def _multilabel(w: Writer, x: Value, target: Value) -> tuple[Value, Value, Value]:
    """What each label lacks against every other class, which class it is, and the labelled classes.

    The labels of a sample stand before the first -1 of its row.
    """
    x, target = _samples(w, x), _samples(w, w.cast(target, torch.int64))
    samples, classes = x.shape
    index = w.view(w.arange(classes), (1, classes))
    end = w.reduce("amin", w.where(target < 0, index, classes), [1], True)
    valid = index < end
    label = w.where(valid, target, 0)
    right = w.op("gather", [x, 1, label, False], x.dtype, x.shape)
    # [samples, labels, classes]
    deep = (samples, classes, 1)
    here = w.view(valid, deep) & w.view(label, deep).equals(w.view(index, (1, 1, classes)))
    labelled = w.reduce("any", here, [1], False)
    other = w.view(valid, deep) & ~w.view(labelled, (samples, 1, classes))
    lack = w.view(x, (samples, 1, classes)) - w.view(right, deep) + 1.0
    return w.where(other & (lack > 0.0), lack, 0.0), here, labelled


@lower("multilabel_margin_loss_forward")
def _(w: Writer, n: Results, x: Value, target: Value, reduction: int) -> list[Value]:
    lack, _, labelled = _multilabel(w, x, target)
    loss = _reduced(w, w.sum(lack, [1, 2]) * (1.0 / lack.shape[2]), reduction)
    return [w.view(loss, n.shape), w.view(w.cast(labelled, n.dtype), n.type(1)[1])]


@lower("multilabel_margin_loss_backward")
def _(
    w: Writer, n: Results, grad: Value, x: Value, target: Value, reduction: int, _is_target: Value
) -> Value:
    lack, here, _ = _multilabel(w, x, target)
    samples, _, classes = lack.shape
    hits = w.cast(lack > 0.0, x.dtype)
    own = w.sum(w.where(here, w.sum(hits, [2], True), 0.0), [1])
    grad = grad * (1.0 / samples) if reduction == _MEAN else grad
    grad = w.view(grad, (samples, 1) if count(grad.shape) > 1 else (1, 1))
    return w.view((w.sum(hits, [1]) - own) * (1.0 / classes) * grad, x.shape)
