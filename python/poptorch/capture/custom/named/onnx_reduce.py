# SPDX-License-Identifier: Apache-2.0
"""``ai.onnx``: reductions, searches and sums along an axis."""

from collections.abc import Callable

import torch
from torch import Tensor

from poptorch.capture.custom.named.table import Call, Named, Result

_Reduce = Callable[[Tensor, list[int], bool], Tensor]


def reduction(function: _Reduce, axes_input: int = 18) -> Named:
    """A row of a reduction, whose axes are an input from version `axes_input` on."""

    def run(call: Call) -> Tensor:
        x, keep = call.x(), call.flag("keepdims", True)
        if call.version >= axes_input:
            axes, nothing = call.numbers_or_none(1, "axes"), call.flag("noop_with_empty_axes")
            if axes is None and nothing:
                return function(x, [], keep)
        else:
            axes = call.ints("axes")
        dims = range(x.dim()) if axes is None else axes
        return function(x, sorted(call.axis(d, x.dim()) for d in dims), keep)

    return Named(run)


def _sum(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return x.sum(dims, keepdim=keep, dtype=x.dtype) if dims else x


def _mean(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    if not dims:
        return x
    if x.is_floating_point():
        return x.mean(dims, keepdim=keep)
    count = x.numel() // max(x.sum(dims).numel(), 1)
    return torch.div(_sum(x, dims, keep), count, rounding_mode="trunc")


def _product(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    for dim in reversed(dims):
        x = x.prod(dim, keepdim=keep, dtype=x.dtype)
    return x


def _largest(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return x.amax(dims, keepdim=keep) if dims else x


def _smallest(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return x.amin(dims, keepdim=keep) if dims else x


def _log_sum_exp(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return torch.logsumexp(x, dims, keepdim=keep) if dims else x


def _l2(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return torch.linalg.vector_norm(x, 2, dims, keepdim=keep) if dims else x.abs()


def _extreme(largest: bool) -> Named:
    def run(call: Call) -> Tensor:
        x, keep = call.x(), call.flag("keepdims", True)
        axis = call.axis(call.int_("axis", 0), x.dim())
        find = torch.argmax if largest else torch.argmin
        if call.version >= 12 and call.flag("select_last_index"):
            return x.shape[axis] - 1 - find(x.flip(axis), axis, keepdim=keep)
        return find(x, axis, keepdim=keep)

    return Named(run)


def _cum_sum(call: Call) -> Tensor:
    x = call.x()
    axis = call.axis(int(call.numbers(1, "axis")[0]), x.dim())
    exclusive, backwards = call.flag("exclusive"), call.flag("reverse")
    flipped = x.flip(axis) if backwards else x
    out = flipped.cumsum(axis, dtype=x.dtype)
    out = out - flipped if exclusive else out
    return out.flip(axis) if backwards else out


def _top_k(call: Call) -> Result:
    x = call.x()
    axis = call.axis(call.int_("axis", -1), x.dim())
    k = int(call.numbers(1, "K")[0]) if call.version >= 10 else call.int_("k")
    largest = call.flag("largest", True) if call.version >= 11 else True
    call.known("sorted")
    if not 0 <= k <= x.shape[axis]:
        call.fail(f"k is {k}, but dimension {axis} has {x.shape[axis]} elements.")
    return torch.topk(x, k, axis, largest)


def _einsum(call: Call) -> Tensor:
    return torch.einsum(call.str_("equation"), *call.inputs)


ROWS: dict[str, Named] = {
    "ArgMax": _extreme(True),
    "ArgMin": _extreme(False),
    "CumSum": Named(_cum_sum, 11),
    "Det": Named(lambda call: torch.linalg.det(call.x()), 11),
    "Einsum": Named(_einsum, 12),
    "ReduceL1": reduction(lambda x, dims, keep: _sum(x.abs(), dims, keep)),
    "ReduceL2": reduction(_l2),
    "ReduceLogSum": reduction(lambda x, dims, keep: _sum(x, dims, keep).log()),
    "ReduceLogSumExp": reduction(_log_sum_exp),
    "ReduceMax": reduction(_largest),
    "ReduceMean": reduction(_mean),
    "ReduceMin": reduction(_smallest),
    "ReduceProd": reduction(_product),
    "ReduceSum": reduction(_sum, 13),
    "ReduceSumSquare": reduction(lambda x, dims, keep: _sum(x * x, dims, keep)),
    "TopK": Named(_top_k),
}
