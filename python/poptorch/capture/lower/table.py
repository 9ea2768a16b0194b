# SPDX-License-Identifier: Apache-2.0
"""The table of lowerings: ATen op -> rows of the core. Filled by the other files of this folder.

A lowering is called as fn(w, n, *arguments): the Writer, the Results of the node, and the arguments
in schema order, keyword-only ones last, defaults filled in. It returns a Value, or a list with one
for each result (None for results that do not exist).
"""

from collections.abc import Callable
from typing import TypeVar

import torch

from poptorch.capture.text.value import Shape, Type, Value

Lowering = Callable[..., Value | list[Value] | list[Value | None]]
_L = TypeVar("_L", bound=Lowering)

TABLE: dict[str, Lowering] = {}


def lower(*names: str) -> Callable[[_L], _L]:
    """Registers a lowering for ATen ops, given as "add.Tensor" (one overload) or "add" (all)."""

    def register(function: _L) -> _L:
        for name in names:
            key = name if "::" in name else "aten::" + name
            assert key not in TABLE, f"{key} is lowered twice"
            TABLE[key] = function
        return function

    return register


class Results:
    """The results that a node must have, and who uses them.

    Attributes:
        vals: one fake tensor per result, None for results that do not exist.
        node: the node of the graph.
        check: name of the function that must fail if this factorisation does, or None.
        dtype: of the first result.
        shape: of the first result.
    """

    __slots__ = ("check", "dtype", "node", "shape", "vals")

    def __init__(
        self, vals: list[torch.Tensor | None], node: torch.fx.Node, check: str | None
    ) -> None:
        self.vals = vals
        self.node = node
        self.check = check
        first = next((v for v in vals if v is not None), None)
        if first is not None:
            self.dtype: torch.dtype = first.dtype
            self.shape: Shape = tuple(first.shape)

    def type(self, i: int) -> Type:
        """(dtype, shape) of result i."""
        val = self.vals[i]
        assert val is not None
        return val.dtype, tuple(val.shape)

    def types(self) -> list[Type]:
        """(dtype, shape) of every result."""
        return [self.type(i) for i in range(len(self.vals))]

    def first_argument(self) -> torch.Tensor:
        """The fake tensor of the first argument, which has its strides."""
        node = self.node.args[0]
        assert isinstance(node, torch.fx.Node)
        return node.meta["val"]

    def unused(self, i: int) -> bool:
        """Whether nothing reads result i."""
        return not any(u.users for u in self.node.users if u.args[1] == i)

    def only_in_backward(self, i: int) -> bool:
        """Whether nothing but gradients read result i."""
        return all(_only_gradients(u) for u in self.node.users if u.args[1] == i)


def memory_order(x: torch.Tensor) -> list[int]:
    """The dims of a tensor from the outermost in memory to the innermost."""
    return sorted(range(x.dim()), key=lambda d: (-x.stride()[d], x.shape[d] != 1))


def _only_gradients(node: torch.fx.Node) -> bool:
    for user in node.users:
        if user.target is torch.ops.aten.detach.default:  # saved for the gradient
            if not _only_gradients(user):
                return False
            continue
        tag = (user.meta.get("custom") or {}).get("tag")
        if tag is None or not tag.backward:
            return False
    return True
