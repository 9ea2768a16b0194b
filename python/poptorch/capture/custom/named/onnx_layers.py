# SPDX-License-Identifier: Apache-2.0
"""``ai.onnx``: products, convolutions and pools."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from poptorch.capture.custom.named.table import Call, Named, Result, product

_POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_AUTO = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


class Window(NamedTuple):
    """How a kernel moves over the spatial dims of its input."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]

    @property
    def symmetric(self) -> bool:
        """Whether both sides of each dim are padded alike."""
        return self.begin == self.end

    @property
    def reach(self) -> list[int]:
        """The elements from the first to the last that the kernel sees."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def padded(self, x: Tensor, value: float, extra: Sequence[int] | None = None) -> Tensor:
        """x with its padding, and with `extra` more at the end."""
        ends = [e + m for e, m in zip(self.end, extra or [0] * len(self.end), strict=True)]
        return F.pad(x, flat_pads(self.begin, ends), value=value)


def flat_pads(begin: Sequence[int], end: Sequence[int]) -> list[int]:
    """Padding in torch's order, last dim first."""
    pairs = zip(reversed(begin), reversed(end), strict=True)
    return [size for pair in pairs for size in pair]


def _dims(call: Call, x: Tensor) -> int:
    dims = x.dim() - 2
    if dims not in _POOLS:
        call.fail(f"the input has {dims} spatial dimensions; 1, 2 or 3 are supported.")
    return dims


def _sizes(call: Call, name: str, given: list[int] | None, dims: int) -> list[int]:
    values = [1] * dims if given is None else given
    if len(values) != dims:
        call.fail(f"attribute {name} must have {dims} values, not {values}.")
    return values


def _window(call: Call, x: Tensor, kernel: Sequence[int] | None, dilated: bool = True) -> Window:
    dims = _dims(call, x)
    shape = call.ints("kernel_shape") or kernel
    if shape is None:
        call.fail("attribute kernel_shape must be given.")
    sizes = _sizes(call, "kernel_shape", list(shape), dims)
    if kernel is not None and sizes != list(kernel):
        call.fail(f"attribute kernel_shape is {sizes}, but the weights are for {list(kernel)}.")
    strides = _sizes(call, "strides", call.ints("strides"), dims)
    dilations = _sizes(call, "dilations", call.ints("dilations") if dilated else None, dims)
    pads, auto = call.ints("pads") or [0] * (2 * dims), call.choice("auto_pad", "NOTSET", _AUTO)
    if len(pads) != 2 * dims:
        call.fail(f"attribute pads must have {2 * dims} values, not {pads}.")
    plain = Window(sizes, strides, dilations, pads[:dims], pads[dims:])
    if auto == "NOTSET":
        return plain
    begin, end = [0] * dims, [0] * dims
    for i, (size, reach) in enumerate(zip(x.shape[2:], plain.reach, strict=True)):
        outs = -(-size // strides[i])
        total = max((outs - 1) * strides[i] + reach - size, 0) if auto != "VALID" else 0
        begin[i] = total // 2 if auto == "SAME_UPPER" else total - total // 2
        end[i] = total - begin[i]
    return plain._replace(begin=begin, end=end)


def _conv(call: Call) -> Tensor:
    x, weight, bias = call.x(0), call.x(1, "weights"), call.maybe(2)
    window = _window(call, x, weight.shape[2:])
    groups = call.int_("group", 1)
    if not window.symmetric:
        x, padding = window.padded(x, 0.0), [0] * len(window.kernel)
    else:
        padding = window.begin
    run = _CONVOLUTIONS[len(window.kernel)]
    return run(x, weight, bias, window.strides, padding, window.dilations, groups)


def _conv_transpose(call: Call) -> Tensor:
    x, weight, bias = call.x(0), call.x(1, "weights"), call.maybe(2)
    window = _window(call, x, weight.shape[2:])
    dims, groups = len(window.kernel), call.int_("group", 1)
    more = call.ints("output_padding") or [0] * dims
    auto = call.choice("auto_pad", "NOTSET", _AUTO)
    wanted = call.ints("output_shape")
    if wanted is None and auto.startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], window.strides, strict=True)]
    begin, end = window.begin, window.end
    if wanted is not None:
        whole = zip(x.shape[2:], window.strides, window.reach, more, wanted[-dims:], strict=True)
        totals = [(n - 1) * s + r + m - w for n, s, r, m, w in whole]
        begin = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in totals]
        end = [t - b for t, b in zip(totals, begin, strict=True)]
    run = _TRANSPOSED[dims]
    short = all(
        m < max(s, d) for m, s, d in zip(more, window.strides, window.dilations, strict=True)
    )
    if begin == end and short and min(begin) >= 0:
        return run(x, weight, bias, window.strides, begin, more, groups, window.dilations)
    out = run(x, weight, None, window.strides, [0] * dims, [0] * dims, groups, window.dilations)
    ends = [m - e for m, e in zip(more, end, strict=True)]
    out = F.pad(out, flat_pads([-b for b in begin], ends))
    return out if bias is None else out + bias.reshape(-1, *[1] * dims)


