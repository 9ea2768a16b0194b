# SPDX-License-Identifier: Apache-2.0
"""Values that replicas exchange: one primitive, and the collectives that are made of it.

`exchange(x, size, stride)` takes a tensor whose first dim has a part for each replica of a group of
`size`, which are `stride` apart, and gives what the others have for this one. All else is computed
by each replica for itself, in the same order, so that all have the same bits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from poptorch.base.errors import createPoptorchError
from poptorch.capture import state
from poptorch.capture.library import _lib, ops

_lib.define("exchange(Tensor x, int size, int stride) -> Tensor")
_lib.define("replica_index() -> Tensor")


@torch.library.register_fake("tessera::exchange", lib=_lib)
def _exchange_fake(x: Tensor, size: int, stride: int) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("tessera::replica_index", lib=_lib)
def _index_fake() -> Tensor:
    return torch.empty((), dtype=torch.float32)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.size, ctx.stride = inputs


def _exchange_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return ops.exchange(grad, ctx.size, ctx.stride), None, None


torch.library.register_autograd(
    "tessera::exchange", _exchange_backward, setup_context=_remember, lib=_lib
)


def exchange(x: Tensor, size: int, stride: int) -> Tensor:
    """Part i of the result is this replica's part of the i-th of its group."""
    if size == 1:
        return x.clone()
    session = state.current()
    if session is not None and session.lifters:
        raise createPoptorchError(
            "Replicas can't exchange values in the body of poptorch.for_loop or poptorch.cond."
        )
    return ops.exchange(x, size, stride)


def all_gather(x: Tensor, size: int, stride: int) -> Tensor:
    """[size, ...]: x of every replica of the group."""
    return exchange(x.unsqueeze(0).expand(size, *x.shape), size, stride)


#: What makes one of the tensors of a group, along the first dim.
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Add": lambda x: x.sum(0, dtype=x.dtype),
    "Mean": lambda x: x.mean(0),
    "Mul": lambda x: x.prod(0, dtype=x.dtype),
    "Min": lambda x: x.amin(0),
    "Max": lambda x: x.amax(0),
    "LogicalAnd": lambda x: x.bool().all(0).to(x.dtype),
    "LogicalOr": lambda x: x.bool().any(0).to(x.dtype),
    "SquareAdd": lambda x: (x * x).sum(0, dtype=x.dtype),
}


def all_reduce(x: Tensor, how: str, size: int, stride: int) -> Tensor:
    """The sum, or another reduction, of x over the group."""
    return REDUCTIONS[how](all_gather(x, size, stride))


def _parts(x: Tensor, size: int) -> Tensor:
    """x, flat, in as many parts as there are replicas; the last may end in zeros."""
    flat = x.reshape(-1)
    length = -(-flat.shape[0] // size)
    return torch.nn.functional.pad(flat, (0, size * length - flat.shape[0])).view(size, length)


def reduce_scatter(x: Tensor, how: str, size: int, stride: int) -> Tensor:
    """This replica's part of the reduction of x, flat."""
    if how == "Local":
        return own_part(_parts(x, size), size, stride)
    return REDUCTIONS[how](exchange(_parts(x, size), size, stride))


def own_part(x: Tensor, size: int, stride: int) -> Tensor:
    """x[i] of the i-th replica of the group."""
    if size == 1:
        return x[0]
    session = state.current()
    replicas = float(session.replicas if session is not None else 1)
    replica = ops.replica_index().remainder(replicas)
    index = (replica / stride).floor().remainder(float(size)).to(torch.int64)
    return x.index_select(0, index.view(1))[0]
