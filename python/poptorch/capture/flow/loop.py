# SPDX-License-Identifier: Apache-2.0
"""`poptorch.for_loop` in a captured model: one op whose body is traced once.

The gradient of a loop is a loop in reverse. Forward keeps what each turn began with, and a turn of
backward computes the body again from that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poptorch.capture import placement, state
from poptorch.capture.errors import user_frame
from poptorch.capture.flow.body import (
    BodyCall,
    TracedBody,
    check_leaves,
    gradients,
    in_backward,
    make_body,
    reached_leaves,
    seed_like,
    settled,
    trace_body,
)
from poptorch.capture.flow.lift import Lifted, Lifter
from poptorch.capture.flow.results import loop_results
from poptorch.capture.library.flow import ops
from poptorch.capture.session import Session

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class _Loop:
    """A loop with a gradient.

    Attributes:
        count: of its turns.
        forward: number of its body, whose results are the carries and then what is kept.
        backward: number of the body of its gradient.
        carries: how many tensors it carries.
        graded: the carries that have gradients.
        sums: (index of a capture, type of the sum of its gradients) of captures that have one.
        kept: which carries backward reads.
    """

    count: int
    forward: int
    backward: int
    carries: int
    graded: list[int]
    sums: list[tuple[int, torch.dtype]]
    kept: list[int]


class _Scan(torch.autograd.Function):
    """A loop and its gradient."""

    @staticmethod
    def forward(ctx: Any, loop: _Loop, *tensors: Tensor) -> tuple[Tensor, ...]:
        carries, captures = list(tensors[: loop.carries]), list(tensors[loop.carries :])
        found = ops.scan(loop.forward, loop.count, carries, [], captures, False)
        finals, kept = found[: loop.carries], found[loop.carries :]
        ctx.loop, ctx.types = loop, [(t.shape, t.dtype) for t in finals]
        ctx.save_for_backward(*kept, *captures)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[t for i, t in enumerate(finals) if i not in loop.graded])
        return tuple(finals)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        loop: _Loop = ctx.loop
        kept = list(ctx.saved_tensors[: len(loop.kept)])
        captures = list(ctx.saved_tensors[len(loop.kept) :])
        firsts = []
        for i in loop.graded:
            shape, dtype = ctx.types[i]
            given = grads[i]
            firsts.append(torch.zeros(shape, dtype=dtype) if given is None else given)
        sums = [torch.zeros(captures[i].shape, dtype=dtype) for i, dtype in loop.sums]
        found = ops.scan(loop.backward, loop.count, firsts + sums, kept, captures, True)
        out: list[Tensor | None] = [None] * (loop.carries + len(captures))
        for i, grad in zip(loop.graded, found, strict=False):
            out[i] = grad
        for (i, _), grad in zip(loop.sums, found[len(loop.graded) :], strict=True):
            out[loop.carries + i] = grad.to(captures[i].dtype)
        return (None, *out)


class _Gradient:
    """Adds the gradient of a turn to the trace of its body."""

    def __init__(self, session: Session, call: BodyCall) -> None:
        self._session, self._call = session, call
        self.seeds: list[Tensor] = []  # inputs: gradients of the results of the turn
        self.sums: list[Tensor] = []  # inputs: sums of the gradients of captures so far
        self.graded: list[int] = []  # which carries have one
        self.summed: list[Lifted] = []  # which captures have one

    def __call__(self, traced: TracedBody, lifter: Lifter) -> list[Tensor]:
        written = traced.written
        outs = [*traced.outs, *[f.given for f in written]]
        leaves = [*traced.inputs, *[f.leaf for f in written]]
        starts = [*self._call.required, *[f.required for f in written]]
        wanted = [f for f in traced.lifted if f not in written and f.graded]
        reached = [reached_leaves([out]) for out in outs]
        check_leaves(set().union(*reached), traced, self._call)
        may = [*[t.requires_grad for t in traced.inputs], *[f.graded for f in written]]
        self.graded = _graded(starts, leaves, reached, {id(f.leaf) for f in wanted})
        self.graded = [i for i in self.graded if may[i]]
        used = [i for i in self.graded if reached[i]]
        self.summed = [f for f in wanted if any(id(f.leaf) in reached[i] for i in used)]
        self.seeds = [seed_like(lifter, outs[i]) for i in self.graded]
        self.sums = []
        of = dict(zip(self.graded, self.seeds, strict=True))
        targets = [leaves[i] for i in self.graded]
        result = []
        with in_backward(self._session, self._call):
            found = gradients(
                [outs[i] for i in used],
                [of[i] for i in used],
                [*targets, *[f.leaf for f in self.summed]],
            )
            for leaf, grad in zip(targets, found, strict=False):
                result.append(torch.zeros(leaf.shape, dtype=leaf.dtype) if grad is None else grad)
            for f, grad in zip(self.summed, found[len(targets) :], strict=True):
                dtype = torch.float32 if f.leaf.dtype in _HALF else f.leaf.dtype
                total = seed_like(lifter, f.leaf, dtype)
                self.sums.append(total)
                result.append(total.clone() if grad is None else total + grad.to(dtype))
        return result


def _graded(
    starts: list[bool], leaves: list[Tensor], reached: list[set[int]], captures: set[int]
) -> list[int]:
    """The carries that depend on something that has a gradient, in some turn."""
    found = {i for i, required in enumerate(starts) if required}
    while True:
        known = captures | {id(leaves[i]) for i in found}
        more = {i for i, ids in enumerate(reached) if i not in found and ids & known}
        if not more:
            return sorted(found)
        found |= more


def for_loop(count: int, body: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """`count` turns of `body` as one op of the captured graph."""
    session = state.current()
    assert session is not None
    if count == 0:
        return [t.clone() for t in inputs]
    where = user_frame()
    inputs = session.lift(inputs)
    types = [(t.shape, t.dtype) for t in inputs]
    required = [t.requires_grad for t in inputs]

    def check(result: Any) -> list[Tensor]:
        return loop_results(result, types, where)

    call = BodyCall("poptorch.for_loop", where, body, inputs, required, check)
    grad = session.training and torch.is_grad_enabled()
    gradient = _Gradient(session, call) if grad else None
    traced = trace_body(session, call, grad, gradient)
    written = traced.written
    held = [f for f in traced.lifted if f not in written]
    carries = [*traced.inputs, *[f.leaf for f in written]]
    outs = [traced.result(i) for i in range(len(traced.outs))]
    outs += [traced.final(f) for f in written]
    captures = [f.leaf for f in held]
    tensors = [*inputs, *[f.outer for f in written], *[f.outer for f in held]]
    if not carries:
        return []
    with placement.placed(traced.place):
        if gradient is None or not gradient.graded:
            number, _ = make_body(session, traced, [*carries, *captures], outs)
            tensors = session.lift(tensors)
            first, rest = tensors[: len(carries)], tensors[len(carries) :]
            found = ops.scan(number, count, first, [], rest, False)
        else:
            found = _differentiable(session, traced, gradient, count, carries, held, outs, tensors)
        for f, value in zip(written, found[len(inputs) :], strict=True):
            write_back(f.outer, value)
    return list(found[: len(inputs)])


def _differentiable(
    session: Session,
    traced: TracedBody,
    gradient: _Gradient,
    count: int,
    carries: list[Tensor],
    held: list[Lifted],
    outs: list[torch.fx.Node],
    tensors: list[Tensor],
) -> tuple[Tensor, ...]:
    captures = [f.leaf for f in held]
    ends = len(gradient.graded) + len(gradient.summed)
    results = [traced.result(len(traced.outs) + i) for i in range(ends)]
    flows = [*gradient.seeds, *gradient.sums]
    # Once to see which carries it reads; only those are kept.
    _, used = make_body(session, traced, [*flows, *carries, *captures], results, True)
    session.bodies.pop()
    kept = [i for i in range(len(carries)) if used[len(flows) + i]]
    backward, _ = make_body(
        session, traced, [*flows, *[carries[i] for i in kept], *captures], results, True
    )
    forward, _ = make_body(
        session, traced, [*carries, *captures], [*outs, *[carries[i] for i in kept]]
    )
    sums = [
        (held.index(f), total.dtype)
        for f, total in zip(gradient.summed, gradient.sums, strict=True)
    ]
    loop = _Loop(count, forward, backward, len(carries), gradient.graded, sums, kept)
    return _Scan.apply(loop, *map(settled, tensors))


def write_back(outer: Tensor, value: Tensor) -> None:
    """A tensor from outside gets the value that a body gave it."""
    if outer.is_leaf and outer.requires_grad:
        with torch.no_grad():
            outer.copy_(value)
    else:
        outer.copy_(value)
