# SPDX-License-Identifier: Apache-2.0
"""``ai.graphcore``: slices at places that the data give, gathers and scatters."""

import torch
from torch import Tensor

from poptorch.capture.custom.named.onnx_shape import sliced
from poptorch.capture.custom.named.table import Call, Named

_REDUCTIONS = {"sum": "sum", "max": "amax", "min": "amin", "mul": "prod", "none": ""}


def _places(call: Call, index: Tensor) -> tuple[list[int], list[Tensor]]:
    """The axes of a dynamic slice and the places along each; past the end they wrap around."""
    x, axes, sizes = call.x(), call.ints("axes"), call.ints("sizes")
    call.known("noOverlap")
    if axes is None or sizes is None or len(axes) != len(sizes):
        call.fail("attributes axes and sizes must be given, one size for each axis.")
    dims = [call.axis(a, x.dim()) for a in axes]
    starts = index.reshape(-1).long()
    if starts.numel() != len(dims):
        call.fail(f"the index must have {len(dims)} values, not {starts.numel()}.")
    for dim, size in zip(dims, sizes, strict=True):
        if not 0 < size <= x.shape[dim]:
            call.fail(f"size {size} does not fit dimension {dim} of {list(x.shape)}.")
    each = [
        (starts[i] + torch.arange(size)) % x.shape[dim]
        for i, (dim, size) in enumerate(zip(dims, sizes, strict=True))
    ]
    return dims, each


def _dynamic_slice(call: Call) -> Tensor:
    x = call.x()
    for dim, places in zip(*_places(call, call.x(1, "index")), strict=True):
        x = x.index_select(dim, places)
    return x


def _written(call: Call, index: Tensor, values: Tensor, add: bool = False) -> Tensor:
    x = call.x()
    dims, places = _places(call, index)
    shape = list(x.shape)
    for dim, each in zip(dims, places, strict=True):
        shape[dim] = each.numel()
    values = values.expand(shape)
    if len(dims) == 1:
        write = torch.index_add if add else torch.index_copy
        return write(x, dims[0], places[0], values)
    found = dict(zip(dims, places, strict=True))
    whole = [
        found.get(d, torch.arange(n)).reshape(-1, *[1] * (x.dim() - 1 - d))
        for d, n in enumerate(x.shape)
    ]
    return x.index_put(tuple(whole), values, accumulate=add)


def _dynamic_update(call: Call) -> Tensor:
    return _written(call, call.x(1, "index"), call.x(2, "slice"))


def _dynamic_add(call: Call) -> Tensor:
    return _written(call, call.x(1, "index"), call.x(2, "slice"), add=True)


def _dynamic_zero(call: Call) -> Tensor:
    return _written(call, call.x(1, "index"), torch.zeros((), dtype=call.x().dtype))


def _sequence_slice(call: Call) -> Tensor:
    """Rows of the source into rows of the destination, several runs of them."""
    source, out, counts, froms, tos = (call.x(i) for i in range(5))
    if call.flag("zeroUnused"):
        out = torch.zeros_like(out)
    rows = torch.arange(out.shape[0])
    for i in range(counts.numel()):
        count, start, place = (t.reshape(-1)[i].long() for t in (counts, froms, tos))
        behind = rows - place
        inside = (behind >= 0) & (behind < count)
        found = source.index_select(0, (start + behind).clamp(0, source.shape[0] - 1))
        out = torch.where(inside.reshape(-1, *[1] * (out.dim() - 1)), found, out)
    return out


def _reverse(call: Call) -> Tensor:
    x = call.x()
    dims = call.ints("dimensions")
    if dims is None:
        call.fail("attribute dimensions must be given.")
    return x.flip([call.axis(d, x.dim()) for d in dims])


def _slice(call: Call) -> Tensor:
    starts, ends = call.ints("starts"), call.ints("ends")
    if starts is None or ends is None:
        call.fail("attributes starts and ends must be given.")
    return sliced(call, call.x(), starts, ends, call.ints("axes"), None)


