# SPDX-License-Identifier: Apache-2.0
"""``ai.graphcore``: ops over replicas."""

from typing import Any

import torch
from torch import Tensor

from poptorch.capture import state
from poptorch.capture.custom.named.table import Call, Named

_GROUPING = "__collectiveReplicaGrouping"
_OPERATORS = ("Add", "Mean", "Mul", "Min", "Max", "LogicalAnd", "LogicalOr", "SquareAdd", "Local")


def _groups(call: Call) -> tuple[int, int]:
    """(how many replicas are in a group, how far apart); all of them without the attribute."""
    session = state.current()
    replicas = 1 if session is None else session.replicas
    given = call.ints(_GROUPING)
    if not given:
        return replicas, 1
    if len(given) != 3 or given[0] != replicas:
        call.fail(
            f"{_GROUPING} is [replicas, stride, group size], and the model runs on {replicas} "
            f"replicas, not {given}."
        )
    _, stride, size = given
    if size < 1 or stride < 1 or replicas % (size * stride):
        call.fail(f"groups of {size} replicas, {stride} apart, do not divide {replicas}.")
    return size, stride


def _operator(call: Call, allowed: tuple[str, ...]) -> str:
    number = call.int_("__collectiveOperator", call.int_("op", 0))
    if not 0 <= number < len(_OPERATORS) or _OPERATORS[number] not in allowed:
        call.fail(f"operator {number} is none of {', '.join(allowed)}.")
    return _OPERATORS[number]


class _Gather(torch.autograd.Function):
    """The tensors of a group; a replica's gradient is its part of its own gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, stride: int) -> Tensor:
        from poptorch.capture.library.replicas import all_gather

        ctx.group = size, stride
        return all_gather(x, size, stride)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        from poptorch.capture.library.replicas import own_part

        return own_part(grads[0], *ctx.group), None, None


def _gathered(call: Call) -> Tensor:
    found: Tensor = _Gather.apply(call.x(), *_groups(call))
    return found.reshape(-1)


def _all_reduce(call: Call) -> Tensor:
    from poptorch.capture.library.replicas import all_reduce

    return all_reduce(call.x(), _operator(call, _OPERATORS[:-1]), *_groups(call))


def _reduce_scatter(call: Call) -> Tensor:
    from poptorch.capture.library.replicas import reduce_scatter

    return reduce_scatter(call.x(), _operator(call, _OPERATORS), *_groups(call))


ROWS: dict[str, Named] = {
    "ReplicatedAllGather": Named(
        _gathered, form=f"x; flat, of all replicas of a group; `{_GROUPING}`"
    ),
    "ReplicatedAllReduce": Named(_all_reduce, form=f"x; `op` (a number), `{_GROUPING}`"),
    "ReplicatedReduceScatter": Named(
        _reduce_scatter, form=f"x; flat, this replica's part; `op` (a number), `{_GROUPING}`"
    ),
}
