# SPDX-License-Identifier: Apache-2.0
"""``ai.onnx``: Resize and Upsample.

Each axis is resized by itself: the weights of its inputs for each output are computed here, once,
and become a gather (nearest) or a product with a constant matrix.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from poptorch.capture.custom.named.table import Call, Named

_COORDINATES = (
    "half_pixel",
    "asymmetric",
    "align_corners",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass
class _Rule:
    """How coordinates of the result are found in the input."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    exclude_outside: bool
    extrapolation: float
    antialias: bool


@dataclass
class _Axis:
    """One axis: its sizes, the scale between them and the region of the input."""

    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def _coordinate(rule: _Rule, axis: _Axis, i: int) -> float:
    kind, size, scale = rule.coordinates, axis.size, axis.scale
    out = scale * size  # not rounded, as ONNX computes it
    if kind == "asymmetric":
        return i / scale
    if kind == "align_corners":
        return i * (size - 1) / (out - 1) if out > 1 else 0.0
    if kind == "pytorch_half_pixel" and axis.out == 1:
        return -0.5
    if kind == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if kind == "half_pixel_symmetric":
        adjusted = axis.out / out
        return size / 2 * (1 - adjusted) + (i + 0.5) / scale - 0.5
    if kind == "tf_crop_and_resize":
        first = axis.start * (size - 1)
        if out > 1:
            return first + i * (axis.end - axis.start) * (size - 1) / (out - 1)
        return 0.5 * (axis.start + axis.end) * (size - 1)
    return (i + 0.5) / scale - 0.5


def _nearest(rule: _Rule, at: float) -> int:
    if rule.nearest == "floor":
        return math.floor(at)
    if rule.nearest == "ceil":
        return math.ceil(at)
    if rule.nearest == "round_prefer_ceil":
        return math.floor(at + 0.5)
    return math.ceil(at - 0.5)


def _kernel(rule: _Rule, distance: float) -> float:
    d = abs(distance)
    if rule.mode == "linear":
        return max(0.0, 1 - d)
    a = rule.cubic
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return (((d - 5) * d + 8) * d - 4) * a if d < 2 else 0.0


def _weights(rule: _Rule, axis: _Axis, at: float) -> list[float]:
    """The weight of each input of an axis in the output at a place."""
    stretch = min(axis.scale, 1.0) if rule.antialias else 1.0
    reach = (1 if rule.mode == "linear" else 2) / stretch
    found = [0.0] * axis.size
    total = 0.0
    for place in range(math.floor(at - reach) + 1, math.ceil(at + reach)):
        weight = _kernel(rule, (place - at) * stretch)
        outside = not 0 <= place < axis.size
        if outside and rule.exclude_outside:
            continue
        found[min(max(place, 0), axis.size - 1)] += weight
        total += weight
    return [w / total for w in found]


def _resize_axis(rule: _Rule, x: Tensor, dim: int, axis: _Axis) -> Tensor:
    places = [_coordinate(rule, axis, i) for i in range(axis.out)]
    if rule.mode == "nearest":
        index = [min(max(_nearest(rule, at), 0), axis.size - 1) for at in places]
        out = x.index_select(dim, torch.tensor(index, dtype=torch.int64))
    else:
        matrix = torch.tensor([_weights(rule, axis, at) for at in places], dtype=x.dtype)
        out = (x.movedim(dim, -1) @ matrix.t()).movedim(-1, dim)
    if rule.coordinates != "tf_crop_and_resize":
        return out
    inside = torch.tensor([0 <= at <= axis.size - 1 for at in places])
    shape = [axis.out if d == dim else 1 for d in range(x.dim())]
    return torch.where(inside.reshape(shape), out, rule.extrapolation)


def _apply(rule: _Rule, x: Tensor, axes: dict[int, _Axis]) -> Tensor:
    for dim, axis in axes.items():
        same = axis.size == axis.out and axis.scale == 1
        if not same or rule.coordinates == "tf_crop_and_resize":
            x = _resize_axis(rule, x, dim, axis)
    return x


def _scaled(size: int, scale: float) -> int:
    return math.floor(size * scale + 1e-6)  # scales are float32: 2/3 of 3 are 2


def _mode(call: Call) -> str:
    mode = call.choice("mode", "nearest", ("nearest", "linear", "bilinear", "cubic"))
    return "linear" if mode == "bilinear" else mode


def _upsample(call: Call) -> Tensor:
    """Upsample, and Resize of version 10."""
    x = call.x()
    if call.version < 9 and call.op.endswith("Upsample"):
        scales = call.floats("scales")
    else:
        scales = call.numbers(1, "scales")
    if scales is None or len(scales) != x.dim():
        call.fail(f"scales must have {x.dim()} values, not {scales}.")
    rule = _Rule(_mode(call), "asymmetric", "floor", -0.75, False, 0.0, False)
    sizes = enumerate(zip(x.shape, scales, strict=True))
    axes = {d: _Axis(n, _scaled(n, s), s) for d, (n, s) in sizes}
    return _apply(rule, x, axes)


def _resize(call: Call) -> Tensor:
    x = call.x()
    if call.version < 11:
        return _upsample(call)
    rule = _Rule(
        _mode(call),
        call.choice("coordinate_transformation_mode", "half_pixel", _COORDINATES),
        call.choice("nearest_mode", "round_prefer_floor", _NEAREST),
        call.float_("cubic_coeff_a", -0.75),
        call.flag("exclude_outside"),
        call.float_("extrapolation_value", 0.0),
        call.flag("antialias"),
    )
    chosen = call.ints("axes") if call.version >= 18 else None
    dims = range(x.dim()) if chosen is None else [call.axis(a, x.dim()) for a in chosen]
    roi, scales = call.numbers_or_none(1, "roi"), call.numbers_or_none(2, "scales")
    sizes = call.numbers_or_none(3, "sizes")
    policy = call.choice(
        "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller")
    )
    given = scales if sizes is None else sizes
    if given is None or len(given) != len(dims):
        call.fail(f"scales or sizes must have {len(dims)} values, not {given}.")
    if any(x.shape[d] == 0 for d in dims):
        call.fail(f"a tensor without elements, {list(x.shape)}, can not be resized.")
    if sizes is not None:
        scales = [n / x.shape[d] for d, n in zip(dims, sizes, strict=True)]
        if policy != "stretch":
            one = (min if policy == "not_larger" else max)(scales)
            scales = [one] * len(dims)
            sizes = [math.floor(one * x.shape[d] + 0.5) for d in dims]
    assert scales is not None
    axes = {}
    for i, dim in enumerate(dims):
        size = x.shape[dim]
        out = _scaled(size, scales[i]) if sizes is None else int(sizes[i])
        axes[dim] = _Axis(size, out, scales[i])
        if roi is not None and rule.coordinates == "tf_crop_and_resize":
            axes[dim].start, axes[dim].end = roi[i], roi[i + len(dims)]
    return _apply(rule, x, axes)


ROWS: dict[str, Named] = {
    "Resize": Named(_resize, 10),
    "Upsample": Named(_upsample),
}
