# SPDX-License-Identifier: Apache-2.0
"""Joint ATen graph -> ops: those with a lowering or a row are native, others are host calls."""

import functools
import inspect
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from poptorch.base.dtypes import NATIVE_DTYPES
from poptorch.capture._torch_private import without_modes
from poptorch.capture.errors import Where, make_error
from poptorch.capture.lower.table import TABLE, Lowering, Results, memory_order
from poptorch.capture.text.bodies import BodyText, BodyTrace, body_text
from poptorch.capture.text.forms import is_pointwise_call, is_structured_call
from poptorch.capture.text.outside import line_of, state_sharing_memory
from poptorch.capture.text.row import Row
from poptorch.capture.text.schema import schema_of
from poptorch.capture.text.value import MissingRow, Value
from poptorch.capture.text.writer import Record, Writer

if TYPE_CHECKING:
    from poptorch.capture.slots import StateSlot
    from poptorch.capture.trace import Traced

_Results = list[Value | None]


class NodeWriter:
    """Writes the ops of a traced graph, node by node."""

    def __init__(self, traced: "Traced | BodyTrace", rows: Mapping[str, Row]) -> None:
        self.traced = traced
        self.graph = traced.gm.graph
        self.w = Writer(rows)
        self.w.first_stream = traced.streams + 1
        self.w.body = self._body
        self.rows = rows
        self.values: dict[torch.fx.Node, Value | _Results | None] = {}
        self.host_records: dict[Record, tuple[str, Where]] = {}  # -> (target, user's line)
        self.folded: list[torch.Tensor] = []
        # attention mask -> "none", "causal" or None
        self.masks: dict[torch.fx.Node, str | None] = {}
        self.takes_statistics = False  # the op being written
        # nodes that no input or state reaches and that are not random
        self.static: set[torch.fx.Node] = set()
        self.states: list[tuple[StateSlot, Value]] = []
        self.followed: set[torch.fx.Node] = set()  # constants that are states after all
        # factorisation -> name of the function that must fail if it does
        self.checks: dict[torch.fx.Node, str] = {}

    def value(self, node: torch.fx.Node) -> Any:
        """The Value of a node, or the list of them if it has several results."""
        found = self.values[node]
        return found[0] if isinstance(found, list) and len(found) == 1 else found

    def argument(self, x: Any) -> Any:
        """An argument of a node, values in place of nodes."""
        if isinstance(x, torch.fx.Node):
            return self._as_stated(self.value(x), x)
        if isinstance(x, (list, tuple)):
            return [self.argument(v) for v in x]
        return x

    def _as_stated(self, value: Any, node: torch.fx.Node) -> Any:
        """A value in the type that PyTorch says it has.

        Statistics of norms are kept wider, but only for the gradients of norms.
        """
        if not isinstance(value, Value) or self.takes_statistics:
            return value
        stated = node.meta.get("val")
        return self.w.cast(value, stated.dtype) if isinstance(stated, torch.Tensor) else value

    def bind(self, node: torch.fx.Node) -> list[Any]:
        """Arguments in schema order, keyword-only ones last, defaults filled in."""
        target = _op_of(node)
        base = target.name().partition(".")[0]
        self.takes_statistics = "_norm" in base or base in _ANY_DTYPE
        names, defaults, converters = schema_of(target)
        out = []
        for i, name in enumerate(names):
            if i < len(node.args):
                x = node.args[i]
            elif name in node.kwargs:
                x = node.kwargs[name]
            else:
                x = defaults[i]
            out.append(converters[i](self.argument(x)))
        return out

    def _body(self, number: int) -> BodyText:
        """Writes the body of a loop or branch."""
        body = self.traced.bodies[number]
        inner = NodeWriter(
            BodyTrace(body.module, self.traced.bodies, self.traced.streams, {}), self.rows
        )
        inner.w.streams_of = self.w.streams_of
        inputs = []
        for node in inner.graph.nodes:
            if node.op == "placeholder":
                val = node.meta["val"]
                inner.values[node] = inner.w.source("input", "", val.dtype, val.shape)
                inputs.append(inner.value(node))
        inner.run()
        inner.w.tag = None
        inner.takes_statistics = False
        last = next(n for n in inner.graph.nodes if n.op == "output")
        outputs = [inner.argument(r) for r in last.args[0]]
        self.host_records.update(inner.host_records)
        return body_text(inner.w, inputs, outputs, body.origin)

    def run(self) -> None:
        """Writes all nodes that the results need."""
        live = self._live_nodes()
        for node in self.graph.nodes:
            if node.target is torch.ops.aten._linalg_check_errors.default:
                info, name = node.args[:2]
                assert isinstance(info, torch.fx.Node)
                if isinstance(info.args[0], torch.fx.Node):
                    self.checks[info.args[0]] = str(name)
        for node in self.graph.nodes:
            if node.op == "get_attr":
                found = attribute(self.traced.gm, node)
                written = [self.values[n] for n in self.traced.written]
                state = state_sharing_memory(found, node, self.states, written)
                self.values[node] = self.w.constant(found) if state is None else state
                if state is not None:
                    self.followed.add(node)
            elif node.op == "call_function" and node in live:
                self._node(node)

    def _live_nodes(self) -> set[torch.fx.Node]:
        live: set[torch.fx.Node] = set()
        roots = list(self.traced.written.values())
        for node in reversed(self.graph.nodes):
            if node.op == "output":
                roots += node.all_input_nodes
        live.update(roots)
        for node in reversed(self.graph.nodes):
            if node in live:
                live.update(node.all_input_nodes)
        return live

    def _is_static(self, node: torch.fx.Node) -> bool:
        target = _op_of(node)
        if torch.Tag.nondeterministic_seeded in target.tags:
            return False
        if target.namespace == "poptorch":  # printed in each run
            return False
        return all(
            a in self.static or (a.op == "get_attr" and a not in self.followed)
            for a in node.all_input_nodes
        )

    def _folded(self, node: torch.fx.Node, n: Results) -> _Results | None:
        """Results of an op on constants, computed now instead of by a host call in every step."""
        vals = [v for v in n.vals if v is not None]
        if node not in self.static or len(vals) < len(n.vals):
            return None
        if sum(v.numel() for v in vals) > _FOLD_LIMIT:
            return None
        found = without_modes(lambda: _evaluate(self.traced.gm, node, {}))
        found = found if isinstance(found, (list, tuple)) else [found]
        self.folded += found  # constants are told apart by identity
        return [self.w.constant(t) for t in found]

    def _known_mask(self, node: torch.fx.Node, args: list[Any]) -> None:
        """Drops a constant mask that masks nothing, or is the causal one, which is cheaper."""
        positions = _MASK_ARGUMENTS.get(_op_of(node).name())
        if positions is None:
            return
        mask_at, causal_at = positions
        mask = node.args[mask_at]
        if not isinstance(mask, torch.fx.Node):
            return
        if mask not in self.masks:
            self.masks[mask] = None
            known = mask in self.static and mask.meta["val"].dtype is torch.bool
            if known and mask.meta["val"].numel() <= _MASK_LIMIT:
                value = without_modes(lambda: _evaluate(self.traced.gm, mask, {}))
                causal = torch.ones(value.shape[-2:], dtype=torch.bool).tril()
                if bool(value.all()):
                    self.masks[mask] = "none"
                elif bool((value == causal).all()):
                    self.masks[mask] = "causal"
        kind = self.masks[mask]
        # One row or column of a mask may broadcast to all.
        lengths = tuple(args[mask_at - 3].shape[-2:-1]) + tuple(args[mask_at - 2].shape[-2:-1])
        if kind == "none" or (kind == "causal" and args[mask_at].shape[-2:] == lengths):
            args[mask_at] = None
            args[causal_at] = args[causal_at] or kind == "causal"

    def _node(self, node: torch.fx.Node) -> None:
        if node.target is operator.getitem:
            self._item(node)
            return
        target = _op_of(node)
        if self._is_static(node):
            self.static.add(node)
        custom = node.meta.get("custom") or {}
        self.w.tag = custom.get("tag")
        if "draw" in node.meta:
            self.w.draws_as(node.meta["draw"])
        val = node.meta.get("val")
        vals: list[torch.Tensor | None] = [*val] if isinstance(val, (list, tuple)) else [val]
        n = Results(vals, node, self.checks.get(node))
        if any(v is not None and v.layout != torch.strided for v in n.vals):
            raise make_error(
                f"{target.name()} makes a sparse tensor, which cannot be compiled "
                "(for embeddings: leave sparse=False)",
                line_of(node),
            )
        args = self.bind(node)
        if target.namespace == "tessera":
            self._known_mask(node, args)
        if target.name().startswith("aten::as_strided"):
            self._as_in_memory(node, n, args)
        results = self._lowered(node, n, args)
        if results is None:
            results = self._folded(node, n) or self._host_call(node, n, args)
        self.values[node] = results if isinstance(val, (list, tuple)) else results[0]

    def _item(self, node: torch.fx.Node) -> None:
        """One of several results."""
        source, index = node.args
        assert isinstance(source, torch.fx.Node) and isinstance(index, int)
        if source in self.static:
            self.static.add(node)
        values = self.values[source]
        self.values[node] = values[index] if isinstance(values, list) else values

    def _as_in_memory(self, node: torch.fx.Node, n: Results, args: list[Any]) -> None:
        """as_strided sees memory: puts its tensor in the order of memory.

        Its offset becomes one from the first element of the tensor.
        """
        x = n.first_argument()
        order = memory_order(x)
        offset = 0 if args[-1] is None else args[-1] - x.storage_offset()
        if not x.permute(order).is_contiguous() or offset < 0:
            raise make_error("as_strided on a tensor that is not contiguous", line_of(node))
        if not x.is_contiguous():
            args[0] = self.w.permute(args[0], order)
        args[-1] = offset

    def _lowered(self, node: torch.fx.Node, n: Results, args: list[Any]) -> _Results | None:
        """The results by a lowering or a row; None if there is none for these arguments."""
        name = _op_of(node).name()
        base = name.partition(".")[0]
        function = TABLE.get(name) or TABLE.get(base)
        if not _all_native(args) or any(
            v is not None and v.dtype not in NATIVE_DTYPES for v in n.vals
        ):
            if base in _WITH_BODIES:
                raise make_error(
                    "Complex tensors cannot go into or out of the body of poptorch.for_loop or "
                    "poptorch.cond: pass torch.view_as_real(x).",
                    line_of(node),
                )
            if base not in _ANY_DTYPE and base not in _VIEWS:
                return None
        mark, constants = len(self.w.records), dict(self.w.constants)
        try:
            if function is not None and _takes(function, len(args)):
                found = function(self.w, n, *args)
            else:
                found = self._row_of_its_own(name, base, n, args)
        except MissingRow:
            del self.w.records[mark:]
            self.w.constants = constants
            return None
        results: _Results = [*found] if isinstance(found, list) else [found]
        for result, val in zip(results, n.vals, strict=True):
            if result is None or val is None:
                continue
            if result.shape == tuple(val.shape) and _is_statistic(base, result, results):
                continue
            if base in _ANY_DTYPE and result is args[0]:
                continue  # a statistic that autograd saves
            if result.dtype is not val.dtype or result.shape != tuple(val.shape):
                raise AssertionError(
                    f"{name} lowered to {result!r} instead of {val.dtype} {tuple(val.shape)}"
                )
        return results

    def _row_of_its_own(
        self, name: str, base: str, n: Results, args: list[Any]
    ) -> Value | list[Value]:
        """An ATen op that is a row of the same name, called in a form that the row knows."""
        for text in (name, base):
            row = self.rows.get(text.removeprefix("aten::"))
            if row is None or not name.startswith("aten::"):
                continue
            if row.kind != "pointwise":
                if is_structured_call(row, args):
                    return list(self.w.ops(row.name, args, n.types()))
            elif is_pointwise_call(row, args, n.dtype):
                # The result has the type that is computed in, but for comparisons.
                compute = None if row.rule == "bool" else n.dtype
                return self.w.pointwise(row.name, *args, compute=compute)
        raise MissingRow(name)

    def _host_call(self, node: torch.fx.Node, n: Results, args: list[Any]) -> _Results:
        target = _op_of(node)
        name = target.name()
        full = name if "." in name else f"{name}.default"
        types = [(v.dtype, tuple(v.shape)) for v in n.vals if v is not None]
        if n.check is not None:
            names = schema_of(target).names
            if "check_errors" in names:
                args[names.index("check_errors")] = True
        if torch.Tag.nondeterministic_seeded in target.tags:
            args = [*args, self.w.rng(), self.w.next_stream()]  # seeds torch's generator
        made = iter(self.w.host_call(full, args, types))
        self.host_records[self.w.records[-1]] = (full, line_of(node))
        return [None if v is None else next(made) for v in n.vals]


