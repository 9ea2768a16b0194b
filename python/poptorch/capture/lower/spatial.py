# SPDX-License-Identifier: Apache-2.0
"""Lowerings of convolutions, resampling and padding: ops on images of one to three dims."""

from collections.abc import Sequence

import torch

from poptorch.capture._torch_private import without_modes
from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Number, Shape, Value
from poptorch.capture.text.writer import Writer


def each(values: Sequence[int], spatial: int) -> list[int]:
    """One number per spatial dim; a single one stands for all."""
    return list(values) * spatial if len(values) == 1 else list(values)


def batched(w: Writer, x: Value, spatial: int) -> Value:
    """x with a batch dim."""
    return x if len(x.shape) == spatial + 2 else w.unsqueeze(x, 0)


# Convolution. The gradients of a convolution, and transposed convolutions, are rows of their own.
# One spatial dim is seen as two, the first of size one.


def _conv_setup(
    w: Writer, tensors: list[Value], stride: list[int], padding: list[int], dilation: list[int]
) -> tuple[list[Value], list[list[int]]]:
    """The tensors, and [stride, padding, dilation], with two spatial dims or three."""
    spatial = len(tensors[0].shape) - 2
    stride, padding, dilation = (each(v, spatial) for v in (stride, padding, dilation))
    if spatial == 1:
        tensors = [w.unsqueeze(t, 2) for t in tensors]
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    return tensors, [stride, padding, dilation]


def _planar_shape(shape: Shape) -> Shape:
    return (*shape[:2], 1, shape[2]) if len(shape) == 3 else shape


@lower("convolution")
def _(
    w: Writer,
    n: Results,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    _output_padding: list[int],
    groups: int,
) -> Value:
    (x, weight), window = _conv_setup(w, [x, weight], stride, padding, dilation)
    shape = _planar_shape(n.shape)
    if transposed:
        y = w.op("conv_input_grad", [x, weight, list(shape), *window, groups], n.dtype, shape)
        if bias is not None:
            y = y + w.view(bias, (1, bias.shape[0], *[1] * len(window[0])))
    else:
        args = [x, weight, bias, *window, False, [0] * len(window[0]), groups]
        y = w.op("convolution", args, n.dtype, shape)
    return w.view(y, n.shape)


@lower("convolution_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    x: Value,
    weight: Value,
    _bias: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    _op: list[int],
    groups: int,
    mask: list[bool],
) -> list[Value | None]:
    x_shape, w_shape = x.shape, weight.shape
    tensors, window = _conv_setup(w, [grad, x, weight], stride, padding, dilation)
    grad, x, weight = tensors
    results: list[Value | None] = [None, None, None]
    args: list[object]
    if mask[0]:
        if transposed:
            args = [grad, weight, None, *window, False, [0] * len(window[0]), groups]
            grad_x = w.op("convolution", args, x.dtype, x.shape)
        else:
            args = [grad, weight, list(x.shape), *window, groups]
            grad_x = w.op("conv_input_grad", args, x.dtype, x.shape)
        results[0] = w.view(grad_x, x_shape)
    if mask[1]:
        out, inp = (x, grad) if transposed else (grad, x)
        args = [out, inp, list(weight.shape), *window, groups]
        results[1] = w.view(w.op("conv_weight_grad", args, x.dtype, weight.shape), w_shape)
    if mask[2]:
        results[2] = w.sum(grad, [0, *range(2, len(grad.shape))])
    return results


# Resampling, and padding with elements of the tensor itself: one row, whose gradient is the
# transposed map.


def _resample(
    w: Writer,
    x: Value,
    mode: str,
    size: Sequence[int],
    align_corners: bool,
    numbers: Sequence[Number],
    back: bool = False,
) -> Value:
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    moves = mode in ("nearest", "nearest-exact", "reflect", "replicate", "circular") and not back
    if not moves and x.dtype not in dtypes:
        raise MissingRow("resample of integers")
    shape = (*x.shape[: -len(size)], *size)
    args = [x, mode, list(size), bool(align_corners), [float(v) for v in numbers]]
    return w.op("resample_backward" if back else "resample", args, x.dtype, shape)


def _register_upsample(name: str, spatial: int, mode: str, corners: bool = True) -> None:
    def numbers(scales: Sequence[float | None]) -> list[float]:
        return [s or 0.0 for s in scales] or [0.0] * spatial

    @lower(name)
    def _(w: Writer, n: Results, x: Value, size: list[int], *rest: float | None) -> Value:
        align = bool(rest[0]) if corners else False
        scales = numbers(rest[1:] if corners else rest)
        return _resample(w, x, mode, size, align, scales)

    @lower(name + "_backward")
    def _(
        w: Writer,
        n: Results,
        grad: Value,
        _size: list[int],
        shape: list[int],
        *rest: float | None,
    ) -> Value:
        align = bool(rest[0]) if corners else False
        scales = numbers(rest[1:] if corners else rest)
        return _resample(w, grad, mode, shape[2:], align, scales, back=True)


for _d in (1, 2, 3):
    _register_upsample(f"upsample_nearest{_d}d", _d, "nearest", corners=False)
    _register_upsample(f"_upsample_nearest_exact{_d}d", _d, "nearest-exact", corners=False)
