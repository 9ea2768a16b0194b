# SPDX-License-Identifier: Apache-2.0
"""The table of lowerings: ATen op -> rows of the core. Filled by the lower_*.py files.

A lowering is called as fn(w, n, *arguments): the Writer, the node's result types and the arguments
in schema order, keyword-only ones last, defaults filled in. It returns a Value or a list of them
(None for results that do not exist).
"""

import torch

TABLE = {}


def lower(*names):
    """Registers a lowering for ATen ops given as "add.Tensor" (one overload) or "add" (all of
    them)."""

    def register(function):
        for name in names:
            key = name if "::" in name else "aten::" + name
            assert key not in TABLE, f"{key} is lowered twice"
            TABLE[key] = function
        return function

    return register


class Types:
    """Result types of a node, and what a few lowerings want to know of its place in the graph."""

    __slots__ = ("check", "dtype", "node", "shape", "vals")

    def __init__(self, vals, node=None, check=None):
        self.vals = vals
        self.node = node
        self.check = check  # name of the function that must fail if this factorisation does
        first = next((v for v in vals if v is not None), None)
        self.dtype = None if first is None else first.dtype
        self.shape = None if first is None else tuple(first.shape)

    def type(self, i):
        """(dtype, shape) of result i."""
        return self.vals[i].dtype, tuple(self.vals[i].shape)

    def types(self):
        """(dtype, shape) of every result."""
        return [(v.dtype, tuple(v.shape)) for v in self.vals]

    def unused(self, i):
        """Whether nothing looks at result i."""
        return not any(u.users for u in self.node.users if u.args[1] == i)

    def only_in_backward(self, i):
        """Whether nothing but gradients looks at result i."""
        return all(_only_gradients(u) for u in self.node.users if u.args[1] == i)


def memory_order(x):
    """The dims of a tensor from the outermost in memory to the innermost."""
    return sorted(range(x.dim()), key=lambda d: (-x.stride(d), x.shape[d] != 1))


def _only_gradients(node):
    for user in node.users:
        if user.target is torch.ops.aten.detach.default:  # saved for the gradient
            if not _only_gradients(user):
                return False
            continue
        tag = (user.meta.get("custom") or {}).get("tag")
        if tag is None or not tag.backward:
            return False
    return True
