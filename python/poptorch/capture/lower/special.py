# SPDX-License-Identifier: Apache-2.0
"""Lowerings of special functions that are made of other rows."""

import math

from poptorch.capture.lower.pointwise import clamped
from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import Value
from poptorch.capture.text.writer import Writer


@lower("polygamma")
def _(w: Writer, n: Results, order: int, x: Value) -> Value:
    if order == 0:
        return w.pointwise("digamma", x, dtype=n.dtype)
    return w.pointwise("polygamma", float(order), x, dtype=n.dtype)


@lower("mvlgamma")
def _(w: Writer, n: Results, x: Value, p: int) -> Value:
    x = w.cast(x, n.dtype)
    out = x.lgamma()
    for j in range(1, p):
        out = out + (x - j / 2).lgamma()
    return out + p * (p - 1) / 4 * math.log(math.pi)


@lower("logit")
def _(w: Writer, n: Results, x: Value, eps: float | None) -> Value:
    x = w.cast(x, n.dtype)
    if eps is not None:
        x = clamped(w, x, eps, 1 - eps)
    return (x / (1.0 - x)).log()


@lower("logit_backward")
def _(w: Writer, n: Results, grad: Value, x: Value, eps: float | None) -> Value:
    low = 0.0 if eps is None else eps
    outside = (x < low) | (x > 1.0 - low)
    return w.where(outside, math.nan if eps is None else 0.0, grad / (x * (1.0 - x)))
