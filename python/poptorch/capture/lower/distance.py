# SPDX-License-Identifier: Apache-2.0
"""Lowerings of distances between the rows of matrices, and their gradients."""

import math

import torch

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import Value, count
from poptorch.capture.text.writer import Writer


def _distance(w: Writer, far: Value, p: float, dim: int) -> Value:
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


def _distance_slope(w: Writer, diff: Value, distance: Value, p: float) -> Value:
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


def _differences(w: Writer, a: Value, b: Value) -> Value:
    """[..., rows of a, rows of b, size]"""
    return w.unsqueeze(a, len(a.shape) - 1) - w.unsqueeze(b, len(b.shape) - 2)


def _wide(w: Writer, *values: Value) -> list[Value]:
    """Half precision is too narrow for sums of powers."""
    return [w.cast(v, torch.promote_types(v.dtype, torch.float32)) for v in values]


@lower("_cdist_forward")
def _(w: Writer, n: Results, a: Value, b: Value, p: float, _mode: int | None) -> Value:
    if not count(n.shape):
        return w.full(0, n.dtype, n.shape)
    a, b = _wide(w, a, b)
    diff = _differences(w, a, b)
    if not a.shape[-1]:
        return w.full(0, n.dtype, n.shape)
    return w.cast(_distance(w, diff.abs(), p, len(diff.shape) - 1), n.dtype)


_FEW_DIFFERENCES = 1 << 15


@lower("_euclidean_dist")
def _(w: Writer, n: Results, a: Value, b: Value) -> Value:
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
def _(w: Writer, n: Results, grad: Value, a: Value, b: Value, p: float, distance: Value) -> Value:
    if not count(n.shape) or not count(grad.shape):
        return w.full(0, n.dtype, n.shape)
    grad, a, b, distance = _wide(w, grad, a, b, distance)
    diff = _differences(w, a, b)
    last = len(diff.shape) - 1
    slope = _distance_slope(w, diff, w.unsqueeze(distance, last), p)
    return w.cast(w.sum(slope * w.unsqueeze(grad, last), [last - 1]), n.dtype)


@lower("_pdist_forward")
def _(w: Writer, n: Results, x: Value, p: float) -> Value:
    rows = x.shape[0]
    if not count(n.shape) or not x.shape[1]:
        return w.full(0, n.dtype, n.shape)
    (x,) = _wide(w, x)
    full = w.view(_distance(w, _differences(w, x, x).abs(), p, 2), (rows * rows,))
    i, j = torch.triu_indices(rows, rows, 1)
    return w.op("index_select", [full, 0, w.constant(i * rows + j)], n.dtype, n.shape)


@lower("_pdist_backward")
def _(w: Writer, n: Results, grad: Value, x: Value, p: float, distance: Value) -> Value:
    rows = x.shape[0]
    if not count(n.shape) or not count(grad.shape):
        return w.full(0, n.dtype, n.shape)
    # Both triangles from the line of pairs; a row has no distance to itself.
    i, j = torch.triu_indices(rows, rows, 1)
    pairs = len(i)
    pair_of = torch.full((rows, rows), pairs)
    pair_of[i, j] = pair_of[j, i] = torch.arange(pairs)
    index = w.constant(pair_of.flatten())

    def square(line: Value) -> Value:
        parts = [line, w.full(0, line.dtype, (1,))]
        longer = w.op("cat", [parts, 0], line.dtype, (pairs + 1,))
        found = w.op("index_select", [longer, 0, index], line.dtype, (rows * rows,))
        return w.view(found, (rows, rows, 1))

    slope = _distance_slope(w, _differences(w, x, x), square(distance), p)
    return w.sum(slope * square(grad), [1])
