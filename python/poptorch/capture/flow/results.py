# SPDX-License-Identifier: Apache-2.0
"""What bodies return, checked and as lists."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from poptorch.capture.errors import NOWHERE, Where, make_error

_SAME = "for_loop: the body must return as many tensors as it takes, of the same shapes and types"


def as_list(result: Any) -> list[Any]:
    """What a body returned, as a list."""
    return list(result) if isinstance(result, (list, tuple)) else [result]


def loop_results(
    result: Any, types: list[tuple[torch.Size, torch.dtype]], where: Where = NOWHERE
) -> list[Tensor]:
    """What the body of a loop returned."""
    found = as_list(result)
    if not types and found == [None]:
        found = []
    if len(found) != len(types):
        raise make_error(f"{_SAME}: it takes {len(types)} and returns {len(found)}", where)
    for i, (value, (shape, dtype)) in enumerate(zip(found, types, strict=True)):
        if not isinstance(value, Tensor):
            raise make_error(f"{_SAME}: result {i} is of type {type(value).__name__}", where)
        if value.shape != shape or value.dtype != dtype:
            raise make_error(
                f"{_SAME}: result {i} is {value.dtype} of shape {list(value.shape)}, input {i} is "
                f"{dtype} of shape {list(shape)}",
                where,
            )
    return found


def branch_results(where: Where) -> Callable[[Any], list[Tensor]]:
    """A function for what the else body of a branch returned."""

    def check(result: Any) -> list[Tensor]:
        found = [] if result is None else as_list(result)
        for value in found:
            if not isinstance(value, Tensor):
                raise make_error(
                    "poptorch.cond: a body must return a tensor, or a list or tuple of tensors, "
                    f"not {type(value).__name__}",
                    where,
                )
        return found

    return check


def results_like(others: list[Tensor], where: Where) -> Callable[[Any], list[Tensor]]:
    """A function for what the then body returned: in the shapes of those of the else body."""
    listed = branch_results(where)

    def check(result: Any) -> list[Tensor]:
        found = listed(result)
        if len(found) != len(others):
            raise make_error(
                "poptorch.cond: both bodies must return as many outputs: then_body returns "
                f"{len(found)}, else_body {len(others)}",
                where,
            )
        pairs = enumerate(zip(found, others, strict=True))
        return [_in_shape(i, value, other, where) for i, (value, other) in pairs]

    return check


def _in_shape(index: int, value: Tensor, other: Tensor, where: Where) -> Tensor:
    if value.dtype != other.dtype:
        raise make_error(
            f"poptorch.cond: output {index} is {value.dtype} from then_body and {other.dtype} from "
            "else_body: cast one of them.",
            where,
        )
    if value.shape == other.shape:
        return value
    if value.numel() != other.numel() or not other.dim():
        raise make_error(
            f"poptorch.cond: output {index} of then_body has shape {list(value.shape)}, which "
            f"cannot be reshaped to {list(other.shape)}, that of else_body.",
            where,
        )
    return value.reshape(other.shape)
