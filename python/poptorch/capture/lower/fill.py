# SPDX-License-Identifier: Apache-2.0
"""Lowerings of fills, ranges and triangles: tensors of a known pattern."""

import torch

from poptorch.capture._torch_private import without_modes
from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import MissingRow, Number, Operand, Value, literal_of
from poptorch.capture.text.writer import Writer


def _register_fill(names: str, value: Number) -> None:
    for name in names.split():
        lower(name)(lambda w, n, *args: w.full(value, n.dtype, n.shape))


# Memory that torch leaves uninitialised is zero here: a program has no garbage to read.
_register_fill("zeros zeros_like new_zeros zero empty empty_like new_empty", 0)
_register_fill("empty_strided new_empty_strided empty_permuted", 0)
_register_fill("ones ones_like new_ones", 1)


@lower("scalar_tensor")
def _(w: Writer, n: Results, value: Number, *_rest: object) -> Value:
    return w.full(value, n.dtype, n.shape)


@lower("full", "full_like", "new_full", "fill")
def _(w: Writer, n: Results, first: Value | list[int], *rest: object) -> Value:
    value = rest[0] if not isinstance(rest[0], (list, tuple)) else rest[1]
    if isinstance(value, Value):
        if value.literal is None:
            return w.expand(w.cast(value, n.dtype), n.shape)
        value = value.literal
    assert isinstance(value, (int, float))
    return w.full(value, n.dtype, n.shape)


@lower("arange.start_step")
def _(w: Writer, n: Results, start: Number, end: Number, step: Number, *_rest: object) -> Value:
    return w.arange(n.shape[0], start, step, n.dtype)


@lower("arange.start")
def _(w: Writer, n: Results, start: Number, *_rest: object) -> Value:
    return w.arange(n.shape[0], start, 1, n.dtype)


@lower("arange")
def _(w: Writer, n: Results, *_rest: object) -> Value:
    return w.arange(n.shape[0], 0, 1, n.dtype)


def _number(x: Operand) -> Number | None:
    return x.literal if isinstance(x, Value) else x


@lower("linspace", "logspace")
def _(w: Writer, n: Results, start: Operand, end: Operand, steps: int, *rest: object) -> Value:
    base = rest[0] if rest and isinstance(rest[0], float) else None
    first, last = _number(start), _number(end)
    if first is not None and last is not None:  # known now: exactly as torch makes it

        def make() -> torch.Tensor:
            if base is None:
                return torch.linspace(first, last, steps, dtype=n.dtype)
            return torch.logspace(first, last, steps, base, dtype=n.dtype)

        return w.constant(without_modes(make))
    if not n.dtype.is_floating_point:
        raise MissingRow("linspace of integers")
    # As torch rounds: a line in half precision at every step; the exponents of a power at both ends
    # only, and a single one not at all.
    wide = n.dtype if base is None else torch.promote_types(n.dtype, torch.float32)
    narrow = n.dtype if steps > 1 else wide

    def rounded(x: Operand) -> Operand:
        if isinstance(x, Value):
            return w.cast(w.cast(x, narrow), wide)
        return without_modes(lambda: torch.tensor(x, dtype=narrow).item())

    start, end = rounded(start), rounded(end)
    if steps == 1:
        line = w.expand(start, n.shape) if isinstance(start, Value) else w.full(start, wide, (1,))
    else:
        # From both ends towards the middle.
        at = w.arange(steps, dtype=wide)
        step = (end - start) / float(steps - 1)
        line = w.where(at < steps // 2, start + step * at, end - step * (float(steps - 1) - at))
    return line if base is None else w.cast(w.pointwise("pow", base, line), n.dtype)


def column_minus_row(w: Writer, rows: int, columns: int) -> Value:
    """A matrix that is 0 on the main diagonal, 1 on the one above it, and so on."""
    return w.arange(columns) - w.view(w.arange(rows), (rows, 1))


def _zero(x: Value) -> Number:
    return literal_of(0, x.dtype)


@lower("eye", "eye.m")
def _(w: Writer, n: Results, *_rest: object) -> Value:
    return w.cast(column_minus_row(w, *n.shape).equals(0), n.dtype)


@lower("tril")
def _(w: Writer, n: Results, x: Value, diagonal: int) -> Value:
    return w.where(column_minus_row(w, *x.shape[-2:]) <= diagonal, x, _zero(x))


@lower("triu")
def _(w: Writer, n: Results, x: Value, diagonal: int) -> Value:
    return w.where(column_minus_row(w, *x.shape[-2:]) >= diagonal, x, _zero(x))
