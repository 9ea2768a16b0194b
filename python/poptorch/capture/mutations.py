# SPDX-License-Identifier: Apache-2.0
"""In-place ops of a captured graph become pure ones.

Most in-place code (running statistics, in-place activations) touches a whole tensor that has no
other view in use: those are rewritten here at no cost. Anything else is traced a second time
through torch's functionalization.
"""

import operator

import torch
import torch.fx

from . import _torch_private as private

_IDENTITY = {"aten::detach", "aten::alias", "aten::lift_fresh", "aten::detach_"}
_FUNCTIONAL = {
    "aten::bernoulli_.float": "bernoulli.p",
    "aten::bernoulli_.Tensor": "bernoulli.Tensor",
    "aten::normal_": "normal_functional.default",
    "aten::random_.from": "random.from",
    "aten::random_.to": "random.to",
    "aten::set_.source_Tensor": None,
}


def is_mutable(node):
    """Whether a node writes to one of its arguments."""
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target._schema.is_mutable
        and node.target.name() != "aten::detach_"
    )


def _functional_of(target):
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


def _is_view(node):
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return any(r.alias_info and not r.alias_info.is_write for r in node.target._schema.returns)


def _arguments_for(pure, node):
    """(args, kwargs) of a node for the pure form of its op, whose defaults may be others."""
    given = dict(node.kwargs)
    for i, argument in enumerate(node.target._schema.arguments):
        if i < len(node.args):
            given[argument.name] = node.args[i]
        elif argument.has_default_value():
            given.setdefault(argument.name, argument.default_value)
    arguments = pure._schema.arguments
    args = tuple(given.get(a.name) for a in arguments if not a.kwarg_only)
    kwargs = {a.name: given[a.name] for a in arguments if a.kwarg_only and a.name in given}
    return args, kwargs


def rewrite_simple(graph):
    """Replaces in-place ops on whole tensors. Returns {placeholder: its final node}, or None if it
    cannot."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    last_use = {n: max((order[u] for u in n.users), default=-1) for n in graph.nodes}
    base = {}  # node -> node that owns its memory, for identities and for views
    views = {}  # owner -> views of part of it, or under another shape
    current = {}  # owner -> node holding its present value

    def resolve(node):
        owner = base.get(node, node)
        return current.get(owner, node) if node not in view_set else node

    view_set = set()
    for node in list(graph.nodes):
        if node.op not in ("call_function", "output"):
            continue
        if current:
            node.args = torch.fx.map_arg(node.args, resolve)
            node.kwargs = torch.fx.map_arg(node.kwargs, resolve)
        if node.op == "output":
            break
        if node.target is operator.getitem:
            if node.args[0] in view_set:
                _add_view(node, node.args[0], base, views, view_set)
            continue
        if is_mutable(node):
            pure = _functional_of(node.target)
            target = node.args[0]
            # After a rewrite `resolve` has put the present value in place of the owner.
            owner = next((o for o, c in current.items() if c is target), base.get(target, target))
            if pure is None or target in view_set or not isinstance(target, torch.fx.Node):
                return None
            if any(last_use[v] > order[node] for v in views.get(owner, ())):
                return None
            with graph.inserting_before(node):
                new = graph.call_function(pure, *_arguments_for(pure, node))
            new.meta = dict(node.meta)
            order[new], last_use[new] = order[node], last_use[node]
            current[owner] = new
            base[new] = base[node] = owner
            views.pop(owner, None)
        elif isinstance(node.target, torch._ops.OpOverload) and node.args:
            if node.target.name() in _IDENTITY:
                source = node.args[0]
                base[node] = base.get(source, source)
                if source in view_set:
                    _add_view(node, source, base, views, view_set)
            elif _is_view(node) and isinstance(node.args[0], torch.fx.Node):
                _add_view(node, node.args[0], base, views, view_set)
    for node in reversed(list(graph.nodes)):
        if is_mutable(node):
            graph.erase_node(node)
    return {p: v for p, v in current.items() if p.op == "placeholder"}


def _add_view(node, source, base, views, view_set):
    owner = base.get(source, source)
    base[node] = owner
    views.setdefault(owner, []).append(node)
    view_set.add(node)


def make_pure(gm, fakes, decompositions):
    """(graph module without in-place ops, {placeholder: node with its final value})."""
    if not any(is_mutable(n) for n in gm.graph.nodes):
        return gm, {}
    untouched = torch.fx.Graph()
    untouched.output(untouched.graph_copy(gm.graph, {}))  # the rewrite may give up half-way
    written = rewrite_simple(gm.graph)
    if written is not None:
        return gm, written
    again = torch.fx.GraphModule(gm, untouched)
    run = torch.func.functionalize(
        lambda *ts: torch.fx.Interpreter(again).run(*ts), remove="mutations"
    )
    with torch.no_grad():
        gm = private.trace(run, [t.detach() for t in fakes], decompositions)
    written = rewrite_simple(gm.graph)
    if written is None:
        left = sorted({n.target.name() for n in gm.graph.nodes if is_mutable(n)})
        raise NotImplementedError(f"in-place operations that capture cannot make pure: {left}")
    return gm, written