def _subsample(call: Call) -> Tensor:
    x, steps = call.x(), call.ints("strides")
    if steps is None or len(steps) != x.dim() or min(steps) < 1:
        call.fail(f"attribute strides must have {x.dim()} values of at least 1, not {steps}.")
    for dim, step in enumerate(steps):
        x = torch.ops.aten.slice(x, dim, 0, x.shape[dim], step)
    return x.clone()


def _bucketize(call: Call) -> Tensor:
    return torch.bucketize(call.x(0), call.x(1, "boundaries"), right=call.flag("right"))


def _scatter_reduce(call: Call) -> Tensor:
    source, index = call.x(0, "source"), call.x(1, "indices").long()
    axis = call.axis(call.int_("axis", -1), source.dim())
    how = _REDUCTIONS[call.choice("reduction", "sum", tuple(_REDUCTIONS))]
    call.known("enable_index_broadcast", "group_size")
    shape = [call.int_("axis_size") if d == axis else n for d, n in enumerate(source.shape)]
    first = call.maybe(2)
    base = torch.zeros(shape, dtype=source.dtype) if first is None else first
    if index.dim() == 1 and source.dim() > 1:
        index = index.reshape(-1, *[1] * (source.dim() - 1 - axis))
    index = index.expand(source.shape)
    if not how:
        return base.scatter(axis, index, source)
    return base.scatter_reduce(axis, index, source, how, include_self=first is not None)


def _grouped_gather(call: Call) -> Tensor:
    """A gather in each group; the axis is counted with the dimension of groups."""
    x, index = call.x(0, "data"), call.x(1, "indices").long()
    axis, groups = call.axis(call.int_("axis", 1), x.dim()), call.int_("group_size", x.shape[0])
    if axis == 0 or x.shape[0] != groups or index.shape[0] != groups:
        call.fail("the first dimension of data and indices is that of groups, and not the axis.")
    rows = x.movedim(axis, 1)
    flat = rows.reshape(groups, rows.shape[1], -1)
    places = index.reshape(groups, -1)
    found = flat.gather(1, places.unsqueeze(-1).expand(-1, -1, flat.shape[-1]))
    found = found.reshape(groups, places.shape[1], *rows.shape[2:]).movedim(1, axis)
    return found.reshape(*x.shape[:axis], *index.shape[1:], *x.shape[axis + 1 :])


def _spline_weighting(call: Call) -> Tensor:
    """The input times those of the weights that the index picks, weighted by the basis."""
    x, weights, basis, index = (call.x(i) for i in range(4))
    products = torch.einsum("ei,kio->eko", x, weights)
    places = index.long().unsqueeze(-1).expand(-1, -1, weights.shape[-1])
    return (products.gather(1, places) * basis.unsqueeze(-1)).sum(1)


ROWS: dict[str, Named] = {
    "Bucketize": Named(_bucketize, form="x, boundaries; `right`"),
    "DynamicAdd": Named(_dynamic_add, form="x, index, slice; `axes`, `sizes`"),
    "DynamicSlice": Named(_dynamic_slice, form="x, index; `axes`, `sizes`"),
    "DynamicUpdate": Named(_dynamic_update, form="x, index, slice; `axes`, `sizes`"),
    "DynamicZero": Named(_dynamic_zero, form="x, index; `axes`, `sizes`"),
    "GroupedGather": Named(
        _grouped_gather,
        form="data, indices, both with the groups first; `axis`, `group_size`",
    ),
    "Reverse": Named(_reverse, form="x; `dimensions`"),
    "ScatterReduce": Named(
        _scatter_reduce,
        form="source, indices, first values if any; `axis`, `axis_size`, `reduction` "
        "(`sum`, `max`, `min`, `mul`, `none`)",
    ),
    "SequenceSlice": Named(
        _sequence_slice,
        form="source, destination, counts, places in both; `zeroUnused`",
    ),
    "Slice": Named(_slice, form="x; `starts`, `ends`, `axes`"),
    "SplineWeighting": Named(_spline_weighting, form="x, weights, basis, index of the weights"),
    "Subsample": Named(_subsample, form="x; `strides`"),
}
