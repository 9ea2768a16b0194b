# SPDX-License-Identifier: Apache-2.0
"""Collects the ops of a graph, with shapes and types: what lowerings write to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from poptorch.capture._torch_private import without_modes
from poptorch.capture.text.value import (
    MissingRow,
    Number,
    Operand,
    Type,
    Value,
    broadcast,
    literal_of,
    promote,
)

if TYPE_CHECKING:
    from poptorch.capture.placement import Tag
    from poptorch.capture.text.bodies import BodyText
    from poptorch.capture.text.row import Row

# What arithmetic on bools is.
_ON_BOOLS = {
    "add": "logical_or",
    "maximum": "logical_or",
    "mul": "logical_and",
    "minimum": "logical_and",
}


class Record:
    """One op call; loops and branches have bodies."""

    __slots__ = ("args", "bodies", "name", "results", "tag")

    def __init__(self, name: str, args: Sequence[Any], tag: "Tag | None") -> None:
        self.name = name
        self.args = args
        self.results: tuple[Value, ...] = ()
        self.tag = tag
        self.bodies: Sequence[BodyText] = ()


class Writer:
    """Collects sources and records; text/format.py prints those that the results need."""

    def __init__(self, rows: "Mapping[str, Row]") -> None:
        self.rows = rows
        self.records: list[Record] = []
        self.constants: dict[int, Value] = {}  # id of the tensor -> Value
        self.tag: Tag | None = None
        self.first_stream = 1
        # permuted Value -> (what it is a view of, the order of its dims)
        self.permutes: dict[Value, tuple[Value, list[int]]] = {}
        # flipped Value -> (what it is made from, which dims)
        self.flips: dict[Value, tuple[Value, set[int]]] = {}
        self._rng: Value | None = None
        self._count: Value | None = None  # of micro-batches in this step
        #: Writes the body of a loop or branch, by its number.
        self.body: Callable[[int], BodyText]
        #: Streams of random numbers, by what draws from them; shared with bodies.
        self.streams_of: dict[object, int] = {}
        self.drawer: object = None  # the op being written, if it is written more than once
        self._drawn = 0  # streams that it has so far
        #: Names that the states of the model have.
        self.state_names: frozenset[str] = frozenset()
        #: The state that backward starts with, if the gradients are to be scaled.
        self.loss_scale: Value | None = None

    # Sources

    def free_name(self, name: str) -> str:
        """`name`, or one like it if a state of the model is called so."""
        while name in self.state_names:
            name += "'"
        return name

    def source(self, kind: str, name: str, dtype: torch.dtype, shape: Iterable[int]) -> Value:
        """A value that comes from outside: an input, or a state of some kind."""
        return Value(self, dtype, shape, kind, name)

    def constant(self, tensor: torch.Tensor) -> Value:
        """A constant tensor, which the text names; a number if it has rank 0."""
        found = self.constants.get(id(tensor))
        if found is None:
            name = self.free_name(f"c{len(self.constants)}")
            found = Value(self, tensor.dtype, tensor.shape, "const", name)
            found.tensor = _with_memory(tensor)
            if tensor.dim() == 0 and not tensor.dtype.is_complex:
                found.literal = tensor.item()
            self.constants[id(tensor)] = found
        return found

    def rng(self) -> Value:
        """The random state: seed and call counter, which the core advances."""
        if self._rng is None:
            self._rng = Value(self, torch.int64, (2,), "random", self.free_name("rng"))
        return self._rng

    def replica_count(self) -> Value:
        """A number that is, modulo the number of replicas, that of this one."""
        if self._count is None:
            self._count = Value(self, torch.float32, (), "micro_count", self.free_name("accum:#"))
        return self._count

    @property
    def uses_rng(self) -> bool:
        return self._rng is not None

    def own_sources(self) -> list[Value]:
        """The sources that are neither state of the model nor inputs."""
        others = (self._rng, self.loss_scale, self._count)
        return [*self.constants.values(), *[s for s in others if s is not None]]

    def draws_as(self, drawer: object) -> None:
        """The next streams are those of `drawer`: the same ones if it is written again."""
        self.drawer, self._drawn = drawer, 0

    def next_stream(self) -> int:
        if self.drawer is None:
            key: object = len(self.streams_of)
        else:
            self._drawn += 1
            key = self.drawer, self._drawn
        return self.streams_of.setdefault(key, self.first_stream + len(self.streams_of))

    # Ops

    def op(
        self, name: str, args: Sequence[object], dtype: torch.dtype, shape: Iterable[int]
    ) -> Value:
        """Appends an op with one result."""
        return self.ops(name, args, [(dtype, tuple(shape))])[0]

    def ops(self, name: str, args: Sequence[object], types: Sequence[Type]) -> tuple[Value, ...]:
        """Appends an op with several results."""
        row = self.rows.get(name)
        if name != "host_call" and (
            row is None or ("double" not in row.facts and _has_double(args, types))
        ):
            raise MissingRow(name)
        record = Record(name, args, self.tag)
        record.results = tuple(Value(self, dtype, shape) for dtype, shape in types)
        self.records.append(record)
        return record.results

    def pointwise(
        self,
        name: str,
        *operands: Operand,
        dtype: torch.dtype | None = None,
        compute: torch.dtype | None = None,
    ) -> Value:
        """Appends a pointwise row.

        Args:
            name: the row.
            operands: are cast to the compute type; numbers become literals of it.
            dtype: the type to cast the result to.
            compute: the compute type, if it is not the one that the operands promote to.
        """
        head: tuple[Value, ...] = ()
        if name == "where":
            condition, operands = operands[0], operands[1:]
            assert isinstance(condition, Value)
            head = (self.cast(condition, torch.bool),)
        compute = compute or promote(operands)
        if compute is torch.bool:
            name = _ON_BOOLS.get(name, name)
        rule = self._rule(name)
        if rule == "float" and not compute.is_floating_point:
            compute = torch.get_default_dtype()
        shape = broadcast([x.shape for x in (*head, *operands) if isinstance(x, Value)])
        args: list[Operand] = [*head, *[self._operand(x, compute) for x in operands]]
        first = args[0]
        if not isinstance(first, Value) and not any(isinstance(a, Value) for a in args):
            args[0] = self.full(first, compute, ())
        out = self.op(name, args, torch.bool if rule == "bool" else compute, shape)
        return out if dtype is None else self.cast(out, dtype)

    def _rule(self, name: str) -> str:
        if name not in self.rows:
            raise MissingRow(name)
        return self.rows[name].rule

    def _operand(self, x: Operand, dtype: torch.dtype) -> Operand:
        if not isinstance(x, Value):
            return literal_of(x, dtype)
        if x.literal is not None:
            return literal_of(x.literal, dtype)
        return self.cast(x, dtype)

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        """x in another element type."""
        if x.dtype is dtype:
            return x
        return self.op("_to_copy", [x], dtype, x.shape)

    def full(self, number: Number, dtype: torch.dtype, shape: Iterable[int]) -> Value:
        """A tensor filled with one number."""
        return self.op("full", [literal_of(number, dtype)], dtype, shape)

    def where(self, condition: Value, a: Operand, b: Operand) -> Value:
        return self.pointwise("where", condition, a, b)

    def view(self, x: Value, shape: Iterable[int]) -> Value:
        """x under another shape."""
        shape = tuple(shape)
        return x if x.shape == shape else self.op("view", [x, list(shape)], x.dtype, shape)

    def expand(self, x: Value, shape: Iterable[int]) -> Value:
        """x broadcast to a shape."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        return self.op("expand", [x, list(shape), False], x.dtype, shape)

    def permute(self, x: Value, dims: Sequence[int]) -> Value:
        """x with its dims in another order."""
        if list(dims) == list(range(len(x.shape))):
            return x
        out = self.op("permute", [x, list(dims)], x.dtype, [x.shape[d] for d in dims])
        self.permutes[out] = (x, list(dims))
        return out

    def slice(self, x: Value, dim: int, start: int, end: int, step: int = 1) -> Value:
        """x[start:end:step] along one dim."""
        size = x.shape[dim]
        if start == 0 and end == size and step == 1:
            return x
        shape = list(x.shape)
        shape[dim] = max(0, -((start - end) // step))
        return self.op("slice", [x, dim, start, end, step], x.dtype, shape)

    def select(self, x: Value, dim: int, index: int) -> Value:
        """x[index] along one dim."""
        shape = x.shape[:dim] + x.shape[dim + 1 :]
        return self.op("select", [x, dim, index], x.dtype, shape)

    def unsqueeze(self, x: Value, dim: int) -> Value:
        """x with a dim of size one put in."""
        shape = x.shape[:dim] + (1,) + x.shape[dim:]
        return self.op("unsqueeze", [x, dim], x.dtype, shape)

    def reduce(
        self,
        name: str,
        x: Value,
        dims: Sequence[int],
        keepdim: bool,
        dtype: torch.dtype | None = None,
    ) -> Value:
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

    def sum(self, x: Value, dims: Sequence[int] = (), keepdim: bool = False) -> Value:
        return self.reduce("sum", x, dims, keepdim)

    def arange(
        self, size: int, start: Number = 0, step: Number = 1, dtype: torch.dtype = torch.int64
    ) -> Value:
        """start, start + step, ... as a vector."""
        args = [0, literal_of(start, dtype), literal_of(step, dtype)]
        return self.op("iota", args, dtype, (size,))

    def uniform(self, dtype: torch.dtype, shape: Iterable[int]) -> Value:
        """Fresh random numbers in [0, 1)."""
        return self.op("uniform", [self.rng(), self.next_stream()], dtype, shape)

    def host_call(
        self, target: str, args: Sequence[object], types: Sequence[Type]
    ) -> tuple[Value, ...]:
        """An op that torch runs on the host, in order with the other ops of the program."""
        return self.ops("host_call", [target, *args], types)


def _with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Autograd makes zeros without memory, and conjugates and negatives that are only marked so."""
    if tensor._is_zerotensor():
        return without_modes(lambda: torch.zeros(tensor.shape, dtype=tensor.dtype))
    return without_modes(lambda: tensor.resolve_conj().resolve_neg())


def _has_double(args: Sequence[object], types: Sequence[Type]) -> bool:
    if any(dtype is torch.float64 for dtype, _ in types):
        return True
    return any(
        _has_double(a, ()) if isinstance(a, list) else getattr(a, "dtype", None) is torch.float64
        for a in args
    )
