# SPDX-License-Identifier: Apache-2.0
"""What the rows of indexing, scatters through views and bags mean, in terms of eager torch."""

import torch

_aten = torch.ops.aten


def _index_put_along(x, dim, index, values, accumulate=False):
    where = [None] * dim + [index]
    return _aten.index_put(x, where, values, accumulate)


def _masked_compact(x, mask, size):
    found = x[mask][:size]
    return torch.cat([found, found.new_zeros(size - found.numel())])


def _segments(offsets, total, bags):
    ends = [*offsets.tolist(), total][1 : bags + 1]
    return list(zip(offsets.tolist(), ends, strict=False))


def _bag(table, indices, offsets, mode, weights, padding, has_last):
    bags = offsets.numel() - bool(has_last)
    out = torch.zeros(bags, table.shape[1], dtype=table.dtype)
    bag_of, sizes = torch.zeros_like(indices), torch.zeros(bags, dtype=indices.dtype)
    rows = torch.full((bags if mode == 2 else 0, table.shape[1]), -1, dtype=indices.dtype)
    for b, (begin, end) in enumerate(_segments(offsets, indices.numel(), bags)):
        bag_of[begin:end] = b
        keep = [k for k in range(begin, end) if int(indices[k]) != padding]
        sizes[b] = len(keep)
        if not keep:
            continue
        part = table[indices[keep]]
        if mode == 2:
            out[b], place = part.max(0)
            rows[b] = indices[keep][place]
        else:
            part = part if weights is None else part * weights[keep, None]
            out[b] = part.sum(0) / (len(keep) if mode == 1 else 1)
    return [out, bag_of, sizes, rows]


def _bag_grad(grad, indices, offsets, rows, mode, weights, by_frequency, padding, maxima):
    out = torch.zeros(rows, grad.shape[1], dtype=grad.dtype)
    if mode == 2:
        for b, j in (maxima >= 0).nonzero().tolist():
            out[maxima[b, j], j] += grad[b, j]
        return out
    counts = torch.bincount(indices, minlength=rows)
    for b, (begin, end) in enumerate(_segments(offsets, indices.numel(), grad.shape[0])):
        keep = [k for k in range(begin, end) if int(indices[k]) != padding]
        for k in keep:
            scale = 1.0 if weights is None else weights[k]
            scale = scale / (len(keep) if mode == 1 else 1)
            out[indices[k]] += grad[b] * scale / (counts[indices[k]] if by_frequency else 1)
    return out


def _bag_weight_grad(grad, table, indices, offsets, padding):
    out = torch.zeros(indices.numel(), dtype=grad.dtype)
    for b, (begin, end) in enumerate(_segments(offsets, indices.numel(), grad.shape[0])):
        for k in range(begin, end):
            if int(indices[k]) != padding:
                out[k] = grad[b] @ table[indices[k]]
    return out


EVALUATE = {
    "as_strided": lambda x, size, stride, at: x.contiguous().as_strided(size, stride, at),
    "as_strided_scatter": lambda x, src, size, stride, at: torch.as_strided_scatter(
        x.contiguous(), src, size, stride, at
    ),
    "embedding": lambda table, index: _aten.embedding(table, index),
    "embedding_bag": _bag,
    "embedding_bag_grad": _bag_grad,
    "embedding_bag_weight_grad": _bag_weight_grad,
    "gather": lambda x, d, i, *_sparse: x.gather(d, i),
    "index": lambda x, i: _aten.index(x, i),
    "index_add": lambda x, d, i, v: _index_put_along(x, d, i, v, True),
    "index_copy": _index_put_along,
    "index_fill": _index_put_along,
    "index_put": lambda x, i, v, acc: _aten.index_put(x, i, v, acc),
    "index_reduce": lambda x, d, i, v, how: x.index_reduce(d, i, v, how),
    "masked_compact": _masked_compact,
    "nonzero_static": lambda m, size, fill: torch.nonzero_static(m, size=size, fill_value=fill),
    "put": lambda x, i, v, acc: x.put(i, v, acc),
    "repeat_interleave": lambda r, size: _aten.repeat_interleave(r, output_size=size),
    "scatter.src": lambda x, d, i, src: x.scatter(d, i, src),
    "scatter.value": lambda x, d, i, v: x.scatter(d, i, v),
    "scatter_reduce": lambda x, d, i, src, how: x.scatter_reduce(d, i, src, how),
}
