# SPDX-License-Identifier: Apache-2.0
"""Whether two captured integers differ by a constant, whatever the data: `i` and `i + 2` do."""

import operator
from typing import Any, NamedTuple

import torch
import torch.fx

from poptorch.capture import _torch_private as private
from poptorch.capture.values.replay import WrittenMemory

aten = torch.ops.aten

# On a tensor with one element these are the identity.
_SAME: set[Any] = {
    aten._to_copy,
    aten._unsafe_view,
    aten.alias,
    aten.clone,
    aten.detach,
    aten.expand,
    aten.lift_fresh_copy,
    aten.permute,
    aten.select,
    aten.squeeze,
    aten.unsqueeze,
    aten.view,
}
# Parts of larger tensors; two of the same part are equal.
_PARTS: set[Any] = {
    aten.alias,
    aten.detach,
    aten.select,
    aten.slice,
    aten.squeeze,
    aten.unbind,
    aten.unsqueeze,
    aten.view,
    operator.getitem,
}


class _Form(NamedTuple):
    """A sum of unknowns with their factors, and a constant."""

    terms: dict[Any, int]
    constant: int


class Differences:
    """Looks at how integers were made in the graph that is being recorded."""

    def __init__(self) -> None:
        self._written = WrittenMemory()

    def between(self, start: torch.Tensor, stop: torch.Tensor) -> int | None:
        """stop - start if it is the same for all data, else None."""
        tracer = private.running_tracer()
        written = self._written.of(tracer.graph)
        low, high = (_form(private.node_of(t, tracer), tracer, written) for t in (start, stop))
        return high.constant - low.constant if low.terms == high.terms else None


def _key(node: Any, written: set[int]) -> Any:
    """Equal for nodes that hold equal values: parts, and the same op on the same values."""
    if isinstance(node, (list, tuple)):
        return tuple(_key(n, written) for n in node)
    if not isinstance(node, torch.fx.Node) or not _is_fixed(node, written):
        return node
    if node.op != "call_function" or not (_is_part(node) or _is_number(node)):
        return node
    named = tuple((name, _key(value, written)) for name, value in node.kwargs.items())
    return node.target, _key(node.args, written), named


def _is_part(node: torch.fx.Node) -> bool:
    return getattr(node.target, "overloadpacket", node.target) in _PARTS


def _is_number(node: torch.fx.Node) -> bool:
    value = node.meta["val"]
    one = isinstance(value, torch.Tensor) and value.numel() == 1
    return (
        one
        and isinstance(node.target, torch._ops.OpOverload)
        and not (private.is_random(node.target))
    )


def _is_fixed(node: torch.fx.Node, written: set[int]) -> bool:
    """Whether nothing writes to the memory of a node, so that its value says how it was made."""
    value = node.meta.get("val")
    leaves = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(t, torch.Tensor) and private.storage_id(t) not in written for t in leaves)


def _scaled(form: _Form, factor: int) -> _Form:
    terms = {key: factor * n for key, n in form.terms.items() if factor}
    return _Form(terms, factor * form.constant)


def _added(a: _Form, b: _Form) -> _Form:
    keys = (*a.terms, *b.terms)
    terms = {key: a.terms.get(key, 0) + b.terms.get(key, 0) for key in keys}
    return _Form({key: n for key, n in terms.items() if n}, a.constant + b.constant)


def _form(node: Any, tracer: private.Tracer, written: set[int]) -> _Form:
    """A value as a sum of others."""
    if isinstance(node, int):
        return _Form({}, node)
    if not isinstance(node, torch.fx.Node):
        return _Form({node: 1}, 0)
    found = _sum_of(node, tracer, written) if _is_fixed(node, written) else None
    return _Form({_key(node, written): 1}, 0) if found is None else found


def _sum_of(node: torch.fx.Node, tracer: private.Tracer, written: set[int]) -> _Form | None:
    """The form of a node that only adds and multiplies integers, or None."""
    op = getattr(node.target, "overloadpacket", None)
    if node.op == "get_attr" or op is None or node.meta["val"].dtype.is_floating_point:
        return None
    operands: tuple[Any, ...] = node.args[:2]
    if op in _SAME:
        source = operands[0]
        if source.op == "get_attr":
            constant = getattr(tracer.root, source.target)
            if constant.numel() == 1 and not constant.dtype.is_floating_point:
                return _Form({}, private.without_modes(constant.item))
            return None
        value = source.meta["val"]
        if value.numel() != 1 or value.dtype.is_floating_point or value.dtype is torch.bool:
            return None
        return _form(source, tracer, written)
    if op is aten.neg:
        return _scaled(_form(operands[0], tracer, written), -1)
    if op not in (aten.add, aten.sub, aten.rsub, aten.mul) or len(operands) < 2:
        return None
    if any(isinstance(o, float) for o in operands):
        return None
    a, b = (_form(o, tracer, written) for o in operands)
    if op is aten.mul:
        if b.terms:
            a, b = b, a
        return None if b.terms else _scaled(a, b.constant)
    if op is aten.rsub:
        a, b = b, a
    alpha: Any = node.kwargs.get("alpha", 1)
    return _added(a, _scaled(b, alpha if op is aten.add else -alpha))
