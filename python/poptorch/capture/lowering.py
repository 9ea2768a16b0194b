# SPDX-License-Identifier: Apache-2.0
"""The table of lowerings: ATen op -> rows of the core. Filled by the lower_*.py files.

A lowering is called as fn(w, n, *arguments): the Writer, the node's result types and the arguments
in schema order, keyword-only ones last, defaults filled in. It returns a Value or a list of them
(None for results that do not exist).
"""

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
    """Result types of a node."""

    __slots__ = ("dtype", "shape", "vals")

    def __init__(self, vals):
        self.vals = vals
        first = next((v for v in vals if v is not None), None)
        self.dtype = None if first is None else first.dtype
        self.shape = None if first is None else tuple(first.shape)

    def type(self, i):
        """(dtype, shape) of result i."""
        return self.vals[i].dtype, tuple(self.vals[i].shape)

    def types(self):
        """(dtype, shape) of every result."""
        return [(v.dtype, tuple(v.shape)) for v in self.vals]
