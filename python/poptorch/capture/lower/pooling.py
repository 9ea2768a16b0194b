# SPDX-License-Identifier: Apache-2.0
"""Lowerings of pooling. Rows have a batch dim; their arguments tell how many dims are spatial."""

from collections.abc import Sequence

import torch

from poptorch.capture.lower.spatial import batched, each
from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Shape, Value
from poptorch.capture.text.writer import Writer


def _batched_shape(shape: Shape, spatial: int) -> Shape:
    return shape if len(shape) == spatial + 2 else (1, *shape)


def _window(
    spatial: int, kernel: list[int], stride: list[int], *rest: list[int]
) -> list[list[int]]:
    kernel = each(kernel, spatial)
    stride = each(stride, spatial) if stride else kernel
    return [kernel, stride, *[each(r, spatial) for r in rest]]


def _pool(
    w: Writer,
    n: Results,
    name: str,
    x: Value,
    spatial: int,
    args: Sequence[object],
    index: bool = False,
) -> list[Value]:
    x = batched(w, x, spatial)
    types = [(x.dtype, _batched_shape(n.shape, spatial))]
    if index:
        types.append((torch.int64, types[0][1]))
    results = w.ops(name, [x, *args], types)
    return [w.view(r, n.shape) for r in results]


def _pool_grad(
    w: Writer,
    n: Results,
    name: str,
    grad: Value,
    x: Value,
    spatial: int,
    args: Sequence[object],
    index: Value | None = None,
) -> Value:
    grad, x = batched(w, grad, spatial), batched(w, x, spatial)
    args = [grad, x, *args, *([] if index is None else [batched(w, index, spatial)])]
    return w.view(w.op(name, args, x.dtype, x.shape), n.shape)


def _register_pools(d: int) -> None:
    @lower(f"max_pool{d}d_with_indices")
    def _(
        w: Writer,
        n: Results,
        x: Value,
        kernel: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
    ) -> list[Value]:
        args = [*_window(d, kernel, stride, padding, dilation), ceil_mode]
        return _pool(w, n, "max_pool", x, d, args, index=True)

    @lower(f"max_pool{d}d_with_indices_backward")
    def _(
        w: Writer,
        n: Results,
        grad: Value,
        x: Value,
        kernel: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
        index: Value,
    ) -> Value:
        args = [*_window(d, kernel, stride, padding, dilation), ceil_mode]
        return _pool_grad(w, n, "max_pool_backward", grad, x, d, args, index)

    @lower(f"avg_pool{d}d")
    def _(
        w: Writer,
        n: Results,
        x: Value,
        kernel: list[int],
        stride: list[int],
        padding: list[int],
        *rest: int | None,
    ) -> Value:
        args = [*_window(d, kernel, stride, padding), *rest]
        return _pool(w, n, "avg_pool", x, d, args)[0]

    @lower(f"avg_pool{d}d_backward")
    def _(
        w: Writer,
        n: Results,
        grad: Value,
        x: Value,
        kernel: list[int],
        stride: list[int],
        padding: list[int],
        *rest: int | None,
    ) -> Value:
        args = [*_window(d, kernel, stride, padding), *rest]
        return _pool_grad(w, n, "avg_pool_backward", grad, x, d, args)

    @lower(f"_adaptive_avg_pool{d}d")
    def _(w: Writer, n: Results, x: Value, size: list[int]) -> Value:
        return _pool(w, n, "adaptive_avg_pool", x, d, [list(size)])[0]

    @lower(f"_adaptive_avg_pool{d}d_backward")
    def _(w: Writer, n: Results, grad: Value, x: Value) -> Value:
        return _pool_grad(w, n, "adaptive_avg_pool_backward", grad, x, d, [list(grad.shape[-d:])])

    @lower(f"adaptive_max_pool{d}d")
    def _(w: Writer, n: Results, x: Value, size: list[int]) -> list[Value]:
        return _pool(w, n, "adaptive_max_pool", x, d, [list(size)], index=True)

    @lower(f"adaptive_max_pool{d}d_backward")
    def _(w: Writer, n: Results, grad: Value, x: Value, index: Value) -> Value:
        size = [list(grad.shape[-d:])]
        return _pool_grad(w, n, "adaptive_max_pool_backward", grad, x, d, size, index)

    @lower(f"fractional_max_pool{d}d")
    def _(
        w: Writer, n: Results, x: Value, kernel: list[int], size: list[int], samples: Value
    ) -> list[Value]:
        if x.dtype is not torch.float32:
            raise MissingRow("windows of a half-precision fractional pool")
        args = [x, each(kernel, d), each(size, d), samples]
        return list(w.ops("fractional_max_pool", args, n.types()))

    @lower(f"fractional_max_pool{d}d_backward")
    def _(
        w: Writer,
        n: Results,
        grad: Value,
        x: Value,
        kernel: list[int],
        size: list[int],
        index: Value,
    ) -> Value:
        return w.op("pool_index_add", [grad, index, list(x.shape[-d:])], x.dtype, x.shape)

    @lower(f"max_unpool{d}d")
    def _(
        w: Writer, n: Results, x: Value, index: Value, size: list[int], *_window: object
    ) -> Value:
        return w.op("max_unpool", [x, index, list(n.shape[-d:])], x.dtype, n.shape)


for _d in (2, 3):
    _register_pools(_d)
