# SPDX-License-Identifier: Apache-2.0
"""Ops on sets of points: farthest-point sampling and nearest neighbours."""

import itertools
import math
from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.capture import running_on_ipu
from poptorch.capture.values.constants import value_of
from poptorch.ops.checks import check_tensor

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def fps(
    src: torch.Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False
) -> torch.Tensor:
    """Farthest-point sampling: indices of points that lie far from each other.

    Inside models only.

    Args:
        src: points, one per row.
        ptr: the bounds of the segments that are sampled apart, as ``[0, 3, 7]``.
        ratio: share of the points of a segment that is taken, rounded up.
        random_start: begin at a random point of the segment instead of its first.
    """
    check_tensor("fps", src)
    assert isinstance(ptr, list) and all(isinstance(p, int) for p in ptr), "ptr: a list of ints"
    assert len(ptr) > 1, "ptr must containt at least 2 elements"
    assert isinstance(ratio, float), f"Expected a float as ratio, got {ratio!r}"
    assert isinstance(random_start, bool), f"Expected a bool, got {random_start!r}"
    _check_points("fps", src)
    rows = src.shape[0]
    if ptr[0] < 0 or ptr[-1] > rows or ptr != sorted(ptr):
        raise createPoptorchError(f"fps: ptr must ascend from 0 to at most {rows} rows, not {ptr}")
    if not 0 < ratio <= 1:
        raise createPoptorchError(f"fps: ratio must be above 0 and at most 1, not {ratio}")
    _check_device("fps")
    points = src.detach().reshape(rows, -1)
    sizes = [end - begin for begin, end in itertools.pairwise(ptr)]
    first = torch.zeros(len(sizes), dtype=torch.int64)
    if random_start:
        drawn = [torch.randint(0, size, (1,)) if size else torch.zeros(1).long() for size in sizes]
        first = torch.cat(drawn)
    counts = [math.ceil(size * ratio) for size in sizes]
    attributes = {"bounds": list(ptr), "counts": counts}
    return _call("Fps", [points.float(), first], attributes, sum(counts))


def nearest(
    x: torch.Tensor, y: torch.Tensor, batch_x: Any = None, batch_y: Any = None
) -> torch.Tensor:
    """For each row of ``x`` the index of the closest row of ``y``.

    Inside models only.

    Args:
        x: points, one per row.
        y: points of the same width.
        batch_x: sorted batch ids of the rows of ``x``, as a list or tensor; only rows of the same
            id are compared.
        batch_y: those of ``y``.
    """
    check_tensor("nearest", x)
    check_tensor("nearest", y)
    x, y = (t.reshape(-1, 1) if t.dim() == 1 else t for t in (x, y))
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1]:
        raise createPoptorchError("nearest: x and y must be at most 2-d, with equal feature sizes")
    _check_points("nearest", x)
    _check_points("nearest", y)
    if len(y) == 0 and len(x) > 0:
        raise createPoptorchError("nearest: y has no points")
    ids: list[torch.Tensor] = []
    if batch_x is not None or batch_y is not None:
        ids_x = _batch_ids(batch_x, x.shape[0], "batch_x")
        ids_y = _batch_ids(batch_y, y.shape[0], "batch_y")
        known_x, known_y = _known(ids_x), _known(ids_y)
        if known_x is not None and known_y is not None and not set(known_x) <= set(known_y):
            raise createPoptorchError(
                "Some batch indices occur in 'batch_x' that do not occur in 'batch_y'"
            )
        ids = [ids_x, ids_y]
    _check_device("nearest")
    points = [x.detach().float(), y.detach().float()]
    return _call("Nearest", [*points, *(i.int() for i in ids)], {}, x.shape[0])


def _call(name: str, inputs: list[torch.Tensor], attributes: dict[str, Any], count: int) -> Any:
    """An op of our own in the library of custom ops; it returns so many indices."""
    from poptorch.capture.custom.registry import registered

    run = registered(name, "tessera", 1)
    assert run is not None, name
    return run(inputs, attributes, [torch.empty(count, dtype=torch.int64)])[0]


def _check_points(op: str, points: torch.Tensor) -> None:
    if points.dim() == 0 or points.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise createPoptorchError(
            f"{op}: points must be rows of float32, float16 or bfloat16, not {points.dtype} of "
            f"shape {list(points.shape)}"
        )


def _check_device(op: str) -> None:
    if not running_on_ipu():
        raise createPoptorchError(
            f"poptorch.{op}: Device only. Call it in the forward of a model that is wrapped by "
            "poptorch.inferenceModel or poptorch.trainingModel."
        )


def _batch_ids(ids: Any, rows: int, name: str) -> torch.Tensor:
    if ids is None:
        return torch.zeros(rows, dtype=torch.int64)
    if isinstance(ids, (list, tuple)) and all(isinstance(i, int) for i in ids):
        ids = torch.tensor(ids, dtype=torch.int64)
    if not isinstance(ids, torch.Tensor) or ids.dtype not in _INTEGERS:
        raise createPoptorchError(f"'{name}' must be a list or a tensor of integers, not {ids!r}")
    known = _known(ids)
    if known is not None and known != sorted(known):
        raise createPoptorchError(f"'{name}' is not sorted")
    if ids.numel() != rows:
        raise createPoptorchError(f"'{name}' must have one id for each of the {rows} rows")
    return ids.reshape(rows)


def _known(ids: torch.Tensor) -> list[int] | None:
    """The values of a tensor; None while a model is captured that computes or is given them."""
    value = value_of(ids)
    return None if value is None else value.flatten().tolist()
