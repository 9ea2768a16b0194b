# SPDX-License-Identifier: Apache-2.0
"""Lowerings of convolutions, poolings, resampling and padding: ops on images of one to three
dims."""

import torch

from .lowering import lower
from .writer import MissingRow


def _each(values, count_):
    return list(values) * count_ if len(values) == 1 else list(values)


# Convolution. The gradients of a convolution, and transposed convolutions, are rows of their own.
# One spatial dim is seen as two, the first of size one.


def _conv_setup(w, tensors, stride, padding, dilation):
    spatial = len(tensors[0].shape) - 2
    stride, padding, dilation = (_each(v, spatial) for v in (stride, padding, dilation))
    if spatial == 1:
        tensors = [w.unsqueeze(t, 2) for t in tensors]
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    return tensors, [stride, padding, dilation]


def _planar_shape(shape):
    shape = tuple(shape)
    return (*shape[:2], 1, shape[2]) if len(shape) == 3 else shape


@lower("convolution")
def _(w, n, x, weight, bias, stride, padding, dilation, transposed, _output_padding, groups):
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
def _(w, n, grad, x, weight, _bias, stride, padding, dilation, transposed, _op, groups, mask):
    x_shape, w_shape = x.shape, weight.shape
    tensors, window = _conv_setup(w, [grad, x, weight], stride, padding, dilation)
    grad, x, weight = tensors
    results = [None, None, None]
    if mask[0]:
        if transposed:
            args = [grad, weight, None, *window, False, [0] * len(window[0]), groups]
            results[0] = w.op("convolution", args, x.dtype, x.shape)
        else:
            args = [grad, weight, list(x.shape), *window, groups]
            results[0] = w.op("conv_input_grad", args, x.dtype, x.shape)
        results[0] = w.view(results[0], x_shape)
    if mask[1]:
        out, inp = (x, grad) if transposed else (grad, x)
        args = [out, inp, list(weight.shape), *window, groups]
        results[1] = w.view(w.op("conv_weight_grad", args, x.dtype, weight.shape), w_shape)
    if mask[2]:
        results[2] = w.sum(grad, [0, *range(2, len(grad.shape))])
    return results


# Resampling and index padding: one row, whose gradient is the transposed map.


def _resample(w, x, mode, size, align_corners, numbers, back=False):
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    moves = mode in ("nearest", "nearest-exact", "reflect", "replicate", "circular") and not back
    if not moves and x.dtype not in dtypes:
        raise MissingRow("resample of integers")
    shape = (*x.shape[: -len(size)], *size)
    args = [x, mode, list(size), bool(align_corners), [float(v) for v in numbers]]
    return w.op("resample_backward" if back else "resample", args, x.dtype, shape)


def _register_upsample(name, spatial, mode, corners=True):
    def numbers(scales):
        return [s or 0.0 for s in scales] or [0.0] * spatial

    @lower(name)
    def _(w, n, x, size, *rest):
        align = rest[0] if corners else False
        scales = numbers(rest[1:] if corners else rest)
        return _resample(w, x, mode, size, align, scales)

    @lower(name + "_backward")
    def _(w, n, grad, _size, shape, *rest):
        align = rest[0] if corners else False
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


def _register_pad(name, mode):
    @lower(name)
    def _(w, n, x, pad):
        return _resample(w, x, mode, n.shape[-(len(pad) // 2) :], False, pad[-2::-2])

    @lower(name + "_backward")
    def _(w, n, grad, x, pad):
        size = x.shape[-(len(pad) // 2) :]
        return _resample(w, grad, mode, size, False, pad[-2::-2], back=True)


for _d in (1, 2, 3):
    _register_pad(f"reflection_pad{_d}d", "reflect")
    _register_pad(f"replication_pad{_d}d", "replicate")

# Pooling


def _pool_setup(w, x, kernel, stride):
    if not x.dtype.is_floating_point:
        raise MissingRow("pool of integers")
    kernel = _each(kernel, 2)
    return _batched(w, x), kernel, _each(stride, 2) if stride else kernel


def _batched(w, x):
    return x if len(x.shape) == 4 else w.unsqueeze(x, 0)


def _batched_shape(shape):
    return tuple(shape) if len(shape) == 4 else (1, *shape)


@lower("max_pool2d_with_indices")
def _(w, n, x, kernel, stride, padding, dilation, ceil_mode):
    x, kernel, stride = _pool_setup(w, x, kernel, stride)
    args = [x, kernel, stride, _each(padding, 2), _each(dilation, 2), ceil_mode]
    shape = _batched_shape(n.shape)
    types = [(x.dtype, shape), (torch.int64, shape)]
    y, index = w.ops("max_pool2d_with_indices", args, types)
    return [w.view(y, n.shape), w.view(index, n.shape)]


@lower("max_pool2d_with_indices_backward")
def _(w, n, grad, x, kernel, stride, padding, dilation, ceil_mode, index):
    x, kernel, stride = _pool_setup(w, x, kernel, stride)
    args = [_batched(w, grad), x, kernel, stride, _each(padding, 2), _each(dilation, 2), ceil_mode]
    args.append(_batched(w, index))
    y = w.op("max_pool2d_with_indices_backward", args, x.dtype, x.shape)
    return w.view(y, n.shape)


@lower("avg_pool2d")
def _(w, n, x, kernel, stride, padding, *rest):
    x, kernel, stride = _pool_setup(w, x, kernel, stride)
    args = [x, kernel, stride, _each(padding, 2), *rest]
    return w.view(w.op("avg_pool2d", args, x.dtype, _batched_shape(n.shape)), n.shape)


@lower("avg_pool2d_backward")
def _(w, n, grad, x, kernel, stride, padding, *rest):
    x, kernel, stride = _pool_setup(w, x, kernel, stride)
    args = [_batched(w, grad), x, kernel, stride, _each(padding, 2), *rest]
    return w.view(w.op("avg_pool2d_backward", args, x.dtype, x.shape), n.shape)


@lower("_adaptive_avg_pool2d")
def _(w, n, x, size):
    y = w.op("_adaptive_avg_pool2d", [_batched(w, x), list(size)], x.dtype, _batched_shape(n.shape))
    return w.view(y, n.shape)


@lower("_adaptive_avg_pool2d_backward")
def _(w, n, grad, x):
    args = [_batched(w, grad), _batched(w, x)]
    y = w.op("_adaptive_avg_pool2d_backward", args, x.dtype, _batched_shape(x.shape))
    return w.view(y, n.shape)


# Rearrangements between channels and space


@lower("pixel_shuffle")
def _(w, n, x, r):
    *lead, c, height, width = x.shape
    k = len(lead)
    x = w.view(x, (*lead, c // (r * r), r, r, height, width))
    x = w.permute(x, [*range(k), k, k + 3, k + 1, k + 4, k + 2])
    return w.view(x, n.shape)


@lower("pixel_unshuffle")
def _(w, n, x, r):
    *lead, c, height, width = x.shape
    k = len(lead)
    x = w.view(x, (*lead, c, height // r, r, width // r, r))
    x = w.permute(x, [*range(k), k, k + 2, k + 4, k + 1, k + 3])
    return w.view(x, n.shape)
