# SPDX-License-Identifier: Apache-2.0
"""Joint ATen graph -> text IR: ops with a lowering or a row are native, others are host calls."""

import operator

import torch

from . import (  # noqa: F401
    lower_activation,
    lower_index,
    lower_linalg,
    lower_loss,
    lower_pointwise,
    lower_random,
    lower_recurrent,
    lower_reduce,
    lower_shape,
    lower_sort,
    lower_spatial,
    lower_special,
    lower_structured,
)
from ._torch_private import without_modes
from .errors import make_error
from .lowering import TABLE, Types, memory_order
from .outside import line_of, state_behind, warn_of_parameters
from .placement import placed_ops
from .rows import RULES
from .writer import NATIVE_DTYPES, MissingRow, Value, Writer

_NO_TEXT = (torch.device, torch.layout, torch.memory_format, torch.Generator)


class Emitted:
    """What the text refers to."""

    def __init__(self, head, tail, writer, host_ops, locations):
        self.head = head
        self.tail = tail
        self.constants = {c.name: c.tensor for c in writer.constants.values() if c.number >= 0}
        self.host_ops = host_ops
        self.locations = locations
        self.uses_rng = writer.uses_rng
        self.params = []  # (StateSlot, Value)
        self.buffers = []
        self.inputs = []  # Value per input
        self.outputs = []  # Value per output
        self.inputs_used = []
        self.input_writebacks = []  # (input index, output index)
        self.updated = []  # Value per state with an update
        self.loss_index = None
        self.loss = None
        self.placed, self.dead_blocks = [], {}


_schemas = {}


def _schema(target):
    """(argument names, defaults, converters) of an op, cached: reading a schema is slow."""
    found = _schemas.get(target)
    if found is None:
        arguments = target._schema.arguments
        names = [a.name for a in arguments]
        defaults = [a.default_value if a.has_default_value() else None for a in arguments]
        found = _schemas[target] = names, defaults, [_converter(a) for a in arguments]
    return found


def _converter(argument):
    kind = str(argument.real_type)
    if argument.name == "pin_memory":
        return lambda x: None
    if kind in ("float", "Optional[float]"):
        return lambda x: None if x is None else float(x)
    if kind in ("List[float]", "Optional[List[float]]"):
        return lambda x: None if x is None else [float(v) for v in x]
    return _plain


def _plain(x):
    if isinstance(x, _NO_TEXT):
        return None
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
    return x


