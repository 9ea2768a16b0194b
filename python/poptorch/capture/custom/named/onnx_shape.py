# SPDX-License-Identifier: Apache-2.0
"""``ai.onnx``: ops on shapes, and tensors made of numbers."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from poptorch.capture.custom.named.onnx_layers import flat_pads
from poptorch.capture.custom.named.table import Call, Named, Result, product

_PADS = ("constant", "reflect", "edge", "wrap")


def _ints(call: Call, name: str, index: int, since: int) -> list[int] | None:
    """Numbers that are an attribute, and an input from a version on; None if left out."""
    if call.version < since:
        return call.ints(name)
    found = call.numbers_or_none(index, name)
    return None if found is None else [int(v) for v in found]


def _needed(call: Call, name: str, found: list[int] | None) -> list[int]:
    return call.fail(f"{name} must be given.") if found is None else found


def _reshape(call: Call) -> Tensor:
    x = call.x()
    if call.version < 5:
        shape = list(call.ints("shape") or [])
    else:
        shape = [int(v) for v in call.numbers(1, "shape")]
    return reshaped(call, x, shape, call.version >= 14 and call.flag("allowzero"))


def reshaped(call: Call, x: Tensor, shape: list[int], zeros: bool = False) -> Tensor:
    """x in a shape where 0 stands for the size it has and -1 for the rest."""
    if not zeros:
        if any(n == 0 and i >= x.dim() for i, n in enumerate(shape)):
            call.fail(f"shape {shape} has a 0 where the input {list(x.shape)} has no dimension.")
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    known = product([n for n in shape if n != -1])
    whole = x.numel() == known if -1 not in shape else known and x.numel() % known == 0
    if not whole or shape.count(-1) > 1:
        call.fail(f"{list(x.shape)} can not be given the shape {shape}.")
    return x.reshape(shape)


def _flatten(call: Call) -> Tensor:
    x, axis = call.x(), call.int_("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    if not 0 <= axis <= x.dim():
        call.fail(f"axis {axis} is out of range for a tensor of {x.dim()} dimensions.")
    return x.reshape(product(x.shape[:axis]), product(x.shape[axis:]))


def _transpose(call: Call) -> Tensor:
    x = call.x()
    order = call.ints("perm") or list(reversed(range(x.dim())))
    if sorted(order) != list(range(x.dim())):
        call.fail(f"attribute perm is {order}, which is no order of {x.dim()} dimensions.")
    return x.permute(order)


def _squeeze(call: Call) -> Tensor:
    x, axes = call.x(), _ints(call, "axes", 1, 13)
    if axes is None:
        return x.squeeze()
    dims = {call.axis(a, x.dim()) for a in axes}
    for dim in dims:
        if x.shape[dim] != 1:
            call.fail(f"dimension {dim} of {list(x.shape)} is not 1.")
    return x.reshape([n for i, n in enumerate(x.shape) if i not in dims])


def _unsqueeze(call: Call) -> Tensor:
    x, axes = call.x(), _needed(call, "axes", _ints(call, "axes", 1, 13))
    for axis in sorted(call.axis(a, x.dim() + len(axes)) for a in axes):
        x = x.unsqueeze(axis)
    return x


def _expand(call: Call) -> Tensor:
    x, shape = call.x(), [int(v) for v in call.numbers(1, "shape")]
    return x.expand(torch.broadcast_shapes(x.shape, shape)).clone()


def _tile(call: Call) -> Tensor:
    x, counts = call.x(), [int(v) for v in call.numbers(1, "repeats")]
    if call.version < 6:  # so many of one axis
        axis = int(call.numbers(2, "axis")[0])
        counts = [counts[0] if i == axis else 1 for i in range(x.dim())]
    if len(counts) != x.dim():
        call.fail(f"repeats must have {x.dim()} values, not {counts}.")
    return x.repeat(counts)


def _concat(call: Call) -> Tensor:
    axis = call.int_("axis", 1 if call.version < 4 else None)
    return torch.cat(list(call.inputs), call.axis(axis, call.x().dim()))


def _split(call: Call) -> Result:
    x = call.x()
    axis = call.axis(call.int_("axis", 0), x.dim())
    sizes = _ints(call, "split", 1, 13)
    if sizes is None:
        count = call.int_("num_outputs", call.results) if call.version >= 18 else call.results
        each = -(-x.shape[axis] // max(count, 1))
        sizes = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
        if call.version < 18 and len(set(sizes)) > 1:
            call.fail(f"{x.shape[axis]} elements can not be split into {count} equal parts.")
    if sum(sizes) != x.shape[axis]:
        call.fail(f"split is {sizes}, but dimension {axis} has {x.shape[axis]} elements.")
    return [part.clone() for part in x.split(sizes, axis)]


def _slice(call: Call) -> Tensor:
    starts = _needed(call, "starts", _ints(call, "starts", 1, 10))
    ends = _needed(call, "ends", _ints(call, "ends", 2, 10))
    axes = _ints(call, "axes", 3, 10)
    steps = _ints(call, "steps", 4, 10) if call.version >= 10 else None
    return sliced(call, call.x(), starts, ends, axes, steps)


def sliced(
    call: Call,
    x: Tensor,
    starts: list[int],
    ends: list[int],
    axes: list[int] | None,
    steps: list[int] | None,
) -> Tensor:
    """Slices as Python has them, backwards too."""
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        call.fail("starts, ends, axes and steps must have one length.")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        dim = call.axis(axis, x.dim())
        if step == 0:
            call.fail("a step must not be 0.")
        picked = range(x.shape[dim])[slice(start, end, step)]
        if step < 0:
            index = torch.tensor(list(picked), dtype=torch.int64)
            x = x.index_select(dim, index)
        else:
            x = torch.ops.aten.slice(x, dim, picked.start, max(picked.stop, picked.start), step)
    return x.clone()


def _pad(call: Call) -> Tensor:
    x, mode = call.x(), call.choice("mode", "constant", _PADS)
    name = "paddings" if call.version < 2 else "pads"
    pads = _needed(call, name, _ints(call, name, 1, 11))
    if call.version < 11:
        value: float | Tensor = call.float_("value", 0.0)
    else:
        given = call.maybe(2)
        value = 0.0 if given is None else given
    axes = _ints(call, "axes", 3, 18) if call.version >= 18 else None
    dims = range(x.dim()) if axes is None else [call.axis(a, x.dim()) for a in axes]
    if len(pads) != 2 * len(dims):
        call.fail(f"{name} must have {2 * len(dims)} values, not {pads}.")
    begin, end = [0] * x.dim(), [0] * x.dim()
    for i, dim in enumerate(dims):
        begin[dim], end[dim] = pads[i], pads[i + len(dims)]
    if mode == "constant":
        return padded(x, begin, end, value)
    for dim in dims:
        if begin[dim] or end[dim]:
            places = _pad_places(call, x.shape[dim], begin[dim], end[dim], mode)
            x = x.index_select(dim, torch.tensor(places, dtype=torch.int64))
    return x


def padded(x: Tensor, begin: Sequence[int], end: Sequence[int], value: float | Tensor) -> Tensor:
    """x with a frame of one value, which may be known only when the program runs."""
    sizes = flat_pads(begin, end)
    if not isinstance(value, Tensor):
        return F.pad(x, sizes, value=value)
    inside = F.pad(torch.ones(x.shape, dtype=torch.bool), sizes, value=False)
    return torch.where(inside, F.pad(x, sizes), value.reshape(()))


def _pad_places(call: Call, size: int, begin: int, end: int, mode: str) -> list[int]:
    places = range(-begin, size + end)
    if mode == "edge":
        return [min(max(p, 0), size - 1) for p in places]
    if mode == "wrap":
        return [p % size for p in places]
    if max(begin, end) >= size:
        call.fail(f"{max(begin, end)} elements can not be reflected by a dimension of {size}.")
    return [abs(p) if p < size else 2 * (size - 1) - p for p in places]


def _check_blocks(call: Call, x: Tensor, size: int) -> None:
    if x.dim() != 4 or size < 1 or x.shape[2] % size or x.shape[3] % size:
        call.fail(f"blocks of {size} do not fill the planes of {list(x.shape)}.")


def _space_to_depth(call: Call) -> Tensor:
    x, size = call.x(), call.int_("blocksize")
    _check_blocks(call, x, size)
    if call.version >= 28 and call.choice("mode", "DCR", ("DCR", "CRD")) == "CRD":
        return F.pixel_unshuffle(x, size)
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // size, size, w // size, size).permute(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * size * size, h // size, w // size)


def depth_to_space(call: Call) -> Tensor:
    """Channels into blocks of pixels, by either order of the channels."""
    x, size = call.x(), call.int_("blocksize")
    mode = call.choice("mode", "DCR", ("DCR", "CRD")) if call.version >= 11 else "DCR"
    if x.dim() != 4 or size < 1 or x.shape[1] % size**2:
        call.fail(f"the channels of {list(x.shape)} do not make blocks of {size}.")
    n, c, h, w = x.shape
    if mode == "CRD":
        return F.pixel_shuffle(x, size)
    blocks = x.reshape(n, size, size, c // size**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, c // size**2, h * size, w * size)


def _shape(call: Call) -> Tensor:
    sizes = list(call.x().shape)
    if call.version >= 15:
        sizes = sizes[call.int_("start", 0) : call.int_("end", len(sizes))]
    return torch.tensor(sizes, dtype=torch.int64)


# tensors made of numbers


def _constant(call: Call) -> Tensor:
    for name, dtype in (("value_float", torch.float32), ("value_int", torch.int64)):
        many = call.floats(f"{name}s") if name == "value_float" else call.ints(f"{name}s")
        if many is not None:
            return torch.tensor(many, dtype=dtype)
        call.known(name)
        if name in call.attributes:
            one = call.float_(name) if name == "value_float" else call.int_(name)
            return torch.tensor(one, dtype=dtype)
    call.fail("one of value_float, value_floats, value_int and value_ints must be given.")


def _constant_of_shape(call: Call) -> Tensor:
    shape = [int(v) for v in call.numbers(0, "shape")]
    call.seen.add("value")  # a tensor in ONNX, here the number itself
    value = call.attributes.get("value", 0.0)
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if not isinstance(value, (int, float)):
        call.fail(f"attribute value must be a number, not {value!r}.")
    whole = isinstance(value, int)
    return torch.full(shape, value, dtype=torch.int64 if whole else torch.float32)


def _eye_like(call: Call) -> Tensor:
    x, k = call.x(), call.int_("k", 0)
    rows, columns = x.shape
    diagonal = torch.arange(columns).unsqueeze(0) - torch.arange(rows).unsqueeze(1) == k
    return diagonal.to(call.dtype("dtype", x.dtype))


def _range(call: Call) -> Tensor:
    start, limit, delta = (call.numbers(i, n)[0] for i, n in enumerate(("start", "limit", "delta")))
    if delta == 0:
        call.fail("delta must not be 0.")
    count = max(math.ceil((limit - start) / delta), 0)
    dtype = call.x().dtype
    return torch.tensor([start + i * delta for i in range(count)], dtype=dtype)


def _trilu(call: Call) -> Tensor:
    k = call.numbers_or_none(1, "k")
    keep = torch.triu if call.flag("upper", True) else torch.tril
    return keep(call.x(), 0 if k is None else int(k[0]))


def _nonzero(call: Call) -> Tensor:
    """Only of a tensor whose value is known: the shape depends on it."""
    return torch.tensor(call.constant(0, "X").nonzero().t().tolist(), dtype=torch.int64)


ROWS: dict[str, Named] = {
    "Concat": Named(_concat),
    "Constant": Named(_constant),
    "ConstantOfShape": Named(_constant_of_shape, 9),
    "DepthToSpace": Named(depth_to_space),
    "Expand": Named(_expand, 8),
    "EyeLike": Named(_eye_like, 9),
    "Flatten": Named(_flatten),
    "NonZero": Named(_nonzero, 9),
    "Pad": Named(_pad),
    "Range": Named(_range, 11),
    "Reshape": Named(_reshape),
    "Shape": Named(_shape),
    "Size": Named(lambda call: torch.tensor(call.x().numel(), dtype=torch.int64)),
    "Slice": Named(_slice),
    "SpaceToDepth": Named(_space_to_depth),
    "Split": Named(_split),
    "Squeeze": Named(_squeeze),
    "Tile": Named(_tile),
    "Transpose": Named(_transpose),
    "Trilu": Named(_trilu, 14),
    "Unsqueeze": Named(_unsqueeze),
}
