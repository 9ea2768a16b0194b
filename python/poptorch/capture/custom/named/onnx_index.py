# SPDX-License-Identifier: Apache-2.0
"""``ai.onnx``: gathers and scatters."""

import torch
from torch import Tensor

from poptorch.capture.custom.named.table import Call, Named, product
from poptorch.capture.values.constants import value_of

_REDUCTIONS = {"none": "", "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def positive(call: Call, index: Tensor, size: int | Tensor) -> Tensor:
    """Indices as torch has them; from version 11 on they may count from the end."""
    index = index.long()
    known = value_of(index)
    if call.version < 11 or (known is not None and bool((known >= 0).all())):
        return index
    return torch.where(index < 0, index + size, index)


def _gather(call: Call) -> Tensor:
    x, axis = call.x(0), call.axis(call.int_("axis", 0), call.x(0).dim())
    index = positive(call, call.x(1, "indices"), x.shape[axis])
    found = x.index_select(axis, index.reshape(-1))
    return found.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _gather_elements(call: Call) -> Tensor:
    x, axis = call.x(0), call.axis(call.int_("axis", 0), call.x(0).dim())
    return torch.gather(x, axis, positive(call, call.x(1, "indices"), x.shape[axis]))


def _flat_places(call: Call, sizes: list[int], index: Tensor) -> Tensor:
    """Rows of indices as places in the flattened leading dims."""
    strides = [product(sizes[i + 1 :]) for i in range(len(sizes))]
    index = positive(call, index, torch.tensor(sizes))
    return (index * torch.tensor(strides)).sum(-1)


def _gather_nd(call: Call) -> Tensor:
    x, index = call.x(0), call.x(1, "indices")
    batch = call.int_("batch_dims", 0) if call.version >= 12 else 0
    depth = index.shape[-1]
    if batch + depth > x.dim():
        call.fail(f"indices of {depth} numbers are too long for a tensor of {x.dim()} dimensions.")
    sizes, rest = list(x.shape[batch : batch + depth]), list(x.shape[batch + depth :])
    batches, inner = product(x.shape[:batch]), product(sizes)
    places = _flat_places(call, sizes, index).reshape(batches, -1)
    places = places + torch.arange(batches).unsqueeze(1) * inner
    flat = x.reshape(batches * inner, product(rest))
    return flat.index_select(0, places.reshape(-1)).reshape(*index.shape[:-1], *rest)


def _how(call: Call, since: int) -> str:
    if call.version < since:
        return ""
    return _REDUCTIONS[call.choice("reduction", "none", tuple(_REDUCTIONS))]


def _scatter_elements(call: Call) -> Tensor:
    x, axis = call.x(0), call.axis(call.int_("axis", 0), call.x(0).dim())
    index = positive(call, call.x(1, "indices"), x.shape[axis])
    updates, how = call.x(2, "updates"), _how(call, 16)
    if how:
        return x.scatter_reduce(axis, index, updates, how)
    return x.scatter(axis, index, updates)


def _scatter_nd(call: Call) -> Tensor:
    x, index, updates = call.x(0), call.x(1, "indices"), call.x(2, "updates")
    depth, how = index.shape[-1], _how(call, 16)
    sizes, width = list(x.shape[:depth]), product(x.shape[depth:])
    places = _flat_places(call, sizes, index).reshape(-1)
    flat, rows = x.reshape(-1, width), updates.reshape(-1, width)
    if how == "sum":
        return flat.index_add(0, places, rows).reshape(x.shape)
    if not how:
        return flat.index_copy(0, places, rows).reshape(x.shape)
    spread = places.unsqueeze(1).expand(rows.shape)
    return flat.scatter_reduce(0, spread, rows, how).reshape(x.shape)


def _one_hot(call: Call) -> Tensor:
    index, values = call.x(0), call.x(2, "values")
    depth, axis = int(call.numbers(1, "depth")[0]), call.int_("axis", -1)
    axis = call.axis(axis, index.dim() + 1)
    places = positive(call, index, depth).unsqueeze(axis)
    numbers = torch.arange(depth).reshape(-1, *[1] * (index.dim() - axis))
    return torch.where(places == numbers, values[1], values[0])


def _reverse_sequence(call: Call) -> Tensor:
    x, lengths = call.x(0), call.x(1, "sequence_lens").long()
    batch, time = call.int_("batch_axis", 1), call.int_("time_axis", 0)
    if {batch, time} != {0, 1}:
        call.fail("batch_axis and time_axis must be 0 and 1.")
    steps = torch.arange(x.shape[time])
    sizes = lengths.unsqueeze(0) if time == 0 else lengths.unsqueeze(1)
    steps = steps.unsqueeze(1) if time == 0 else steps.unsqueeze(0)
    places = torch.where(steps < sizes, sizes - 1 - steps, steps)
    places = places.reshape(*places.shape, *[1] * (x.dim() - 2)).expand(x.shape)
    return torch.gather(x, time, places)


def _compress(call: Call) -> Tensor:
    x, keep = call.x(0), call.constant(1, "condition")
    call.known("axis")
    if "axis" in call.attributes:
        axis = call.axis(call.int_("axis"), x.dim())
    else:
        x, axis = x.reshape(-1), 0
    places = [i for i, kept in enumerate(keep.flatten().tolist()) if kept]
    return x.index_select(axis, torch.tensor(places, dtype=torch.int64))


ROWS: dict[str, Named] = {
    "Compress": Named(_compress, 9),
    "Gather": Named(_gather),
    "GatherElements": Named(_gather_elements, 11),
    "GatherND": Named(_gather_nd, 11),
    "OneHot": Named(_one_hot, 9),
    "ReverseSequence": Named(_reverse_sequence, 10),
    "Scatter": Named(_scatter_elements, 9),
    "ScatterElements": Named(_scatter_elements, 11),
    "ScatterND": Named(_scatter_nd, 11),
}
