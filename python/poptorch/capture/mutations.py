# SPDX-License-Identifier: Apache-2.0
"""In-place ops of a captured graph become pure ones.

Most in-place code (running statistics, in-place activations) writes a whole tensor that has no
other view in use: that is rewritten here at no cost. Anything else is traced a second time
through torch's functionalization.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from poptorch.capture import _torch_private as private

_IDENTITY = {"aten::detach", "aten::alias", "aten::lift_fresh", "aten::detach_"}
_FUNCTIONAL: dict[str, str | None] = {
    "aten::bernoulli_.float": "bernoulli.p",
    "aten::bernoulli_.Tensor": "bernoulli.Tensor",
    "aten::normal_": "normal_functional.default",
    "aten::random_.from": "random.from",
    "aten::random_.to": "random.to",
    "aten::set_.source_Tensor": None,
}


def in_place_op(node: Node) -> torch._ops.OpOverload | None:
    """The op of a node if it writes to one of its arguments, or None."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return None
    return target if target._schema.is_mutable and target.name() != "aten::detach_" else None


def _functional_of(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The pure overload of an in-place op on its first argument, or None."""
    name = target.name()
    arguments = target._schema.arguments
    writes = [i for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]
    if writes != [0] or not name.startswith("aten::"):
        return None
    if name in _FUNCTIONAL:
        pure = _FUNCTIONAL[name]
    else:
        base, _, overload = name.removeprefix("aten::").partition(".")
        if not base.endswith("_"):
            return None
        pure = f"{base[:-1]}.{overload or 'default'}"
    if pure is None:
        return None
    base, _, overload = pure.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload, None) if packet is not None else None


def is_view(target: torch._ops.OpOverload) -> bool:
    return any(r.alias_info and not r.alias_info.is_write for r in target._schema.returns)


def _arguments_for(
    pure: torch._ops.OpOverload, op: torch._ops.OpOverload, node: Node
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a node for the pure form of its op, whose defaults may be others."""
    given: dict[str, Any] = dict(node.kwargs)
    for i, argument in enumerate(op._schema.arguments):
        if i < len(node.args):
            given[argument.name] = node.args[i]
        elif argument.has_default_value():
            given.setdefault(argument.name, argument.default_value)
    arguments = pure._schema.arguments
    args = tuple(given.get(a.name) for a in arguments if not a.kwarg_only)
    kwargs = {a.name: given[a.name] for a in arguments if a.kwarg_only and a.name in given}
    return args, kwargs


class _Memory:
    """Who owns the memory of each node, and which node holds its present value."""

    def __init__(self) -> None:
        self.present: dict[Node, Node] = {}  # owner -> node holding its present value
        self.parts: set[Node] = set()  # views of part of an owner, or under another shape
        self._owner: dict[Node, Node] = {}  # of identities and views
        self._views: dict[Node, list[Node]] = {}  # owner -> its parts

    def owner_of(self, node: Node) -> Node:
        return self._owner.get(node, node)

    def views_of(self, owner: Node) -> list[Node]:
        return self._views.get(owner, [])

    def resolve(self, node: Node) -> Node:
        """The node to use in place of one whose memory may have been written to."""
        return node if node in self.parts else self.present.get(self.owner_of(node), node)

    def add_identity(self, node: Node, source: Node) -> None:
        self._owner[node] = self.owner_of(source)
        if source in self.parts:
            self.add_part(node, source)

    def add_part(self, node: Node, source: Node) -> None:
        owner = self._owner[node] = self.owner_of(source)
        self._views.setdefault(owner, []).append(node)
        self.parts.add(node)

    def write(self, owner: Node, node: Node, new: Node) -> None:
        """`node` wrote to the owner's memory; `new` computes what it holds then."""
        self.present[owner] = new
        self._owner[new] = self._owner[node] = owner
        self._views.pop(owner, None)


def rewrite_simple(graph: torch.fx.Graph) -> dict[Node, Node] | None:
    """Replaces in-place ops on whole tensors.

    Returns {placeholder: node with its final value}, or None if there are other in-place ops.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    last_use = {n: max((order[u] for u in n.users), default=-1) for n in graph.nodes}
    memory = _Memory()
    for node in list(graph.nodes):
        if node.op not in ("call_function", "output"):
            continue
        if memory.present:
            node.args = torch.fx.map_arg(node.args, memory.resolve)
            node.kwargs = torch.fx.map_arg(node.kwargs, memory.resolve)
        if node.op == "output":
            break
        op, source = in_place_op(node), node.args[0] if node.args else None
        if not isinstance(source, Node):
            if op is not None:
                return None
            continue
        if node.target is operator.getitem:
            if source in memory.parts:
                memory.add_part(node, source)
        elif op is not None:
            pure = _functional_of(op)
            # After a rewrite `resolve` has put the present value in place of the owner.
            owners = (o for o, present in memory.present.items() if present is source)
            owner = next(owners, memory.owner_of(source))
            if pure is None or source in memory.parts:
                return None
            if any(last_use[v] > order[node] for v in memory.views_of(owner)):
                return None
            with graph.inserting_before(node):
                new = graph.call_function(pure, *_arguments_for(pure, op, node))
            new.meta = dict(node.meta)
            order[new], last_use[new] = order[node], last_use[node]
            memory.write(owner, node, new)
        elif isinstance(node.target, torch._ops.OpOverload):
            if node.target.name() in _IDENTITY:
                memory.add_identity(node, source)
            elif is_view(node.target):
                memory.add_part(node, source)
    for node in reversed(list(graph.nodes)):
        if in_place_op(node) is not None:
            graph.erase_node(node)
    return {p: v for p, v in memory.present.items() if p.op == "placeholder"}


def make_pure(
    gm: torch.fx.GraphModule,
    fakes: Sequence[torch.Tensor],
    decompositions: private.Decompositions,
) -> tuple[torch.fx.GraphModule, dict[Node, Node]]:
    """(graph module without in-place ops, {placeholder: node with its final value})."""
    if all(in_place_op(n) is None for n in gm.graph.nodes):
        return gm, {}
    untouched = torch.fx.Graph()
    untouched.output(untouched.graph_copy(gm.graph, {}))  # the rewrite may give up half-way
    written = rewrite_simple(gm.graph)
    if written is not None:
        return gm, written
    untouched_gm = torch.fx.GraphModule(gm, untouched)
    run = torch.func.functionalize(
        lambda *ts: torch.fx.Interpreter(untouched_gm).run(*ts), remove="mutations"
    )
    with torch.no_grad():
        gm = private.trace(run, [t.detach() for t in fakes], decompositions)
    written = rewrite_simple(gm.graph)
    if written is None:
        left = sorted({op.name() for op in map(in_place_op, gm.graph.nodes) if op is not None})
        raise NotImplementedError(f"in-place operations that capture cannot make pure: {left}")
    return gm, written