def _gemm(call: Call) -> Tensor:
    a, b, c = call.x(0), call.x(1), call.maybe(2)
    alpha, beta = call.float_("alpha", 1.0), call.float_("beta", 1.0)
    a, b = (t.t() if call.flag(n) else t for t, n in ((a, "transA"), (b, "transB")))
    call.known("broadcast")  # before version 7
    if c is not None and c.is_floating_point():
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    out = torch.mm(a, b)
    out = out if alpha == 1 else (out * alpha).to(out.dtype)
    return out if c is None else out + (c if beta == 1 else (c * beta).to(c.dtype))


# pools


def _extra(x: Tensor, window: Window, ceil: bool) -> list[int]:
    """What is to be padded further so that the last window of a rounded up count fits."""
    extra = []
    for i, (size, reach) in enumerate(zip(x.shape[2:], window.reach, strict=True)):
        whole = size + window.begin[i] + window.end[i]
        steps = (whole - reach) // window.strides[i]
        if ceil and (whole - reach) % window.strides[i]:
            # a window that would begin in the padding at the end is left out
            steps += (steps + 1) * window.strides[i] < size + window.begin[i]
        extra.append(max(steps * window.strides[i] + reach - whole, 0))
    return extra


def _mean(x: Tensor, window: Window) -> Tensor:
    """The mean under each place of a window, x already padded."""
    dims = len(window.kernel)
    if window.dilations == [1] * dims:
        return _POOLS[dims](x, window.kernel, window.strides)
    planes = x.reshape(-1, 1, *x.shape[2:])
    weight = torch.full((1, 1, *window.kernel), 1 / product(window.kernel), dtype=x.dtype)
    out = _CONVOLUTIONS[dims](planes, weight, None, window.strides, 0, window.dilations)
    return out.reshape(*x.shape[:2], *out.shape[2:])


def _native(window: Window) -> bool:
    """Whether torch pads as this window says."""
    small = all(2 * b <= k for b, k in zip(window.begin, window.kernel, strict=True))
    return window.symmetric and small


def _max_pool(call: Call) -> Result:
    x = call.x()
    window = _window(call, x, None)
    ceil, column_major = call.flag("ceil_mode"), call.flag("storage_order")
    dims = len(window.kernel)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
    if call.results < 2:
        if _native(window):
            begin, steps = window.begin, window.strides
            return pool(x, window.kernel, steps, begin, window.dilations, ceil)
        low = float("-inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
        x = window.padded(x, low, _extra(x, window, ceil))
        return pool(x, window.kernel, window.strides, 0, window.dilations)
    if not _native(window):
        call.fail("the indices of a pool need the same padding on both sides.")
    found = pool(
        x, window.kernel, window.strides, window.begin, window.dilations, ceil, return_indices=True
    )
    values, places = found
    plane = product(x.shape[2:])
    if column_major and dims == 2:
        height, width = x.shape[2:]
        places = places % width * height + places // width
    first = torch.arange(x.shape[0] * x.shape[1]) * plane
    return values, places + first.reshape(x.shape[0], x.shape[1], *[1] * dims)


def _average_pool(call: Call) -> Tensor:
    x = call.x()
    window = _window(call, x, None)
    ceil, with_pads = call.flag("ceil_mode"), call.flag("count_include_pad")
    dims = len(window.kernel)
    if window.dilations == [1] * dims and _native(window):
        return _POOLS[dims](x, window.kernel, window.strides, window.begin, ceil, with_pads)
    extra = _extra(x, window, ceil)
    counted = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
    if with_pads:
        counted = F.pad(window.padded(counted, 1.0), flat_pads([0] * dims, extra))
    else:
        counted = window.padded(counted, 0.0, extra)
    return _mean(window.padded(x, 0.0, extra), window) / _mean(counted, window)


def _lp_pool(call: Call) -> Tensor:
    x = call.x()
    window, p, ceil = _window(call, x, None), call.int_("p", 2), call.flag("ceil_mode")
    powers = window.padded(x.abs() ** p, 0.0, _extra(x, window, ceil))
    return (_mean(powers, window) * product(window.kernel)) ** (1 / p)


def _spatial(call: Call) -> tuple[Tensor, list[int]]:
    x = call.x()
    return x, list(range(2, x.dim()))


def _global_average(call: Call) -> Tensor:
    x, dims = _spatial(call)
    return x.mean(dims, keepdim=True)


def _global_max(call: Call) -> Tensor:
    x, dims = _spatial(call)
    return x.amax(dims, keepdim=True)


def _global_lp(call: Call) -> Tensor:
    x, dims = _spatial(call)
    return torch.linalg.vector_norm(x, call.int_("p", 2), dims, keepdim=True)


ROWS: dict[str, Named] = {
    "AveragePool": Named(_average_pool),
    "Conv": Named(_conv),
    "ConvTranspose": Named(_conv_transpose),
    "Gemm": Named(_gemm),
    "GlobalAveragePool": Named(_global_average),
    "GlobalLpPool": Named(_global_lp),
    "GlobalMaxPool": Named(_global_max),
    "LpPool": Named(_lp_pool),
    "MatMul": Named(lambda call: torch.matmul(call.x(0), call.x(1))),
    "MaxPool": Named(_max_pool),
}
