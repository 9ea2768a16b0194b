# SPDX-License-Identifier: Apache-2.0
"""Builds the text form of a graph: typed values, and one record per op; dead ones are dropped."""

import functools
import math

import torch

from ._torch_private import without_modes
from .errors import printable
from .rows import DOUBLE_ROWS, ON_BOOLS, RULES

DTYPE_TEXT = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
NATIVE_DTYPES = frozenset(
    (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
)


class MissingRow(Exception):
    """The core has no row for what a lowering wants; the op becomes a host call."""


class Record:
    """One op call."""

    __slots__ = ("args", "name", "results", "tag")

    def __init__(self, name, args, tag):
        self.name = name
        self.args = args
        self.results = ()
        self.tag = tag


class Value:
    """A typed SSA value; arithmetic on values appends pointwise ops to the graph."""

    __slots__ = ("dtype", "kind", "literal", "name", "number", "shape", "tensor", "writer")

    def __init__(self, writer, dtype, shape, kind="op", name=""):
        self.writer = writer
        self.dtype = dtype
        self.shape = tuple(shape)
        self.kind = kind
        self.name = name
        self.literal = None  # Python number of a constant of rank 0
        self.tensor = None  # of a constant
        self.number = -1

    def __repr__(self):
        return f"%{self.number}:{DTYPE_TEXT[self.dtype]}{list(self.shape)}"

    def __add__(self, other):
        return self.writer.pointwise("add", self, other)

    def __radd__(self, other):
        return self.writer.pointwise("add", other, self)

    def __sub__(self, other):
        return self.writer.pointwise("sub", self, other)

    def __rsub__(self, other):
        return self.writer.pointwise("sub", other, self)

    def __mul__(self, other):
        return self.writer.pointwise("mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self.writer.pointwise("div", self, other)

    def __rtruediv__(self, other):
        return self.writer.pointwise("div", other, self)

    def __neg__(self):
        return self.writer.pointwise("neg", self)

    def __gt__(self, other):
        return self.writer.pointwise("gt", self, other)

    def __ge__(self, other):
        return self.writer.pointwise("ge", self, other)

    def __lt__(self, other):
        return self.writer.pointwise("lt", self, other)

    def __le__(self, other):
        return self.writer.pointwise("le", self, other)

    def __and__(self, other):
        return self.writer.pointwise("logical_and", self, other)

    def __or__(self, other):
        return self.writer.pointwise("logical_or", self, other)

    def __invert__(self):
        return self.writer.pointwise("logical_not", self)

    def equals(self, other):
        return self.writer.pointwise("eq", self, other)

    def __getattr__(self, name):
        # x.exp(), x.tanh(), ...: every pointwise row of one argument.
        if name in RULES:
            return functools.partial(self.writer.pointwise, name, self)
        raise AttributeError(name)


def count(shape):
    """Number of elements of a shape."""
    return math.prod(shape)


def broadcast(shapes):
    """The shape several shapes broadcast to."""
    rank = max(map(len, shapes))
    out = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                assert out[i] in (1, size), f"shapes {shapes} do not broadcast"
                out[i] = size
    return tuple(out)


def _category(dtype):
    if dtype is torch.bool:
        return 0
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else 1


def _number_dtype(x):
    if isinstance(x, bool):
        return torch.bool
    return torch.int64 if isinstance(x, int) else torch.get_default_dtype()


def promote(operands):
    """torch's type promotion over values and Python numbers: numbers and rank 0 give way within a
    category."""
    ranks = [None, None, None]  # with dims, rank 0, numbers
    for x in operands:
        is_value = isinstance(x, Value)
        dtype = x.dtype if is_value else _number_dtype(x)
        level = (0 if x.shape else 1) if is_value else 2
        ranks[level] = dtype if ranks[level] is None else torch.promote_types(ranks[level], dtype)
    result = None
    for dtype in ranks:
        if dtype is None:
            continue
        if result is None or _category(dtype) > _category(result):
            result = dtype if result is None else torch.promote_types(result, dtype)
    return result


def literal_of(x, dtype):
    """A Python number as a literal of a type."""
    if dtype is torch.bool:
        return bool(x)
    return float(x) if dtype.is_floating_point else int(x)


def quote(text):
    """A string of the text form."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def number_text(x):
    """A number of the text form: floats always look like floats."""
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, int):
        return str(x)
    return repr(x)  # shortest text that reads back the same; has a point, an exponent, inf or nan


class Writer:
    """Collects sources and records, then prints what the roots need."""

    def __init__(self, native_ops):
        self.native_ops = native_ops
        self.records = []
        self.constants = {}  # id of the tensor -> Value
        self.tag = None
        self.streams = 0
        self.permutes = {}  # permuted Value -> (what it is a view of, the order of its dims)
        self.flips = {}  # flipped Value -> (what it is made from, set of dims)
        self._rng = None
        #: The state that backward starts with, if the gradients are to be scaled.
        self.loss_scale = None

    # Sources

    def source(self, kind, name, dtype, shape):
        """A value that comes from outside: param, buffer or input."""
        return Value(self, dtype, shape, kind, name)

    def constant(self, tensor):
        """A constant tensor, given beside the text by name; a number if it has rank 0."""
        found = self.constants.get(id(tensor))
        if found is None:
            found = Value(self, tensor.dtype, tensor.shape, "const", f"c{len(self.constants)}")
            found.tensor = _with_memory(tensor)
            if tensor.dim() == 0 and not tensor.dtype.is_complex:
                found.literal = tensor.item()
            self.constants[id(tensor)] = found
        return found

    def rng(self):
        """The random state: seed and call counter, which the core advances."""
        if self._rng is None:
            self._rng = Value(self, torch.int64, (2,), "buffer", "rng")
        return self._rng

    @property
    def uses_rng(self):
        return self._rng is not None

    def next_stream(self):
        self.streams += 1
        return self.streams

    # Ops

    def op(self, name, args, dtype, shape):
        """Appends an op with one result."""
        return self.ops(name, args, [(dtype, shape)])[0]

    def ops(self, name, args, types):
        """Appends an op with several results."""
        if name not in self.native_ops and name != "host_call":
            raise MissingRow(name)
        if name not in RULES and name not in DOUBLE_ROWS and _has_double(args, types):
            raise MissingRow(name)
        record = Record(name, args, self.tag)
        record.results = tuple(Value(self, dtype, shape) for dtype, shape in types)
        self.records.append(record)
        return record.results

    def pointwise(self, name, *operands, dtype=None):
        """Appends a pointwise row: operands cast to the one compute type, numbers as literals of
        it."""
        head = ()
        if name == "where":
            head, operands = (self.cast(operands[0], torch.bool),), operands[1:]
        compute = promote(operands)
        rule = RULES[name]
        if rule == "float" and not compute.is_floating_point:
            compute = torch.get_default_dtype()
        if compute is torch.bool:
            name = ON_BOOLS.get(name, name)
            rule = RULES[name]
        shape = broadcast([x.shape for x in (*head, *operands) if isinstance(x, Value)])
        args = [*head, *[self._operand(x, compute) for x in operands]]
        if not any(isinstance(a, Value) for a in args):
            args[0] = self.full(args[0], compute, ())
        out = self.op(name, args, torch.bool if rule == "bool" else compute, shape)
        return out if dtype is None else self.cast(out, dtype)

    def _operand(self, x, dtype):
        if not isinstance(x, Value):
            return literal_of(x, dtype)
        if x.literal is not None:
            return literal_of(x.literal, dtype)
        return self.cast(x, dtype)

    def cast(self, x, dtype):
        """x in another element type."""
        if x.dtype is dtype:
            return x
        return self.op("_to_copy", [x], dtype, x.shape)

    def full(self, number, dtype, shape):
        """A tensor filled with one number."""
        return self.op("full", [literal_of(number, dtype)], dtype, shape)

    def where(self, condition, a, b):
        return self.pointwise("where", condition, a, b)

    def view(self, x, shape):
        """x under another shape."""
        shape = tuple(shape)
        return x if x.shape == shape else self.op("view", [x, list(shape)], x.dtype, shape)

    def expand(self, x, shape):
        """x broadcast to a shape."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        return self.op("expand", [x, list(shape), False], x.dtype, shape)

    def permute(self, x, dims):
        """x with its dims in another order."""
        if list(dims) == list(range(len(x.shape))):
            return x
        out = self.op("permute", [x, list(dims)], x.dtype, [x.shape[d] for d in dims])
        self.permutes[out] = (x, list(dims))
        return out

    def slice(self, x, dim, start, end, step=1):
        """x[start:end:step] along one dim."""
        size = x.shape[dim]
        if start == 0 and end == size and step == 1:
            return x
        shape = list(x.shape)
        shape[dim] = max(0, -((start - end) // step))
        return self.op("slice", [x, dim, start, end, step], x.dtype, shape)

    def select(self, x, dim, index):
        """x[index] along one dim."""
        shape = x.shape[:dim] + x.shape[dim + 1 :]
        return self.op("select", [x, dim, index], x.dtype, shape)

    def unsqueeze(self, x, dim):
        """x with a dim of size one put in."""
        shape = x.shape[:dim] + (1,) + x.shape[dim:]
        return self.op("unsqueeze", [x, dim], x.dtype, shape)

    def reduce(self, name, x, dims, keepdim, dtype=None):
        """A reduction row over dims; an empty list means all."""
        rank = len(x.shape)
        dims = sorted({d % rank for d in dims}) if rank and dims else list(range(rank))
        gone = set(dims)
        if keepdim:
            shape = [1 if d in gone else s for d, s in enumerate(x.shape)]
        else:
            shape = [s for d, s in enumerate(x.shape) if d not in gone]
        listed = [] if len(dims) == rank else dims
        return self.op(name, [x, listed, bool(keepdim)], dtype or x.dtype, shape)

    def sum(self, x, dims=(), keepdim=False):
        return self.reduce("sum", x, dims, keepdim)

    def arange(self, size, start=0, step=1, dtype=torch.int64):
        """start, start + step, ... as a vector."""
        args = [0, literal_of(start, dtype), literal_of(step, dtype)]
        return self.op("iota", args, dtype, (size,))

    def uniform(self, dtype, shape):
        """Fresh random numbers in [0, 1)."""
        return self.op("uniform", [self.rng(), self.next_stream()], dtype, shape)

    def host_call(self, target, args, types):
        """An op that torch runs on the host at its place in the program."""
        return self.ops("host_call", [target, *args], types)

    # Text

    def text(self, name, sources, outputs, loss, grads, updates):
        """(lines of the graph up to its closing brace, lines after it, live records)."""
        live, needed = self._live([*outputs, *loss, *[v for _, v in grads + updates]])
        # a parameter may have a gradient that is zero without being read
        needed |= {id(s) for s, _ in updates + grads}
        used = [s for s in sources if s.kind == "input" or id(s) in needed]
        used += [c for c in self.constants.values() if id(c) in needed]
        own = (s for s in (self._rng, self.loss_scale) if s is not None)
        used += [s for s in own if id(s) in needed]
        rank = {"param": 0, "buffer": 1, "const": 2, "input": 3}
        used.sort(key=lambda s: rank[s.kind])
        head = ["tessera 1", f"graph {quote(name)} {{"]
        number = 0
        for s in used:
            s.number, number = number, number + 1
            head.append(f"  {s.kind} %{s.number} {quote(s.name)} : {type_text(s)}")
        locations = {}
        for record in live:
            for r in record.results:
                r.number, number = number, number + 1
            head.append(self._line(record, locations))
        if outputs:
            head.append("  output " + ", ".join(f"%{v.number}" for v in outputs))
        head += [f"  loss %{v.number}" for v in loss]
        head += [f"  grad %{p.number} %{g.number}" for p, g in grads]
        head += [f"  update %{s.number} %{v.number}" for s, v in updates]
        tail = ["}"]
        for tag, k in locations.items():
            way = "bwd" if tag.backward else "fwd"
            place = f"{way} {tag.ipu} {tag.stage} {tag.phase}"
            file = quote(printable(tag.file))
            tail.append(f"loc !{k} {file} {tag.line} {quote(tag.scope)} {place}")
        return head, tail, live, list(locations)

    def _live(self, roots):
        needed = {id(v) for v in roots}
        live = []
        for record in reversed(self.records):
            if any(id(r) in needed for r in record.results):
                live.append(record)
                _collect(record.args, needed)
        live.reverse()
        return live, needed

    def _line(self, record, locations):
        results = ", ".join(f"%{r.number}" for r in record.results)
        types = ", ".join(map(type_text, record.results))
        args = ", ".join(map(argument_text, record.args))
        line = f"  {results} = {record.name}({args}) : {types}"
        if record.tag is not None:
            line += f" !{locations.setdefault(record.tag, len(locations))}"
        return line


def _with_memory(tensor):
    """Autograd makes zeros without memory, and conjugates and negatives that are only marked so."""
    if tensor._is_zerotensor():
        return without_modes(lambda: torch.zeros(tensor.shape, dtype=tensor.dtype))
    return without_modes(lambda: tensor.resolve_conj().resolve_neg())


def _has_double(args, types):
    if any(dtype is torch.float64 for dtype, _ in types):
        return True
    return any(
        _has_double(a, ()) if isinstance(a, list) else getattr(a, "dtype", None) is torch.float64
        for a in args
    )


def _collect(args, needed):
    for a in args:
        if isinstance(a, Value):
            needed.add(id(a))
        elif isinstance(a, list):
            _collect(a, needed)


def type_text(value):
    """`f32[2,3]`."""
    return f"{DTYPE_TEXT[value.dtype]}[{','.join(map(str, value.shape))}]"


def argument_text(a):
    """One argument of an op call."""
    if isinstance(a, Value):
        return f"%{a.number}"
    if a is None:
        return "none"
    if isinstance(a, (bool, int, float)):
        return number_text(a)
    if isinstance(a, complex):
        return quote(str(a))  # only host calls take one; they know it by the schema
    if isinstance(a, str):
        return quote(a)
    if isinstance(a, torch.dtype):
        return DTYPE_TEXT[a]
    if isinstance(a, (list, tuple)):
        return "[" + ", ".join(map(argument_text, a)) + "]"
    raise TypeError(f"{a!r} cannot be an argument in the text form")
