# SPDX-License-Identifier: Apache-2.0
"""Loops whose length the data decide: one op whose body is traced once. They have no gradient."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from poptorch.capture import placement, state
from poptorch.capture.errors import Where, make_error, user_frame
from poptorch.capture.flow.body import BodyCall, make_body, trace_body
from poptorch.capture.flow.results import loop_results
from poptorch.capture.library.flow import ops


class _While(torch.autograd.Function):
    """A loop that says so when its gradient is asked for."""

    @staticmethod
    def forward(ctx: Any, number: int, count: int, where: Where, *tensors: Tensor) -> Any:
        found = ops.while_loop(number, list(tensors[:count]), list(tensors[count:]))
        ctx.where = where
        ctx.mark_non_differentiable(*[t for t in found if not t.is_floating_point()])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *_grads: Tensor) -> Any:
        raise make_error(
            "A loop whose number of turns is known only when it runs (RepeatWhileTrue) has no "
            "gradient. Give the op a gradient op, or detach() its inputs.",
            ctx.where,
        )


def while_loop(body: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """Turns of a body for as long as the first of its tensors, a bool, is true.

    Args:
        body: takes and returns as many tensors, of the same shapes and types. It writes to none.
        inputs: what the first turn gets.

    Returns:
        What the last turn returned, or copies of the inputs if there was none.
    """
    session = state.current()
    assert session is not None
    where = user_frame()
    inputs = session.lift(inputs)
    types = [(t.shape, t.dtype) for t in inputs]

    def check(result: Any) -> list[Tensor]:
        return loop_results(result, types, where)

    call = BodyCall("RepeatWhileTrue", where, body, inputs, [False] * len(inputs), check)
    traced = trace_body(session, call, False)
    assert not traced.written, "the body of such a loop writes to nothing"
    outs = [traced.result(i) for i in range(len(traced.outs))]
    leaves = [*traced.inputs, *[f.leaf for f in traced.lifted]]
    with placement.placed(traced.place):
        number, _ = make_body(session, traced, leaves, outs)
        tensors = session.lift([*inputs, *[f.outer for f in traced.lifted]])
        return list(_While.apply(number, len(inputs), where, *tensors))
