# SPDX-License-Identifier: Apache-2.0
"""Lowerings of embeddings, bags of them, and their gradients."""

import math

import torch

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Value, count
from poptorch.capture.text.writer import Writer


def _flat(w: Writer, x: Value) -> Value:
    return w.view(x, (count(x.shape),))


@lower("embedding")
def _(w: Writer, n: Results, weight: Value, indices: Value, *_rest: object) -> Value:
    if not count(n.shape):
        return w.full(0, n.dtype, n.shape)
    return w.op("embedding", [weight, indices], weight.dtype, n.shape)


@lower("embedding_dense_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    indices: Value,
    rows: int,
    padding_idx: int,
    by_frequency: bool,
) -> Value:
    args = [grad, indices, rows, padding_idx, by_frequency]
    return w.op("embedding_dense_backward", args, grad.dtype, n.shape)


@lower("embedding_renorm")
def _(
    w: Writer, n: Results, weight: Value, indices: Value, max_norm: float, norm_type: float
) -> Value:
    """Only the rows that are looked up; a row that is looked up twice is written twice."""
    if not count(indices.shape):
        return weight
    indices = _flat(w, indices)
    rows = w.op("embedding", [weight, indices], weight.dtype, (*indices.shape, weight.shape[1]))
    wide = w.cast(rows, torch.float32)
    if norm_type == 2:
        norm = w.sum(wide.square(), [1], True).sqrt()
    elif norm_type == math.inf:
        norm = w.reduce("amax", wide.abs(), [1], True)
    else:
        total = w.sum(w.pointwise("pow", wide.abs(), float(norm_type)), [1], True)
        norm = w.pointwise("pow", total, 1.0 / norm_type)
    scaled = w.cast(wide * (max_norm / (norm + 1e-7)), weight.dtype)
    rows = w.where(norm > float(max_norm), scaled, rows)
    return w.op("index_copy", [weight, 0, indices, rows], weight.dtype, weight.shape)


@lower("_embedding_bag", "_embedding_bag_forward_only")
def _(
    w: Writer,
    n: Results,
    weight: Value,
    indices: Value,
    offsets: Value,
    _by_freq: bool,
    mode: int,
    _sparse: bool,
    weights: Value | None,
    include_last: bool,
    padding: int,
) -> list[Value]:
    if weights is not None:
        weights = w.cast(weights, weight.dtype)
    (_, shape), (dtype, bag_shape), (_, bags), (_, maxima) = n.types()
    types = [(weight.dtype, shape), (indices.dtype, indices.shape), (indices.dtype, bags)]
    types.append((indices.dtype, shape if mode == 2 else (0, shape[1])))
    args = [weight, indices, offsets, mode, weights, padding, bool(include_last)]
    out, bag_of, sizes, rows = w.ops("embedding_bag", args, types)
    bag_of = w.cast(bag_of, dtype) if bag_shape == indices.shape else w.full(0, dtype, bag_shape)
    rows = w.cast(rows, dtype) if mode == 2 else w.full(0, dtype, maxima)
    return [out, bag_of, w.cast(sizes, dtype), rows]


def _bag_grad(
    w: Writer,
    n: Results,
    grad: Value,
    indices: Value,
    offsets: Value,
    maxima: Value,
    rows: int,
    by_freq: bool,
    mode: int,
    weights: Value | None,
    padding: int,
) -> Value:
    if weights is not None:
        weights = w.cast(weights, grad.dtype)
    args = [grad, indices, offsets, rows, mode, weights, by_freq, padding]
    args.append(maxima if mode == 2 else None)
    return w.op("embedding_bag_grad", args, grad.dtype, n.shape)


@lower("_embedding_bag_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    indices: Value,
    offsets: Value,
    _o2b: Value,
    _sizes: Value,
    maxima: Value,
    rows: int,
    freq: bool,
    mode: int,
    sparse: bool,
    weights: Value | None,
    pad: int,
) -> Value:
    if sparse:
        raise MissingRow("sparse gradient")
    return _bag_grad(w, n, grad, indices, offsets, maxima, rows, freq, mode, weights, pad)


@lower("_embedding_bag_per_sample_weights_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    weight: Value,
    indices: Value,
    offsets: Value,
    _offset2bag: Value,
    mode: int,
    padding: int,
) -> Value:
    args = [grad, weight, indices, offsets, padding]
    return w.op("embedding_bag_weight_grad", args, n.dtype, n.shape)