@functools.cache
def _takes(function: Lowering, count: int) -> bool:
    """Whether a lowering can be called with so many arguments of an ATen op."""
    try:
        inspect.signature(function).bind(None, None, *[None] * count)
    except TypeError:
        return False
    return True


def _is_statistic(base: str, result: Value, results: Sequence[Value | None]) -> bool:
    """Saved statistics of a normalisation are float32 here and only its gradient reads them."""
    return "_norm" in base and result is not results[0] and result.dtype is torch.float32


_WITH_BODIES = {"tessera::scan", "tessera::while_loop", "tessera::branch"}
_FOLD_LIMIT = 1 << 20  # elements
_MASK_LIMIT = 1 << 26
_MASK_ARGUMENTS = {"tessera::sdpa": (3, 6), "tessera::sdpa_backward": (4, 9)}  # mask, is_causal


def _evaluate(
    module: torch.fx.GraphModule, node: torch.fx.Node, memo: dict[torch.fx.Node, Any]
) -> Any:
    """The real value of a node that depends on constants only."""
    if node in memo:
        return memo[node]
    if node.op == "get_attr":
        value = attribute(module, node)
    else:
        args, kwargs = torch.fx.map_arg(
            (node.args, node.kwargs), lambda a: _evaluate(module, a, memo)
        )
        with torch.no_grad():
            assert callable(node.target)
            value = node.target(*args, **kwargs)
    memo[node] = value
    return value


# Ops that only hand a value on may do so for any type.
_ANY_DTYPE = {"aten::alias", "aten::detach", "aten::lift_fresh", "tessera::mark_loss"}
# So may views.
_VIEWS = {
    "aten::_unsafe_view",
    "aten::expand",
    "aten::permute",
    "aten::select",
    "aten::slice",
    "aten::squeeze",
    "aten::t",
    "aten::transpose",
    "aten::unsqueeze",
    "aten::view",
}


def _all_native(args: Sequence[Any]) -> bool:
    for a in args:
        if isinstance(a, Value):
            if a.dtype not in NATIVE_DTYPES and a.literal is None:
                return False
        elif isinstance(a, list) and not _all_native(a):
            return False
        elif isinstance(a, complex):
            return False
    return True


def attribute(module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.Tensor:
    """The constant that a get_attr node stands for."""
    found: Any = functools.reduce(getattr, str(node.target).split("."), module)
    return found.detach() if isinstance(found, torch.nn.Parameter) else found


def _op_of(node: torch.fx.Node) -> torch._ops.OpOverload:
    if not isinstance(node.target, torch._ops.OpOverload):
        raise make_error(f"{node.target} cannot be captured", line_of(node))
    return node.target
