# SPDX-License-Identifier: Apache-2.0
"""Lowerings of loss functions and their gradients."""

import math

import torch

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


@lower("tessera::loss_seed")
def _(w, n, loss):
    """Where backward starts: 1, or the loss scaling if the program has one."""
    if w.loss_scale is None:
        return w.full(1.0, loss.dtype, loss.shape)
    return w.expand(w.cast(w.loss_scale, loss.dtype), loss.shape)


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


@lower("tessera::ctc_loss")
def _(w, n, *args):
    return list(w.ops("ctc_loss", list(args), n.types()))


@lower("tessera::ctc_beam_search")
def _(w, n, *args):
    return list(w.ops("ctc_beam_search", list(args), n.types()))


@lower("tessera::ctc_loss_backward")
def _(w, n, *args):
    return w.op("ctc_loss_backward", list(args), n.dtype, n.shape)


# Margin losses compare every class of a sample with the labelled ones.


def _samples(w, x):
    """A sample or a batch of them as [samples, classes]."""
    return w.view(x, (1,) * (2 - len(x.shape)) + x.shape)


def _other(w, x, target):
    """[samples, classes]: classes that are not the target."""
    classes = w.view(w.arange(x.shape[1]), (1, x.shape[1]))
    return w.pointwise("ne", classes, target)


def _multi_margin(w, x, target, margin, weight):
    x = _samples(w, x)
    target = w.view(w.cast(target, torch.int64), (x.shape[0], 1))
    right = w.op("gather", [x, 1, target, False], x.dtype, (x.shape[0], 1))
    over = w.pointwise("maximum", x - right + margin, 0.0)
    over = w.where(_other(w, x, target), over, 0.0)
    factor = 1.0 / x.shape[1]
    if weight is not None:
        flat = w.view(target, (x.shape[0],))
        picked = w.op("index_select", [weight, 0, flat], weight.dtype, flat.shape)
        factor = w.view(picked, target.shape) * factor
    return over, target, factor


@lower("multi_margin_loss")
def _(w, n, x, target, p, margin, weight, reduction):
    over, _, factor = _multi_margin(w, x, target, margin, weight)
    loss = w.sum((over if p == 1 else over.square()) * factor, [1])
    return w.view(_reduced(w, loss, reduction), n.shape)


@lower("multi_margin_loss_backward")
def _(w, n, grad, x, target, p, margin, weight, reduction):
    over, target, factor = _multi_margin(w, x, target, margin, weight)
    slope = w.cast(over > 0.0, x.dtype) if p == 1 else over * 2.0
    samples = over.shape[0]
    grad = grad * (1.0 / samples) if reduction == _MEAN else grad
    grad = w.view(grad, (samples, 1) if count(grad.shape) > 1 else (1, 1))
    slope = slope * factor * grad
    right = -w.sum(slope, [1], True)
    return w.view(w.where(_other(w, over, target), slope, right), x.shape)


def _multilabel(w, x, target):
    """Labels stand before the first -1 of a row; what each lacks against every other class."""
    x, target = _samples(w, x), _samples(w, w.cast(target, torch.int64))
    samples, classes = x.shape
    place = w.view(w.arange(classes), (1, classes))
    end = w.reduce("amin", w.where(target < 0, place, classes), [1], True)
    valid = place < end
    label = w.where(valid, target, 0)
    right = w.op("gather", [x, 1, label, False], x.dtype, x.shape)
    # [samples, labels, classes]
    deep = (samples, classes, 1)
    here = w.view(valid, deep) & w.view(label, deep).equals(w.view(place, (1, 1, classes)))
    labelled = w.reduce("any", here, [1], False)
    other = w.view(valid, deep) & ~w.view(labelled, (samples, 1, classes))
    lack = w.view(x, (samples, 1, classes)) - w.view(right, deep) + 1.0
    return w.where(other & (lack > 0.0), lack, 0.0), here, labelled


@lower("multilabel_margin_loss_forward")
def _(w, n, x, target, reduction):
    lack, _, labelled = _multilabel(w, x, target)
    loss = _reduced(w, w.sum(lack, [1, 2]) * (1.0 / lack.shape[2]), reduction)
    return [w.view(loss, n.shape), w.view(w.cast(labelled, n.dtype), n.type(1)[1])]


@lower("multilabel_margin_loss_backward")
def _(w, n, grad, x, target, reduction, _is_target):
    lack, here, _ = _multilabel(w, x, target)
    samples, _, classes = lack.shape
    hits = w.cast(lack > 0.0, x.dtype)
    own = w.sum(w.where(here, w.sum(hits, [2], True), 0.0), [1])
    grad = grad * (1.0 / samples) if reduction == _MEAN else grad
    grad = w.view(grad, (samples, 1) if count(grad.shape) > 1 else (1, 1))
    return w.view((w.sum(hits, [1]) - own) * (1.0 / classes) * grad, x.shape)


# Distances between the rows of two matrices


