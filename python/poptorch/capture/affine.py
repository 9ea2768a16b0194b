# SPDX-License-Identifier: Apache-2.0
"""Whether two captured integers differ by a constant, whatever the data: `i` and `i + 2` do."""

import operator
from typing import Any

import torch
import torch.fx

from . import _torch_private as private
from .replay import WrittenMemory

aten = torch.ops.aten

# Of a tensor with one element these are that element again.
_SAME = {
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
_PARTS = {aten.select, aten.slice, aten.view, aten.unbind, aten.squeeze, aten.unsqueeze, aten.alias}
_PARTS |= {aten.detach, operator.getitem}

_Form = tuple[dict[Any, int], int]  # sum of unknowns with their factors, and a constant


class Differences:
    """Looks at how integers were made in the graph that is being recorded."""

    def __init__(self) -> None:
        self._written = WrittenMemory()

    def between(self, start: torch.Tensor, stop: torch.Tensor) -> int | None:
        """stop - start if it is the same for all data, else None."""
        tracer = private.running_tracer()
        written = self._written.of(tracer.graph)
        low, high = (_form(private.node_of(t, tracer), tracer, written) for t in (start, stop))
        return high[1] - low[1] if low[0] == high[0] else None


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
    terms = {key: factor * n for key, n in form[0].items() if factor}
    return terms, factor * form[1]


def _added(a: _Form, b: _Form) -> _Form:
    terms = {key: a[0].get(key, 0) + b[0].get(key, 0) for key in (*a[0], *b[0])}
    return {key: n for key, n in terms.items() if n}, a[1] + b[1]


def _form(node: Any, tracer: Any, written: set[int]) -> _Form:
    """A value as a sum of others."""
    if isinstance(node, int):
        return {}, node
    if not isinstance(node, torch.fx.Node):
        return {node: 1}, 0
    found = _sum_of(node, tracer, written) if _is_fixed(node, written) else None
    return ({_key(node, written): 1}, 0) if found is None else found


def _sum_of(node: torch.fx.Node, tracer: Any, written: set[int]) -> _Form | None:
    """The form of a node that only adds and multiplies integers, or None."""
    op = getattr(node.target, "overloadpacket", None)
    if node.op == "get_attr" or op is None or node.meta["val"].dtype.is_floating_point:
        return None
    operands = node.args[:2]
    if op in _SAME:
        source = operands[0]
        if source.op == "get_attr":
            constant = getattr(tracer.root, source.target)
            if constant.numel() == 1 and not constant.dtype.is_floating_point:
                return {}, private.without_modes(constant.item)
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
        return _scaled(a, b[1]) if not b[0] else _scaled(b, a[1]) if not a[0] else None
    if op is aten.rsub:
        a, b = b, a
    alpha = node.kwargs.get("alpha", 1)
    return _added(a, _scaled(b, alpha if op is aten.add else -alpha))
