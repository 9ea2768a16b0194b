# SPDX-License-Identifier: Apache-2.0
"""Short ways to write rows: `table.row(name, function, shape, shape, ...)`."""

import torch

from bench.kernels.measure import TARGET, Row


def floats(*shapes, dtype=torch.float32):
    return [torch.randn(s).to(dtype) for s in shapes]


def ints(high, *shape):
    return torch.randint(0, high, shape)


class Family:
    """Rows of one family, with its target."""

    def __init__(self, rows, name, target=TARGET):
        self.rows, self.name, self.target = rows, name, target

    def row(self, name, fn, *shapes, dtype=torch.float32, make=None, target=None, **how):
        """Inputs are normal numbers of these shapes, or what `make()` returns."""
        inputs = make or (lambda: floats(*shapes, dtype=dtype))
        self.rows.append(Row(self.name, name, fn, inputs, target or self.target, **how))

    def both(self, name, fn, *shapes, **how):
        """Forward alone, and forward with backward."""
        self.row(name, fn, *shapes, **how)
        self.row(f"{name} +bwd", fn, *shapes, backward=True, **how)
