# SPDX-License-Identifier: Apache-2.0
"""Real values of tensors in the middle of a capture.

Capture runs on fake tensors. The graph recorded so far says how a tensor was made, so its value for
the call that is being captured can be computed when somebody asks: only the nodes it needs are run,
on the real inputs and weights.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from poptorch.base.memory import check_memory
from poptorch.capture import _torch_private as private
from poptorch.capture.library import kernels  # noqa: F401
from poptorch.capture.mutations import in_place_op


def _storages_of(node: Node) -> list[int]:
    """The memory that the fake results of a node lie in."""
    value = node.meta.get("val")
    leaves = value if isinstance(value, (list, tuple)) else [value]
    return [private.storage_id(t) for t in leaves if isinstance(t, torch.Tensor)]


def _written_by(node: Node) -> list[int]:
    """The memory that a node writes to."""
    op = in_place_op(node)
    if op is None:
        return []
    found = []
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        for target in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(target, Node):
                found += _storages_of(target)
    return found


class WrittenMemory:
    """All memory that nodes of a growing graph write to."""

    def __init__(self) -> None:
        self._found: set[int] = set()
        self._last: Node | None = None

    def of(self, graph: torch.fx.Graph) -> set[int]:
        """The memory written so far; only nodes that came since the last call are visited."""
        node = next(iter(graph.nodes)) if self._last is None else self._last.next
        while node.op != "root":
            self._found.update(_written_by(node))
            self._last, node = node, node.next
        return self._found


class Replay:
    """Computes nodes of the graph that is being recorded.

    Args:
        sources: the real tensors of the graph's placeholders, in order.
    """

    def __init__(self, sources: list[torch.Tensor]) -> None:
        self._sources = sources
        self._real: dict[Node, torch.Tensor] = {}  # of the placeholders
        self._values: dict[Node, Any] = {}  # a tensor, or several
        self._draws: dict[Node, torch.Tensor] = {}  # random node -> state before it
        self._written = WrittenMemory()
        self._random: set[int] = set()  # memory whose values depend on random numbers

    def values_of(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], bool]:
        """(the real values of fake tensors, whether they depend on random numbers)."""
        tracer = private.running_tracer()
        wanted = [private.node_of(t, tracer) for t in tensors]
        written = self._written.of(tracer.graph)
        # Memory that is written to holds other values at other times: no use keeping those.
        self._values = {
            n: v for n, v in self._values.items() if written.isdisjoint(_storages_of(n))
        }
        alive = private.live_nodes(tracer)
        needed, kept = self._needed(tracer.graph, wanted, written), alive.union(wanted)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            private.without_modes(lambda: self._run(tracer, needed, written, kept))
            found = private.without_modes(lambda: [self._values[n].clone() for n in wanted])
        # As in eager, what nobody can use any more is freed. Not earlier, because nodes that came
        # since the last read may be computed from it.
        self._values = {n: v for n, v in self._values.items() if n in alive}
        return found, any(not self._random.isdisjoint(_storages_of(n)) for n in wanted)

    def _needed(
        self, graph: torch.fx.Graph, wanted: Iterable[Node], written: set[int]
    ) -> list[Node]:
        """The nodes to run, in order: what is wanted, its operands, writes to memory they read."""
        needed: set[Node] = set()
        memory: set[int] = set()

        def need(node: Node) -> None:
            if node not in self._values:
                needed.add(node)
                memory.update(written.intersection(_storages_of(node)))

        for node in wanted:
            need(node)
        found = []
        for node in reversed(graph.nodes):
            if node in needed or (memory and not memory.isdisjoint(_written_by(node))):
                found.append(node)
                needed.discard(node)
                for operand in node.all_input_nodes:
                    need(operand)
            if not needed and not memory:
                break
        return found[::-1]

    def _run(
        self,
        tracer: private.Tracer,
        nodes: list[Node],
        written: set[int],
        kept: set[Node],
    ) -> None:
        """Compute nodes, in order; values that are not needed any more go, except those of kept."""
        uses = Counter(operand for node in nodes for operand in node.all_input_nodes)
        if not self._real:
            sources = [n for n in tracer.graph.nodes if n.op == "placeholder"]
            self._real = dict(zip(sources, self._sources, strict=True))
        value: Any
        for node in nodes:
            if node.op == "placeholder":
                value = self._real[node].detach()
                check_memory(value, "A tensor whose values forward reads")
                value = value.to(node.meta["val"].dtype)
            elif node.op == "get_attr":
                value = getattr(tracer.root, str(node.target)).detach()
            else:
                value = self._call(node)
            fixed = node.op != "call_function"
            if fixed and (node.op == "get_attr" or not written.isdisjoint(_storages_of(node))):
                value = value.clone()  # the user's own tensor stays as it is
            self._values[node] = value
            operands = (s for operand in node.all_input_nodes for s in _storages_of(operand))
            if node in self._draws or not self._random.isdisjoint(operands):
                self._random.update(_storages_of(node), _written_by(node))
            for operand in node.all_input_nodes:
                uses[operand] -= 1
                if not uses[operand] and operand not in kept:
                    del self._values[operand]

    def _call(self, node: Node) -> Any:
        if not isinstance(node.target, torch._ops.OpOverload) or not private.is_random(node.target):
            return self._apply(node)
        now = torch.get_rng_state()
        if node not in self._draws:
            self._draws[node] = now
            return self._apply(node)
        # A node that is run again draws the same numbers.
        torch.set_rng_state(self._draws[node])
        value = self._apply(node)
        torch.set_rng_state(now)
        return value

    def _apply(self, node: Node) -> Any:
        real: Any = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        args, kwargs = real
        if node.target is torch.ops.poptorch.print_tensor.default:
            return args[0].clone()  # printed when the program runs
        assert callable(node.target)
        return node.target(*args, **kwargs)
