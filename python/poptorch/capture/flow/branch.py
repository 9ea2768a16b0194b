# SPDX-License-Identifier: Apache-2.0
"""`poptorch.cond` in a captured model: one op with two bodies, of which each run takes one.

The gradient is a branch on the same condition: it computes the body again and differentiates it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from poptorch.capture import placement, state
from poptorch.capture.errors import make_error, user_frame
from poptorch.capture.flow.body import (
    BodyCall,
    Output,
    TracedBody,
    check_leaves,
    gradients,
    in_backward,
    make_body,
    plain,
    reached_leaves,
    seed_like,
    settled,
    trace_body,
)
from poptorch.capture.flow.lift import Lifted, Lifter
from poptorch.capture.flow.loop import write_back
from poptorch.capture.flow.results import branch_results, results_like
from poptorch.capture.library.flow import ops
from poptorch.capture.session import Session
from poptorch.capture.text.value import Type


class _Branch(NamedTuple):
    """A branch with a gradient.

    Attributes:
        forward: numbers of the bodies, then first.
        backward: numbers of the bodies of its gradient.
        differs: results that have a gradient.
        graded: operands that have one.
    """

    forward: tuple[int, int]
    backward: tuple[int, int]
    differs: list[int]
    graded: list[int]


class _Choose(torch.autograd.Function):
    """A branch and its gradient."""

    @staticmethod
    def forward(ctx: Any, branch: _Branch, condition: Tensor, *operands: Tensor) -> Any:
        found = ops.branch(*branch.forward, condition, list(operands))
        ctx.branch, ctx.types = branch, [(t.shape, t.dtype) for t in found]
        ctx.save_for_backward(condition, *operands)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[t for i, t in enumerate(found) if i not in branch.differs])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        branch: _Branch = ctx.branch
        condition, *operands = ctx.saved_tensors
        seeds = []
        for i in branch.differs:
            shape, dtype = ctx.types[i]
            given = grads[i]
            seeds.append(torch.zeros(shape, dtype=dtype) if given is None else given)
        found = ops.branch(*branch.backward, condition, [*seeds, *operands])
        out: list[Tensor | None] = [None] * len(operands)
        for i, grad in zip(branch.graded, found, strict=True):
            out[i] = grad
        return (None, None, *out)


class _Way:
    """One of the two bodies, with its gradient in training."""

    def __init__(self, session: Session, call: BodyCall, grad: bool) -> None:
        self._session, self._call = session, call
        self.seeds: list[Tensor | None] = []  # per result, written ones last
        self.leaves: list[Tensor] = []  # inputs that have a gradient
        self.traced = trace_body(session, call, grad, self._differentiate if grad else None)

    def _differentiate(self, traced: TracedBody, lifter: Lifter) -> list[Tensor]:
        outs = [*traced.outs, *[f.given for f in traced.written]]
        starts = [*self._call.required, *[f.required for f in traced.lifted]]
        inputs = [*traced.inputs, *[f.leaf for f in traced.lifted]]
        reached = [reached_leaves([out]) for out in outs]
        check_leaves(set().union(*reached), traced, self._call)
        may = [*[t.requires_grad for t in traced.inputs], *[f.graded for f in traced.lifted]]
        own = {
            id(leaf)
            for required, leaf, graded in zip(starts, inputs, may, strict=True)
            if graded and required
        }
        self.seeds = [
            seed_like(lifter, o) if r & own else None for o, r in zip(outs, reached, strict=True)
        ]
        some = set().union(*reached) & own
        self.leaves = [leaf for leaf in inputs if id(leaf) in some]
        pairs = [(o, s) for o, s in zip(outs, self.seeds, strict=True) if s is not None]
        with in_backward(self._session, self._call):
            found = gradients([o for o, _ in pairs], [s for _, s in pairs], self.leaves)
            return [
                torch.zeros(leaf.shape, dtype=leaf.dtype) if g is None else g
                for leaf, g in zip(self.leaves, found, strict=True)
            ]


def cond(
    condition: Tensor,
    bodies: tuple[Callable[..., Any], Callable[..., Any]],
    inputs: tuple[list[Tensor], list[Tensor]],
) -> list[Tensor]:
    """The results of one of two bodies, then first, as one op of the captured graph."""
    session = state.current()
    assert session is not None
    where = user_frame()
    grad = session.training and torch.is_grad_enabled()
    inputs = session.lift(inputs)
    required = [[t.requires_grad for t in given] for given in inputs]

    def call(i: int, check: Callable[[Any], list[Tensor]]) -> BodyCall:
        return BodyCall("poptorch.cond", where, bodies[i], inputs[i], required[i], check)

    otherwise = _Way(session, call(1, branch_results(where)), grad)
    then = _Way(session, call(0, results_like(otherwise.traced.outs, where)), grad)
    ways = (then, otherwise)
    places = {way.traced.place[:3] for way in ways if way.traced.has_ops}
    if len(places) > 1:
        raise make_error(
            "poptorch.cond: the bodies have ops on more than one IPU, stage or phase. Begin the "
            "block before the call.",
            where,
        )
    place = next((w.traced.place for w in ways if w.traced.has_ops), placement.current_placement())
    with placement.placed(place):
        return _joined(session, condition, inputs, ways, grad)


def _joined(
    session: Session,
    condition: Tensor,
    inputs: tuple[list[Tensor], list[Tensor]],
    ways: "tuple[_Way, _Way]",
    grad: bool,
) -> list[Tensor]:
    operands = [*inputs[0], *inputs[1]]
    outers: list[Tensor] = []  # what both bodies use from outside
    for way in ways:
        outers += [f.outer for f in way.traced.lifted if not any(f.outer is t for t in outers)]
    operands += outers
    # Only states of the model keep what a body writes.
    states = {id(s.tensor) for s in session.swap.slots}
    written = [t for t in outers if _is_written(t, ways) and id(t) in states]
    count = len(ways[0].traced.outs)
    leaves = [_leaves(way, inputs, outers, k) for k, way in enumerate(ways)]
    if not count + len(written):
        return []
    forward = []
    for way, own in zip(ways, leaves, strict=True):
        outs: list[Output] = [way.traced.result(i) for i in range(count)]
        for t in written:
            f = _lifted(way, t)
            is_final = f is not None and f in way.traced.written
            outs.append(way.traced.final(f) if f and is_final else own[_index(operands, t)])
        forward.append(make_body(session, way.traced, own, outs)[0])
    differs, graded = _with_gradients(ways, leaves, count, written) if grad else ([], [])
    if not differs:
        found = ops.branch(forward[0], forward[1], *session.lift([condition, operands]))
    else:
        backward = [
            _backward(session, way, own, differs, graded, count, written)
            for way, own in zip(ways, leaves, strict=True)
        ]
        branch = _Branch((forward[0], forward[1]), (backward[0], backward[1]), differs, graded)
        found = _Choose.apply(branch, condition, *map(settled, operands))
    for t, value in zip(written, found[count:], strict=True):
        write_back(t, value)
    return list(found[:count])


def _is_written(tensor: Tensor, ways: "tuple[_Way, _Way]") -> bool:
    return any(f.outer is tensor for way in ways for f in way.traced.written)


def _lifted(way: _Way, tensor: Tensor) -> Lifted | None:
    return next((f for f in way.traced.lifted if f.outer is tensor), None)


def _index(tensors: list[Tensor], tensor: Tensor) -> int:
    return max(i for i, t in enumerate(tensors) if t is tensor)


def _leaves(
    way: _Way, inputs: tuple[list[Tensor], list[Tensor]], outers: list[Tensor], number: int
) -> list[Tensor]:
    """Inputs of a body, one per operand; those of the other body are there and not used."""
    found: list[Tensor] = []
    for k, given in enumerate(inputs):
        found += way.traced.inputs if k == number else [plain(t) for t in given]
    for outer in outers:
        f = _lifted(way, outer)
        found.append(plain(outer) if f is None else f.leaf)
    return found


def _seed(way: _Way, index: int, count: int, written: list[Tensor]) -> Tensor | None:
    """The gradient of a result that backward of a body begins with."""
    if index < count:
        return way.seeds[index]
    f = _lifted(way, written[index - count])
    if f is None or f not in way.traced.written or not way.seeds:
        return None
    at = count + way.traced.written.index(f)
    return way.seeds[at] if at < len(way.seeds) else None


def _with_gradients(
    ways: "tuple[_Way, _Way]", leaves: list[list[Tensor]], count: int, written: list[Tensor]
) -> tuple[list[int], list[int]]:
    """(results that have a gradient, operands that have one)."""
    every = range(count + len(written))
    differs = [i for i in every if any(_seed(w, i, count, written) is not None for w in ways)]
    ids = {id(leaf) for way in ways for leaf in way.leaves}
    graded = [i for i in range(len(leaves[0])) if any(id(own[i]) in ids for own in leaves)]
    return differs, graded


def _backward(
    session: Session,
    way: _Way,
    own: list[Tensor],
    differs: list[int],
    graded: list[int],
    count: int,
    written: list[Tensor],
) -> int:
    """The body of the gradient of one way; operands that it does not use get zeros."""
    traced = way.traced
    shapes = [*traced.outs, *written]
    seeds = [_seed(way, i, count, written) for i in differs]
    firsts = [
        plain(shapes[i]) if seed is None else seed for i, seed in zip(differs, seeds, strict=True)
    ]
    at = {id(leaf): len(traced.outs) + i for i, leaf in enumerate(way.leaves)}
    results: list[Output] = []
    for i in graded:
        leaf = own[i]
        zeros: Type = (leaf.dtype, tuple(leaf.shape))
        results.append(traced.result(at[id(leaf)]) if id(leaf) in at else zeros)
    return make_body(session, traced, [*firsts, *own], results, True)[0]
