# SPDX-License-Identifier: Apache-2.0
"""Lowerings of convolutions, poolings, resampling and padding: ops on images of one to three
dims."""

import torch

from ._torch_private import without_modes
from .lowering import lower
from .writer import MissingRow


def _each(values, count_):
    return list(values) * count_ if len(values) == 1 else list(values)


def _batched(w, x, spatial):
    return x if len(x.shape) == spatial + 2 else w.unsqueeze(x, 0)


def _batched_shape(shape, spatial):
    return tuple(shape) if len(shape) == spatial + 2 else (1, *shape)


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
        spatial = len(pad) // 2
        y = _resample(w, _batched(w, x, spatial), mode, n.shape[-spatial:], False, pad[-2::-2])
        return w.view(y, n.shape)

    @lower(name + "_backward")
    def _(w, n, grad, x, pad):
        spatial = len(pad) // 2
        grad = _batched(w, grad, spatial)
        size = x.shape[-spatial:]
        return w.view(_resample(w, grad, mode, size, False, pad[-2::-2], back=True), n.shape)


for _d in (1, 2, 3):
    _register_pad(f"reflection_pad{_d}d", "reflect")
    _register_pad(f"replication_pad{_d}d", "replicate")


@lower("tessera::circular_pad")
def _(w, n, x, pad):
    return _resample(w, x, "circular", n.shape[-(len(pad) // 2) :], False, pad[-2::-2])


@lower("tessera::circular_pad_backward")
def _(w, n, grad, shape, pad):
    size = shape[-(len(pad) // 2) :]
    return _resample(w, grad, "circular", size, False, pad[-2::-2], back=True)


# Pooling. Rows have a batch dim always, and take the number of spatial dims from their arguments.


def _window(spatial, kernel, stride, *rest):
    kernel = _each(kernel, spatial)
    stride = _each(stride, spatial) if stride else kernel
    return [kernel, stride, *[_each(r, spatial) for r in rest]]


def _pool(w, n, name, x, spatial, args, index=False):
    x = _batched(w, x, spatial)
    types = [(x.dtype, _batched_shape(n.shape, spatial))]
    if index:
        types.append((torch.int64, types[0][1]))
    results = w.ops(name, [x, *args], types)
    return [w.view(r, n.shape) for r in results]


def _pool_grad(w, n, name, grad, x, spatial, args, index=None):
    grad, x = _batched(w, grad, spatial), _batched(w, x, spatial)
    args = [grad, x, *args, *([] if index is None else [_batched(w, index, spatial)])]
    return w.view(w.op(name, args, x.dtype, x.shape), n.shape)


def _register_pools(d):
    @lower(f"max_pool{d}d_with_indices")
    def _(w, n, x, kernel, stride, padding, dilation, ceil_mode):
        args = [*_window(d, kernel, stride, padding, dilation), ceil_mode]
        return _pool(w, n, "max_pool", x, d, args, index=True)

    @lower(f"max_pool{d}d_with_indices_backward")
    def _(w, n, grad, x, kernel, stride, padding, dilation, ceil_mode, index):
        args = [*_window(d, kernel, stride, padding, dilation), ceil_mode]
        return _pool_grad(w, n, "max_pool_backward", grad, x, d, args, index)

    @lower(f"avg_pool{d}d")
    def _(w, n, x, kernel, stride, padding, *rest):
        args = [*_window(d, kernel, stride, padding), *rest]
        return _pool(w, n, "avg_pool", x, d, args)[0]

    @lower(f"avg_pool{d}d_backward")
    def _(w, n, grad, x, kernel, stride, padding, *rest):
        args = [*_window(d, kernel, stride, padding), *rest]
        return _pool_grad(w, n, "avg_pool_backward", grad, x, d, args)

    @lower(f"_adaptive_avg_pool{d}d")
    def _(w, n, x, size):
        return _pool(w, n, "adaptive_avg_pool", x, d, [list(size)])[0]

    @lower(f"_adaptive_avg_pool{d}d_backward")
    def _(w, n, grad, x):
        return _pool_grad(w, n, "adaptive_avg_pool_backward", grad, x, d, [list(grad.shape[-d:])])

    @lower(f"adaptive_max_pool{d}d")
    def _(w, n, x, size):
        return _pool(w, n, "adaptive_max_pool", x, d, [list(size)], index=True)

    @lower(f"adaptive_max_pool{d}d_backward")
    def _(w, n, grad, x, index):
        size = [list(grad.shape[-d:])]
        return _pool_grad(w, n, "adaptive_max_pool_backward", grad, x, d, size, index)

    @lower(f"fractional_max_pool{d}d")
    def _(w, n, x, kernel, size, samples):
        if x.dtype is not torch.float32:
            raise MissingRow("windows of a half-precision fractional pool")
        args = [x, _each(kernel, d), _each(size, d), samples]
        return list(w.ops("fractional_max_pool", args, n.types()))

    @lower(f"fractional_max_pool{d}d_backward")
    def _(w, n, grad, x, kernel, size, index):
        return w.op("pool_index_add", [grad, index, list(x.shape[-d:])], x.dtype, x.shape)

    @lower(f"max_unpool{d}d")
    def _(w, n, x, index, size, *_window):
        return w.op("max_unpool", [x, index, list(n.shape[-d:])], x.dtype, n.shape)


for _d in (2, 3):
    _register_pools(_d)


# Sampling at positions that are data


@lower("grid_sampler_2d", "grid_sampler_3d")
def _(w, n, x, grid, mode, padding, align_corners):
    return w.op("grid_sampler", [x, grid, mode, padding, align_corners], n.dtype, n.shape)


@lower("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _(w, n, grad, x, grid, mode, padding, align_corners, _mask):
    args = [grad, x, grid, mode, padding, align_corners]
    return list(w.ops("grid_sampler_backward", args, [(t.dtype, t.shape) for t in (x, grid)]))


def _base_grid(w, size, align_corners, dtype):
    """Positions of the pixels of an image from -1 to 1, width first, and a one."""

    def make():
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
def _(w, n, theta, size, align_corners):
    batch, axes, numbers = theta.shape
    base = _base_grid(w, size[2:], align_corners, theta.dtype)
    base = w.expand(w.unsqueeze(base, 0), (batch, *base.shape))
    by_row = w.op("transpose", [theta, 1, 2], theta.dtype, (batch, numbers, axes))
    return w.view(w.op("bmm", [base, by_row], theta.dtype, (batch, base.shape[1], axes)), n.shape)


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


@lower("channel_shuffle", "native_channel_shuffle")
def _(w, n, x, groups):
    batch, channels, *rest = x.shape
    split = w.view(x, (batch, groups, channels // groups, *rest))
    return w.view(w.permute(split, [0, 2, 1, *range(3, len(rest) + 3)]), n.shape)
