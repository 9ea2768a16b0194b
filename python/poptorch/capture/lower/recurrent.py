# SPDX-License-Identifier: Apache-2.0
"""Lowerings of recurrent layers: a row for the recurrence, products for the weight gradients."""

import torch

from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import Value, count
from poptorch.capture.text.writer import Writer

_VIEWS = {"select", "view", "expand", "permute", "slice", "unsqueeze", "_to_copy", "clone"}


def _is_zero(w: Writer, value: Value) -> bool:
    """Whether a value is known to be all zeros, as a state that the user did not give."""
    for record in reversed(w.records):
        if any(r is value for r in record.results):
            if record.name in _VIEWS:
                value = record.args[0]
            else:
                return record.name == "full" and record.args[0] == 0
    return value.literal == 0


def _or_none(w: Writer, value: Value) -> Value | None:
    return None if _is_zero(w, value) else value


def _rows(w: Writer, x: Value) -> Value:
    """[steps, batch, n] as [rows, n]."""
    return w.view(x, (count(x.shape[:-1]), x.shape[-1]))


def _gradient(w: Writer, grad: Value, x: Value) -> Value:
    """grad^T x over all rows."""
    grad, x = _rows(w, grad), _rows(w, x)
    shape = (grad.shape[1], x.shape[1])
    return w.op("mm", [w.permute(grad, [1, 0]), x], grad.dtype, shape)


def _state_gradient(
    w: Writer, grad: Value, y: Value, h0: Value, sizes: list[int], reverse: bool
) -> Value:
    """Gradient of the weights that multiply the state.

    The state that a row reads is the output of the step before it, h0 at the first step.
    """
    start = _or_none(w, h0)
    if sizes:
        return _packed_state_gradient(w, grad, y, start, sizes, reverse)
    steps = y.shape[0]
    first = steps - 1 if reverse else 0
    total = None
    if steps > 1:
        later = w.slice(grad, 0, 0, steps - 1) if reverse else w.slice(grad, 0, 1, steps)
        before = w.slice(y, 0, 1, steps) if reverse else w.slice(y, 0, 0, steps - 1)
        total = _gradient(w, later, before)
    if start is not None:
        begin = _gradient(w, w.select(grad, 0, first), start)
        total = begin if total is None else total + begin
    if total is None:
        total = w.full(0, grad.dtype, (grad.shape[-1], y.shape[-1]))
    return total


def _packed_state_gradient(
    w: Writer, grad: Value, y: Value, h0: Value | None, sizes: list[int], reverse: bool
) -> Value:
    firsts = [sum(sizes[:t]) for t in range(len(sizes))]
    rows = y.shape[0]
    h0 = w.full(0, y.dtype, (sizes[0], y.shape[-1])) if h0 is None else h0
    both = w.op("cat", [[y, h0], 0], y.dtype, (rows + sizes[0], y.shape[-1]))
    index: list[int] = []
    for t, size in enumerate(sizes):
        last = t + 1 if reverse else t - 1
        known = sizes[last] if 0 <= last < len(sizes) else 0
        index += [firsts[last] + b if b < known else rows + b for b in range(size)]
    args = [both, 0, w.constant(torch.tensor(index))]
    before = w.op("index_select", args, y.dtype, y.shape)
    return _gradient(w, grad, before)


@lower("tessera::lstm_layer")
def _(
    w: Writer,
    n: Results,
    x: Value,
    h0: Value,
    c0: Value,
    w_hh: Value,
    w_hr: Value | None,
    sizes: list[int],
    reverse: bool,
    save: bool,
) -> list[Value]:
    args = [x, _or_none(w, h0), _or_none(w, c0), w_hh, w_hr, sizes, reverse, save]
    return list(w.ops("lstm_layer", args, n.types()))


@lower("tessera::lstm_layer_backward")
def _(
    w: Writer,
    n: Results,
    gy: Value | None,
    ghn: Value | None,
    gcn: Value | None,
    y: Value,
    h0: Value,
    c0: Value,
    w_hh: Value,
    w_hr: Value | None,
    cells: Value,
    gates: Value,
    sizes: list[int],
    reverse: bool,
) -> list[Value]:
    dx_type, dh_type, dc_type = n.types()[:3]
    projected = (y.dtype, (0,) if w_hr is None else y.shape)
    args = [gy, ghn, gcn, _or_none(w, c0), w_hh, w_hr, cells, gates, sizes, reverse]
    types = [dx_type, dh_type, dc_type, projected]
    dx, dh0, dc0, dy = w.ops("lstm_layer_backward", args, types)
    dw_hr = w.full(0, y.dtype, (0,))
    if w_hr is not None:
        hidden = cells.shape[-1]
        o = w.slice(gates, len(gates.shape) - 1, 3 * hidden, 4 * hidden)
        dw_hr = _gradient(w, dy, w.cast(o * cells.tanh(), y.dtype))
    return [dx, dh0, dc0, _state_gradient(w, dx, y, h0, sizes, reverse), dw_hr]


@lower("tessera::gru_layer")
def _(
    w: Writer,
    n: Results,
    x: Value,
    h0: Value,
    w_hh: Value,
    b_hn: Value | None,
    sizes: list[int],
    reverse: bool,
    save: bool,
) -> list[Value]:
    args = [x, _or_none(w, h0), w_hh, b_hn, sizes, reverse, save]
    return list(w.ops("gru_layer", args, n.types()))


@lower("tessera::gru_layer_backward")
def _(
    w: Writer,
    n: Results,
    gy: Value | None,
    ghn: Value | None,
    y: Value,
    h0: Value,
    w_hh: Value,
    gates: Value,
    sizes: list[int],
    reverse: bool,
) -> list[Value]:
    dx_type, dh_type = n.types()[:2]
    args = [gy, ghn, y, _or_none(w, h0), w_hh, gates, sizes, reverse]
    dx, dh0, product = w.ops("gru_layer_backward", args, [dx_type, dh_type, dx_type])
    hidden = w_hh.shape[1]
    db_hn = w.slice(_rows(w, product), 1, 2 * hidden, 3 * hidden)
    return [dx, dh0, _state_gradient(w, product, y, h0, sizes, reverse), w.sum(db_hn, [0])]


@lower("tessera::rnn_layer")
def _(
    w: Writer,
    n: Results,
    x: Value,
    h0: Value,
    w_hh: Value,
    relu: bool,
    sizes: list[int],
    reverse: bool,
) -> list[Value]:
    return list(w.ops("rnn_layer", [x, _or_none(w, h0), w_hh, relu, sizes, reverse], n.types()))


@lower("tessera::rnn_layer_backward")
def _(
    w: Writer,
    n: Results,
    gy: Value | None,
    ghn: Value | None,
    y: Value,
    h0: Value,
    w_hh: Value,
    relu: bool,
    sizes: list[int],
    reverse: bool,
) -> list[Value]:
    args = [gy, ghn, y, w_hh, relu, sizes, reverse]
    dx, dh0 = w.ops("rnn_layer_backward", args, n.types()[:2])
    return [dx, dh0, _state_gradient(w, dx, y, h0, sizes, reverse)]
