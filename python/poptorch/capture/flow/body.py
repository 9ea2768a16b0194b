# SPDX-License-Identifier: Apache-2.0
"""The trace of a body: one graph with what it computes and, in training, with its gradients.

The graphs that programs run are cut out of it: forward, and a second one for backward, which
computes again what it needs from the inputs of the turn.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx
from torch import Tensor
from torch.autograd.graph import Node as GradNode
from torch.fx import Node

from poptorch.capture import _torch_private as private
from poptorch.capture import errors, mutations, placement
from poptorch.capture.calls.decompositions import TABLE
from poptorch.capture.errors import Where
from poptorch.capture.flow.lift import Lifted, Lifter
from poptorch.capture.placement import Placement, Tag
from poptorch.capture.session import Body, Session
from poptorch.capture.text.outside import line_of
from poptorch.capture.values import constants

_numbers = itertools.count()
_PRINT = "poptorch::print_tensor"
_CPU_GRADIENT = "poptorch::cpu_gradient"
# They compute nothing, so it does not matter where they are.
_COPIES = (torch.ops.aten.clone, torch.ops.aten._to_copy, torch.ops.aten.detach)


class BodyCall(NamedTuple):
    """A body that is to be traced.

    Attributes:
        op: the function of poptorch that the user called, for messages.
        where: the line of that call.
        inputs: what the body is called with.
        required: which of them require a gradient.
        check: turns what the body returns into a list of tensors.
    """

    op: str
    where: Where
    function: Callable[..., Any]
    inputs: Sequence[Tensor]
    required: Sequence[bool]
    check: Callable[[Any], list[Tensor]]


class TracedBody:
    """A traced body.

    Attributes:
        inputs: stand-ins of its inputs.
        lifted: what it uses from outside.
        written: those of them that it writes to.
        outs: fakes of its results, without those that are written.
        place: where its ops run.
        has_ops: whether it has any.
        origin: a number of its own.
    """

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.lifted: list[Lifted] = []
        self.written: list[Lifted] = []
        self.outs: list[Tensor] = []
        self.place = placement.current_placement()
        self.has_ops = False
        self.origin = next(_numbers)
        self.module: torch.fx.GraphModule
        self._node_of: dict[int, Node] = {}  # id of an input -> its placeholder
        self._results: list[Node] = []
        self._final: dict[int, Node] = {}  # id of a leaf that is written to -> its last value

    def node_of(self, tensor: Tensor) -> Node | None:
        """The placeholder of an input; None if nothing uses it."""
        return self._node_of.get(id(tensor))

    def result(self, index: int) -> Node:
        """What the traced function returned as result `index`."""
        return self._results[index]

    def final(self, lifted: Lifted) -> Node:
        """The last value of a tensor from outside that is written to."""
        return self._final[id(lifted.leaf)]


def trace_body(
    session: Session,
    call: BodyCall,
    grad: bool,
    more: "Callable[[TracedBody, Lifter], list[Tensor]] | None" = None,
) -> TracedBody:
    """Traces a body once.

    Args:
        session: of the capture.
        call: the body.
        grad: whether its inputs get gradients.
        more: is called when the body has run, under the same trace; its tensors are results after
            those of the body.
    """
    unknown: list[Tensor] = []
    graded: list[Tensor] = []
    while True:
        traced = _trace(session, call, grad, more, unknown, graded)
        changed = [found.outer for found in traced.written]
        again = [t for t in changed if constants.is_noted(t) and not _is_in(t, unknown)]
        late = [f.outer for f in traced.written if f.given.requires_grad and not f.graded]
        if not again and not late:
            return traced
        # What it writes has other values in later turns, and gradients that come from them.
        unknown += again
        graded += late


def plain(tensor: Tensor) -> Tensor:
    """A fake for its shape and type alone, which no trace sees."""
    return private.without_modes(tensor.detach)


def _is_in(tensor: Tensor, tensors: Iterable[Tensor]) -> bool:
    return any(t is tensor for t in tensors)


def _trace(
    session: Session,
    call: BodyCall,
    grad: bool,
    more: Callable[[TracedBody, Lifter], list[Tensor]] | None,
    unknown: list[Tensor],
    graded: list[Tensor],
) -> TracedBody:
    fake_mode = private.current_fake_mode()
    around = [*(lifter.around[-1] for lifter in session.lifters), private.running_tracer()]
    lifter = Lifter(fake_mode, around, grad, unknown, graded)
    traced = TracedBody()
    traced.inputs = private.without_modes(
        lambda: [lifter.fresh(t, grad and t.is_floating_point()) for t in call.inputs]
    )

    def joint(*leaves: Tensor) -> list[Tensor]:
        given = [leaf.clone() if leaf.requires_grad else leaf for leaf in leaves]
        with lifter, lifter.functions():
            outs = call.check(call.function(*given))
            outs = [lifter.lift(t) for t in outs]
            outs = [t if isinstance(t, private.FakeTensor) else t.clone() for t in outs]
            traced.outs, traced.lifted = outs, lifter.found
            traced.written = [f for f in lifter.found if f.given._version]
            extra = [] if more is None else more(traced, lifter)
        finals = [f.given for f in traced.written]
        return [*outs, *finals, *extra]

    session.lifters.append(lifter)
    try:
        module = private.trace(joint, traced.inputs, TABLE)
    finally:
        session.lifters.pop()
    inputs = _lift_constants(module, call, traced, around)
    pure, final = private.without_modes(lambda: _pure(module, inputs, fake_mode))
    nodes = [n for n in pure.graph.nodes if n.op == "placeholder"]
    traced.module = pure
    traced._node_of = {id(t): n for t, n in zip(inputs, nodes, strict=True)}
    results = list(next(n for n in pure.graph.nodes if n.op == "output").args[0])
    begin, end = len(traced.outs), len(traced.outs) + len(traced.written)
    traced._results = results[:begin] + results[end:]
    traced._final = {
        id(f.leaf): node for f, node in zip(traced.written, results[begin:end], strict=True)
    }
    for f in traced.lifted:  # written without autograd's knowledge
        node = traced.node_of(f.leaf)
        if node in final and id(f.leaf) not in traced._final:
            traced._final[id(f.leaf)] = final[node]
            traced.written.append(f)
    for node in pure.graph.nodes:
        if _is_op(node, _CPU_GRADIENT):
            raise errors.make_error(
                f"poptorch.CPU has no gradient in the body of {call.op}: give it detached inputs, "
                "or call it outside.",
                line_of(node),
            )
        if node.op == "call_function":
            node.meta["draw"] = next(_numbers)  # the same in forward and backward
    place = _place(pure.graph, call)
    if place is not None:
        traced.place, traced.has_ops = place, True
    return traced


def _pure(
    module: torch.fx.GraphModule, inputs: list[Tensor], fake_mode: private.FakeTensorMode
) -> tuple[torch.fx.GraphModule, dict[Node, Node]]:
    with fake_mode, torch._C.DisableTorchFunction():
        return mutations.make_pure(module, [t.detach() for t in inputs], TABLE)


def _lift_constants(
    module: torch.fx.GraphModule,
    call: BodyCall,
    traced: TracedBody,
    around: list[private.Tracer],
) -> list[Tensor]:
    """Fakes that the trace took for constants become inputs; returns all inputs in order."""
    graph = module.graph
    last = next((n for n in reversed(graph.nodes) if n.op == "placeholder"), None)
    inputs = list(traced.inputs)
    known = {id(f.leaf): f for f in traced.lifted}
    node_of: dict[int, Node] = {}
    for node in [n for n in graph.nodes if n.op == "get_attr"]:
        tensor = getattr(module, str(node.target))
        if not isinstance(tensor, private.FakeTensor):
            if any(mutations.in_place_op(u) and u.args[0] is node for u in node.users):
                raise errors.make_error(
                    f"The body of {call.op} changes a tensor in place that is neither an input nor "
                    "a buffer of the model: it is a constant of the program. Use register_buffer.",
                    line_of(next(iter(node.users))),
                )
            continue
        if id(tensor) not in known and not _is_in_trackers(tensor, around, traced):
            raise errors.make_error(
                f"The body of {call.op} uses a tensor that was made in another body: only what a "
                "body returns can be used outside of it.",
                line_of(next(iter(node.users), node)),
            )
        if id(tensor) not in node_of:
            with graph.inserting_before(None) if last is None else graph.inserting_after(last):
                last = graph.placeholder(f"lifted_{len(inputs)}")
            last.meta["val"] = plain(tensor)
            node_of[id(tensor)] = last
            inputs.append(tensor)
        node.replace_all_uses_with(node_of[id(tensor)])
        graph.erase_node(node)
    return inputs


def _is_in_trackers(tensor: Tensor, around: list[private.Tracer], traced: TracedBody) -> bool:
    """Whether a tensor that no call of Python showed us is from outside, or ours."""
    if getattr(tensor, "_tessera_input", False):
        return True  # a gradient that backward begins with
    if any(tensor in tracer.tensor_tracker for tracer in around):
        traced.lifted.append(Lifted(tensor, tensor))
        return True
    return False


def _place(graph: torch.fx.Graph, call: BodyCall) -> Placement | None:
    """Where the ops of a body run, which is on one IPU; None if it has none."""
    found: dict[tuple[int, int, int], tuple[Placement, Node]] = {}
    for node in graph.nodes:
        tag = (node.meta.get("custom") or {}).get("tag")
        if tag is None or tag.backward or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target.overloadpacket in _COPIES or mutations.is_view(node.target):
            continue
        place = Placement(tag.ipu, tag.stage, tag.phase, tag.block)
        found.setdefault(place[:3], (place, node))
    if len(found) > 1:
        _, node = list(found.values())[1]
        raise errors.make_error(
            f"The body of {call.op} has ops on more than one IPU, stage or phase. Its ops run "
            "together: begin the block before the loop or branch, or split the body.",
            line_of(node),
        )
    return next(iter(found.values()))[0] if found else None


# Gradients ----------------------------------------------------------------------------------------


def reached_leaves(outs: Iterable[Tensor]) -> set[int]:
    """Ids of the leaves of autograd that tensors are computed from."""
    leaves: set[int] = set()
    seen: set[GradNode] = set()
    todo: list[GradNode | None] = []
    for out in outs:
        if out.requires_grad and out.grad_fn is None:
            leaves.add(id(out))
        todo.append(out.grad_fn)
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        todo += [n for n, _ in node.next_functions]
    return leaves


def check_leaves(reached: set[int], traced: TracedBody, call: BodyCall) -> None:
    """Raises if a gradient would leave the body by a way that is not an input of it."""
    own = {id(t) for t in (*traced.inputs, *(f.leaf for f in traced.lifted))}
    if not reached <= own:
        raise errors.make_error(
            f"The body of {call.op} uses a parameter, or something computed from one, in a way "
            "that its gradient cannot be followed. Pass it to the body as an input.",
            call.where,
        )


@contextlib.contextmanager
def in_backward(session: Session, call: BodyCall) -> Iterator[None]:
    """Ops recorded in here belong to the gradient of a body."""
    before = session.in_forward, session.in_backward, session.last_tag
    session.in_forward, session.in_backward = False, True
    ipu, stage, phase, block = placement.current_placement()
    session.last_tag = Tag(*call.where, "", True, ipu, stage, phase, block)
    try:
        with torch.enable_grad(), torch.autograd.set_detect_anomaly(False):
            yield
    finally:
        session.in_forward, session.in_backward, session.last_tag = before


def gradients(
    outs: Sequence[Tensor], seeds: Sequence[Tensor], wanted: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """The gradients of `wanted` inputs of a body for gradients `seeds` of its results `outs`."""
    if not outs or not wanted:
        return [None] * len(wanted)
    return torch.autograd.grad(outs, wanted, seeds, allow_unused=True)


def seed_like(lifter: Lifter, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A new input of backward in the form of a tensor."""

    def make() -> Tensor:
        dense = tensor.detach()
        made = lifter.fresh(dense, False, dtype)
        if not made.is_contiguous():
            made = lifter.dense(dense, dtype)
        made._tessera_input = True  # type: ignore[attr-defined]  # tensors take attributes
        return made

    return private.without_modes(make)


