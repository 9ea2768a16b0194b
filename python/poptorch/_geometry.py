# SPDX-License-Identifier: Apache-2.0
"""Ops on sets of points: farthest-point sampling and nearest neighbours."""

import math
from typing import Any

import torch

from poptorch._checks import check_tensor
from poptorch._errors import createPoptorchError
from poptorch.capture.constants import value_of


def fps(
    src: torch.Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False
) -> torch.Tensor:
    """Farthest-point sampling: indices of points that lie far from each other.

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
    points = src.reshape(src.shape[0], -1)
    found = []
    for begin, end in zip(ptr, ptr[1:], strict=False):
        segment = points[begin:end]
        current = torch.zeros((), dtype=torch.int64)
        if random_start:
            current = torch.randint(0, end - begin, ())
        distance = segment.new_full((end - begin,), math.inf)
        for _ in range(math.ceil((end - begin) * ratio)):
            found.append(current + begin)
            picked = segment.index_select(0, current.reshape(1))
            distance = torch.minimum(distance, (segment - picked).square().sum(1))
            current = distance.argmax()
    return torch.stack(found)


def nearest(
    x: torch.Tensor, y: torch.Tensor, batch_x: Any = None, batch_y: Any = None
) -> torch.Tensor:
    """For each row of ``x`` the index of the closest row of ``y``.

    Args:
        x: points, one per row.
        y: points of the same width.
        batch_x: sorted batch ids of the rows of ``x``; only rows of the same id are compared.
        batch_y: those of ``y``.
    """
    check_tensor("nearest", x)
    check_tensor("nearest", y)
    x, y = (t.reshape(-1, 1) if t.dim() == 1 else t for t in (x, y))
    if x.dim() > 2 or y.dim() > 2 or x.shape[1] != y.shape[1]:
        raise createPoptorchError("nearest: x and y must be at most 2-d, with equal feature sizes")
    distance = (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(2)
    if batch_x is not None or batch_y is not None:
        ids_x = _batch_ids(batch_x, x.shape[0], "batch_x")
        ids_y = _batch_ids(batch_y, y.shape[0], "batch_y")
        known_x, known_y = _known(ids_x), _known(ids_y)
        if known_x is not None and known_y is not None and not set(known_x) <= set(known_y):
            raise createPoptorchError(
                "Some batch indices occur in 'batch_x' that do not occur in 'batch_y'"
            )
        other = ids_x.unsqueeze(1) != ids_y.unsqueeze(0)
        distance = distance.masked_fill(other, math.inf)
    return distance.argmin(1)


def _batch_ids(ids: Any, rows: int, name: str) -> torch.Tensor:
    if ids is None:
        return torch.zeros(rows, dtype=torch.int64)
    ids = torch.tensor(ids) if isinstance(ids, list) else ids
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