_register_upsample("upsample_linear1d", 1, "linear")
_register_upsample("upsample_bilinear2d", 2, "linear")
_register_upsample("upsample_trilinear3d", 3, "linear")
_register_upsample("upsample_bicubic2d", 2, "cubic")
_register_upsample("_upsample_bilinear2d_aa", 2, "linear-aa")
_register_upsample("_upsample_bicubic2d_aa", 2, "cubic-aa")


def _register_pad(name: str, mode: str) -> None:
    @lower(name)
    def _(w: Writer, n: Results, x: Value, pad: list[int]) -> Value:
        spatial = len(pad) // 2
        y = _resample(w, batched(w, x, spatial), mode, n.shape[-spatial:], False, pad[-2::-2])
        return w.view(y, n.shape)

    @lower(name + "_backward")
    def _(w: Writer, n: Results, grad: Value, x: Value, pad: list[int]) -> Value:
        spatial = len(pad) // 2
        grad = batched(w, grad, spatial)
        size = x.shape[-spatial:]
        return w.view(_resample(w, grad, mode, size, False, pad[-2::-2], back=True), n.shape)


for _d in (1, 2, 3):
    _register_pad(f"reflection_pad{_d}d", "reflect")
    _register_pad(f"replication_pad{_d}d", "replicate")


@lower("tessera::circular_pad")
def _(w: Writer, n: Results, x: Value, pad: list[int]) -> Value:
    return _resample(w, x, "circular", n.shape[-(len(pad) // 2) :], False, pad[-2::-2])


@lower("tessera::circular_pad_backward")
def _(w: Writer, n: Results, grad: Value, shape: list[int], pad: list[int]) -> Value:
    size = shape[-(len(pad) // 2) :]
    return _resample(w, grad, "circular", size, False, pad[-2::-2], back=True)


# Sampling at positions that a tensor gives


@lower("grid_sampler_2d", "grid_sampler_3d")
def _(
    w: Writer, n: Results, x: Value, grid: Value, mode: int, padding: int, align_corners: bool
) -> Value:
    return w.op("grid_sampler", [x, grid, mode, padding, align_corners], n.dtype, n.shape)


@lower("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _(
    w: Writer,
    n: Results,
    grad: Value,
    x: Value,
    grid: Value,
    mode: int,
    padding: int,
    align_corners: bool,
    _mask: list[bool],
) -> list[Value]:
    args = [grad, x, grid, mode, padding, align_corners]
    return list(w.ops("grid_sampler_backward", args, [(t.dtype, t.shape) for t in (x, grid)]))


def _base_grid(w: Writer, size: list[int], align_corners: bool, dtype: torch.dtype) -> Value:
    """Positions of the pixels of an image from -1 to 1, width first, and a one."""

    def make() -> torch.Tensor:
        axes = []
        for i, extent in enumerate(reversed(size)):
            line = torch.linspace(-1, 1, extent) if extent > 1 else torch.zeros(extent)
            if not align_corners:
                line = line * (extent - 1) / extent
            axes.append(line.reshape([-1 if d == i else 1 for d in reversed(range(len(size)))]))
        planes = [a.expand(size) for a in (*axes, torch.ones(()))]
        return torch.stack(planes, -1).reshape(-1, len(planes)).to(dtype)

    return w.constant(without_modes(make))


@lower("affine_grid_generator")
def _(w: Writer, n: Results, theta: Value, size: list[int], align_corners: bool) -> Value:
    batch, axes, numbers = theta.shape
    base = _base_grid(w, size[2:], align_corners, theta.dtype)
    base = w.expand(w.unsqueeze(base, 0), (batch, *base.shape))
    by_row = w.op("transpose", [theta, 1, 2], theta.dtype, (batch, numbers, axes))
    return w.view(w.op("bmm", [base, by_row], theta.dtype, (batch, base.shape[1], axes)), n.shape)


# Rearrangements between channels and space


@lower("pixel_shuffle")
def _(w: Writer, n: Results, x: Value, r: int) -> Value:
    *lead, c, height, width = x.shape
    k = len(lead)
    x = w.view(x, (*lead, c // (r * r), r, r, height, width))
    x = w.permute(x, [*range(k), k, k + 3, k + 1, k + 4, k + 2])
    return w.view(x, n.shape)


@lower("pixel_unshuffle")
def _(w: Writer, n: Results, x: Value, r: int) -> Value:
    *lead, c, height, width = x.shape
    k = len(lead)
    x = w.view(x, (*lead, c, height // r, r, width // r, r))
    x = w.permute(x, [*range(k), k, k + 2, k + 4, k + 1, k + 3])
    return w.view(x, n.shape)


@lower("channel_shuffle", "native_channel_shuffle")
def _(w: Writer, n: Results, x: Value, groups: int) -> Value:
    batch, channels, *rest = x.shape
    split = w.view(x, (batch, groups, channels // groups, *rest))
    return w.view(w.permute(split, [0, 2, 1, *range(3, len(rest) + 3)]), n.shape)