def settled(tensor: Tensor) -> Tensor:
    """A tensor for backward, as it is now: others may be written to before backward reads them."""
    return tensor if tensor.is_leaf and tensor.requires_grad else tensor.clone()


# Graphs -------------------------------------------------------------------------------------------

Output = Node | Tensor | tuple[torch.dtype, tuple[int, ...]]


def make_body(
    session: Session,
    traced: TracedBody,
    inputs: Sequence[Tensor],
    outputs: Sequence[Output],
    backward: bool = False,
) -> tuple[int, list[bool]]:
    """Cuts a graph out of a trace.

    Args:
        session: keeps it.
        traced: the trace.
        inputs: of the graph, in order; all that it reads must be among them.
        outputs: results of the trace, inputs, or types of zeros.
        backward: whether it computes the body again, and prints nothing.

    Returns:
        Its number, and whether it uses each input.
    """
    graph = torch.fx.Graph()
    made: dict[Node, Node] = {}
    direct: dict[int, Node] = {}
    for i, tensor in enumerate(inputs):
        new = graph.placeholder(f"in_{i}")
        new.meta["val"] = plain(tensor)
        direct[id(tensor)] = new
        node = traced.node_of(tensor)
        if node is not None:
            made[node] = new
    wanted = [o if isinstance(o, (Node, Tensor)) else None for o in outputs]
    live = _live(traced.module.graph, [o for o in wanted if isinstance(o, Node)])
    for node in traced.module.graph.nodes:
        if node not in live or node in made:
            continue
        assert node.op != "placeholder", f"{node} is no input of the body"
        if backward and _is_print(node):
            source = node.args[0]
            assert isinstance(source, Node)
            made[node] = made[source]
        else:
            made[node] = graph.node_copy(node, made.__getitem__)
    results = [
        made[o]
        if isinstance(o, Node)
        else direct[id(o)]
        if isinstance(o, Tensor)
        else _zeros(graph, o)
        for o in outputs
    ]
    graph.output(results)
    types = [(n.meta["val"].dtype, tuple(n.meta["val"].shape)) for n in results]
    session.bodies.append(Body(torch.fx.GraphModule(traced.module, graph), types, traced.origin))
    used = [bool(direct[id(t)].users) for t in inputs]
    return len(session.bodies) - 1, used


def _live(graph: torch.fx.Graph, roots: list[Node]) -> set[Node]:
    live = set(roots)
    for node in reversed(graph.nodes):
        if node in live:
            live.update(node.all_input_nodes)
    return live


def _is_op(node: Node, name: str) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.name() == name


def _is_print(node: Node) -> bool:
    if not _is_op(node, _PRINT):
        return False
    tag = (node.meta.get("custom") or {}).get("tag")
    return tag is None or not tag.backward


def _zeros(graph: torch.fx.Graph, kind: tuple[torch.dtype, tuple[int, ...]]) -> Node:
    dtype, shape = kind
    node = graph.call_function(torch.ops.aten.full.default, (list(shape), 0), {"dtype": dtype})
    node.meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
    return node