class _Emitter:
    def __init__(self, traced, native_ops):
        self.traced = traced
        self.graph = traced.gm.graph
        self.w = Writer(native_ops)
        self.w.streams = traced.streams
        self.native_ops = native_ops
        self.values = {}
        self.host_records = {}  # record -> (target, (file, line))
        self.folded = []
        self.masks = {}  # attention mask -> "none", "causal" or None
        self.takes_statistics = False  # the op being written
        self.static = set()  # nodes that no input or state reaches and that are not random
        self.states = []  # (StateSlot, Value)
        self.followed = set()  # constants that are states after all
        self.checks = {}  # factorisation -> name of the function that must fail if it does

    def value(self, node):
        found = self.values[node]
        return found[0] if isinstance(found, list) and len(found) == 1 else found

    def argument(self, x):
        if isinstance(x, torch.fx.Node):
            return self._as_stated(self.value(x), x)
        if isinstance(x, (list, tuple)):
            return [self.argument(v) for v in x]
        return x

    def _as_stated(self, value, node):
        """A value in the type that PyTorch says it has. Statistics of norms are kept wider, but
        only for the gradients of norms."""
        if not isinstance(value, Value) or self.takes_statistics:
            return value
        stated = node.meta.get("val")
        return self.w.cast(value, stated.dtype) if isinstance(stated, torch.Tensor) else value

    def bind(self, node):
        """Arguments in schema order, keyword-only ones last, defaults filled in."""
        base = node.target.name().partition(".")[0]
        self.takes_statistics = "_norm" in base or base in _ANY_DTYPE
        names, defaults, converters = _schema(node.target)
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

    def run(self):
        live = self._live_nodes()
        for node in self.graph.nodes:
            if node.target is torch.ops.aten._linalg_check_errors.default:
                info, name = node.args[:2]
                self.checks[info.args[0]] = name
        for node in self.graph.nodes:
            if node.op == "get_attr":
                found = _attribute(self.traced.gm, node.target)
                written = [self.values[n] for n in self.traced.written]
                state = state_behind(found, node, self.states, written)
                self.values[node] = self.w.constant(found) if state is None else state
                if state is not None:
                    self.followed.add(node)
            elif node.op == "call_function" and node in live:
                self._node(node)

    def _live_nodes(self):
        live = set()
        roots = list(self.traced.written.values())
        for node in reversed(self.graph.nodes):
            if node.op == "output":
                roots += node.all_input_nodes
        live.update(roots)
        for node in reversed(self.graph.nodes):
            if node in live:
                live.update(node.all_input_nodes)
        return live

    def _is_static(self, node):
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            return False
        if node.target.namespace == "poptorch":  # printed in each run
            return False
        return all(
            a in self.static or (a.op == "get_attr" and a not in self.followed)
            for a in node.all_input_nodes
        )

    def _folded(self, node, n):
        """Results of an op on constants, worked out now instead of by a host call in every step."""
        if node not in self.static or any(v is None for v in n.vals):
            return None
        if sum(v.numel() for v in n.vals) > _FOLD_LIMIT:
            return None
        found = without_modes(lambda: _evaluate(self.traced.gm, node, {}))
        found = found if isinstance(found, (list, tuple)) else [found]
        self.folded += found  # constants are told apart by identity
        return [self.w.constant(t) for t in found]

    def _known_mask(self, node, args):
        """A mask that is a constant may be no mask at all, or the causal one, which costs half as
        much."""
        place = _MASK_ARGUMENTS.get(node.target.name())
        if place is None or not isinstance(node.args[place[0]], torch.fx.Node):
            return
        mask_at, causal_at = place
        mask = node.args[mask_at]
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
        # The mask may be one row or column that stands for all.
        lengths = tuple(args[mask_at - 3].shape[-2:-1]) + tuple(args[mask_at - 2].shape[-2:-1])
        if kind == "none" or (kind == "causal" and args[mask_at].shape[-2:] == lengths):
            args[mask_at] = None
            args[causal_at] = args[causal_at] or kind == "causal"

    def _node(self, node):
        if node.target is operator.getitem:
            if node.args[0] in self.static:
                self.static.add(node)
            source = self.values[node.args[0]]
            self.values[node] = source[node.args[1]] if isinstance(source, list) else source
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise make_error(f"{node.target} cannot be captured", line_of(node))
        if self._is_static(node):
            self.static.add(node)
        custom = node.meta.get("custom") or {}
        self.w.tag = custom.get("tag")
        val = node.meta.get("val")
        several = isinstance(val, (list, tuple))
        n = Types(list(val) if several else [val], node, self.checks.get(node))
        if any(v is not None and v.layout != torch.strided for v in n.vals):
            raise make_error(
                f"{node.target.name()} makes a sparse tensor, which cannot be compiled "
                "(for embeddings: leave sparse=False)",
                line_of(node),
            )
        args = self.bind(node)
        if node.target.namespace == "tessera":
            self._known_mask(node, args)
        if node.target.name().startswith("aten::as_strided"):
            self._as_in_memory(node, args)
        results = self._lowered(node, n, args)
        if results is None:
            results = self._folded(node, n) or self._host_call(node, n, args)
        self.values[node] = results if several else results[0]

    def _as_in_memory(self, node, args):
        """as_strided sees memory: its tensor is put in the order of memory, its offset becomes one
        from the tensor's first element."""
        x = node.args[0].meta["val"]
        order = memory_order(x)
        offset = 0 if args[-1] is None else args[-1] - x.storage_offset()
        if not x.permute(order).is_contiguous() or offset < 0:
            raise make_error("as_strided on a tensor that is not contiguous", line_of(node))
        if not x.is_contiguous():
            args[0] = self.w.permute(args[0], order)
        args[-1] = offset

    def _lowered(self, node, n, args):
        name = node.target.name()
        base = name.partition(".")[0]
        function = TABLE.get(name) or TABLE.get(base)
        if not _all_native(args) or any(
            v is not None and v.dtype not in NATIVE_DTYPES for v in n.vals
        ):
            if base not in _ANY_DTYPE and base not in _VIEWS:
                return None
        mark, constants = len(self.w.records), dict(self.w.constants)
        try:
            if function is not None:
                results = function(self.w, n, *args)
            else:
                results = self._row_of_its_own(name, base, n, args)
        except MissingRow:
            del self.w.records[mark:]
            self.w.constants = constants
            return None
        results = results if isinstance(results, list) else [results]
        for result, val in zip(results, n.vals, strict=False):
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

    def _row_of_its_own(self, name, base, n, args):
        """A row that capture knows nothing special about takes the ATen arguments as they are."""
        short = name.removeprefix("aten::")
        for row in (short, base.removeprefix("aten::")):
            if row in self.native_ops and row not in RULES and name.startswith("aten::"):
                return list(self.w.ops(row, args, n.types()))
        raise MissingRow(name)

    def _host_call(self, node, n, args):
        target = node.target
        name = target.name()
        full = name if "." in name else f"{name}.default"
        types = [(v.dtype, tuple(v.shape)) for v in n.vals if v is not None]
        if n.check is not None:
            names = _schema(target)[0]
            if "check_errors" in names:
                args[names.index("check_errors")] = True
        if torch.Tag.nondeterministic_seeded in target.tags:
            args = [*args, self.w.rng(), self.w.next_stream()]  # seeds torch's generator
        made = iter(self.w.host_call(full, args, types))
        self.host_records[self.w.records[-1]] = (full, line_of(node))
        return [None if v is None else next(made) for v in n.vals]