def _distance(w, far, p, dim):
    """Norm of differences given as absolute values."""
    if p == 0:
        return w.sum(w.cast(w.pointwise("ne", far, 0.0), far.dtype), [dim])
    if p == 1:
        return w.sum(far, [dim])
    if p == 2:
        return w.sum(far.square(), [dim]).sqrt()
    if p == math.inf:
        return w.reduce("amax", far, [dim], False)
    return w.pointwise("pow", w.sum(w.pointwise("pow", far, float(p)), [dim]), 1.0 / p)


def _distance_slope(w, diff, distance, p):
    """Derivative of the distance for each difference; zero where there is no distance."""
    if p == 0:
        return w.full(0, diff.dtype, diff.shape)
    if p == 1:
        return diff.sign()
    if p == math.inf:
        return diff.sign() * w.cast(diff.abs().equals(distance), diff.dtype)
    if p == 2:
        return w.where(distance.equals(0.0), 0.0, diff / distance)
    slope = diff.sign() * w.pointwise("pow", diff.abs(), float(p - 1))
    slope = slope / w.pointwise("pow", distance, float(p - 1))
    none = distance.equals(0.0)
    none = none | diff.equals(0.0) if p < 1 else none
    return w.where(none, 0.0, slope)


def _differences(w, a, b):
    """[..., rows of a, rows of b, size]"""
    return w.unsqueeze(a, len(a.shape) - 1) - w.unsqueeze(b, len(b.shape) - 2)


def _wide(w, *values):
    """Half precision is too narrow for sums of powers."""
    return [w.cast(v, torch.promote_types(v.dtype, torch.float32)) for v in values]


@lower("_cdist_forward")
def _(w, n, a, b, p, _mode):
    if not count(n.shape):
        return w.full(0, n.dtype, n.shape)
    a, b = _wide(w, a, b)
    diff = _differences(w, a, b)
    if not a.shape[-1]:
        return w.full(0, n.dtype, n.shape)
    return w.cast(_distance(w, diff.abs(), p, len(diff.shape) - 1), n.dtype)


_FEW_DIFFERENCES = 1 << 15


@lower("_euclidean_dist")
def _(w, n, a, b):
    """From a product of matrices, as eager does for many rows."""
    if not count(n.shape) or not a.shape[-1]:
        return w.full(0, n.dtype, n.shape)
    rows, columns, size = a.shape[-2], b.shape[-2], a.shape[-1]
    lead = n.shape[:-2]
    if count(n.shape) * size <= _FEW_DIFFERENCES:  # not worth what a product loses in digits
        diff = _differences(w, a, b)
        return _distance(w, diff.abs(), 2.0, len(diff.shape) - 1)
    turned = w.permute(b, [*range(len(b.shape) - 2), len(b.shape) - 1, len(b.shape) - 2])
    if not lead:
        product = w.op("mm", [a, turned], n.dtype, n.shape)
    else:
        batch = count(lead)
        left = w.view(w.expand(a, (*lead, rows, size)), (batch, rows, size))
        right = w.view(w.expand(turned, (*lead, size, columns)), (batch, size, columns))
        product = w.op("bmm", [left, right], n.dtype, (batch, rows, columns))
        product = w.view(product, n.shape)
    last = len(a.shape) - 1
    own = w.sum(a.square(), [last], True)
    other = w.sum(turned.square(), [len(b.shape) - 2], True)
    return w.pointwise("maximum", own + other - product * 2.0, 0.0).sqrt()


@lower("_cdist_backward")
def _(w, n, grad, a, b, p, distance):
    if not count(n.shape) or not count(grad.shape):
        return w.full(0, n.dtype, n.shape)
    grad, a, b, distance = _wide(w, grad, a, b, distance)
    diff = _differences(w, a, b)
    last = len(diff.shape) - 1
    slope = _distance_slope(w, diff, w.unsqueeze(distance, last), p)
    return w.cast(w.sum(slope * w.unsqueeze(grad, last), [last - 1]), n.dtype)


@lower("_pdist_forward")
def _(w, n, x, p):
    rows = x.shape[0]
    if not count(n.shape) or not x.shape[1]:
        return w.full(0, n.dtype, n.shape)
    (x,) = _wide(w, x)
    full = w.view(_distance(w, _differences(w, x, x).abs(), p, 2), (rows * rows,))
    i, j = torch.triu_indices(rows, rows, 1)
    return w.op("index_select", [full, 0, w.constant(i * rows + j)], n.dtype, n.shape)


@lower("_pdist_backward")
def _(w, n, grad, x, p, distance):
    rows = x.shape[0]
    if not count(n.shape) or not count(grad.shape):
        return w.full(0, n.dtype, n.shape)
    # Both triangles from the line of pairs; a row has no distance to itself.
    i, j = torch.triu_indices(rows, rows, 1)
    pairs = len(i)
    where = torch.full((rows, rows), pairs)
    where[i, j] = where[j, i] = torch.arange(pairs)
    where = w.constant(where.flatten())

    def square(line):
        longer = [[line, w.full(0, line.dtype, (1,))], 0]
        longer = w.op("cat", longer, line.dtype, (pairs + 1,))
        found = w.op("index_select", [longer, 0, where], line.dtype, (rows * rows,))
        return w.view(found, (rows, rows, 1))

    slope = _distance_slope(w, _differences(w, x, x), square(distance), p)
    return w.sum(slope * square(grad), [1])