def _is_statistic(base, result, results):
    """Saved statistics of a normalisation are float32 here and only its gradient reads them."""
    return "_norm" in base and result is not results[0] and result.dtype is torch.float32


_FOLD_LIMIT = 1 << 20  # elements
_MASK_LIMIT = 1 << 26
_MASK_ARGUMENTS = {"tessera::sdpa": (3, 6), "tessera::sdpa_backward": (4, 9)}  # mask, is_causal


def _evaluate(module, node, memo):
    """The real value of a node that depends on constants only."""
    if node in memo:
        return memo[node]
    if node.op == "get_attr":
        value = _attribute(module, node.target)
    else:
        args, kwargs = torch.fx.map_arg(
            (node.args, node.kwargs), lambda a: _evaluate(module, a, memo)
        )
        with torch.no_grad():
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


def _all_native(args):
    for a in args:
        if isinstance(a, Value):
            if a.dtype not in NATIVE_DTYPES and a.literal is None:
                return False
        elif isinstance(a, list) and not _all_native(a):
            return False
        elif isinstance(a, complex):
            return False
    return True


def _attribute(module, path):
    for part in path.split("."):
        module = getattr(module, part)
    return module.detach() if isinstance(module, torch.nn.Parameter) else module


def emit(traced, native_ops, name, loss_scaling):
    """Writes the text of a Traced graph; returns an Emitted."""
    e = _Emitter(traced, native_ops)
    w = e.w
    if loss_scaling:
        w.loss_scale = w.source("buffer", "loss:scale", torch.float32, ())
    placeholders = [n for n in e.graph.nodes if n.op == "placeholder"]
    sources, slot_values = [], []
    for node, slot in zip(placeholders, traced.slots, strict=False):
        kind = "param" if slot.is_param else "buffer"
        value = w.source(kind, slot.names[0], slot.fake.dtype, slot.tensor.shape)
        e.values[node] = value
        slot_values.append((slot, value))
        sources.append(value)
    e.states = slot_values
    inputs = []
    for node, (path, tensor) in zip(placeholders[len(traced.slots) :], traced.inputs, strict=False):
        value = w.source("input", path, tensor.dtype, tensor.shape)
        e.values[node] = value
        inputs.append(value)
        sources.append(value)
    e.run()
    w.tag = None

    results = next(n for n in reversed(e.graph.nodes) if n.op == "output").args[0]
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    e.takes_statistics = False
    values = [e.argument(r) for r in results]
    own = _owner(w, set(map(id, sources)))
    outputs = [own(v) for v in values[: traced.num_values]]
    rest = values[traced.num_values :]
    loss = [rest.pop(0)] if traced.has_loss else []
    of_slot = {id(s): v for s, v in slot_values}
    grads = [
        (of_slot[id(s)], own(_in_type(w, g, s))) for s, g in zip(traced.grads, rest, strict=False)
    ]

    input_index = {id(v): i for i, v in enumerate(inputs)}
    updates, writebacks = [], []
    for node, new in traced.written.items():
        source, value = e.values[node], own(e.value(new))
        if id(source) in input_index:
            writebacks.append((input_index[id(source)], len(outputs)))
            outputs.append(value)
        else:
            updates.append((source, value))
    outputs += [own(v) for v in rest[len(traced.grads) :]]
    warn_of_parameters(traced.gm, e.followed)

    head, tail, live, locations = w.text(name, sources, outputs, loss, grads, updates)
    kept = set(live)
    host_ops = [what for record, what in e.host_records.items() if record in kept]
    out = Emitted(head, tail, w, host_ops, locations)
    out.params = [(s, v) for s, v in slot_values if s.is_param and v.number >= 0]
    out.buffers = [(s, v) for s, v in slot_values if not s.is_param and v.number >= 0]
    out.inputs = inputs
    out.placed, out.dead_blocks = placed_ops(live, traced.blocks)
    used = {id(a) for r in live for a in _flat(r.args)}
    out.inputs_used = [id(v) in used for v in inputs]
    out.outputs = outputs
    out.input_writebacks = writebacks
    out.updated = [s for s, _ in updates]
    if loss:
        out.loss = loss[0]
        same = [i for i, v in enumerate(values[: traced.num_values]) if v is loss[0]]
        out.loss_index = same[0] if same else None
    return out


def _owner(w, source_ids):
    """Results that are inputs or state themselves get memory of their own."""

    def own(value):
        if id(value) not in source_ids and value.kind == "op":
            return value
        if value.dtype.is_complex:
            return value  # the core copies it
        return w.op("clone", [value], value.dtype, value.shape)

    return own


def _in_type(w, grad, slot):
    grad = w.cast(grad, slot.tensor.dtype)
    return grad


def _flat(args):
    for a in args:
        if isinstance(a, list):
            yield from _flat(a)
        else:
            yield a
