# SPDX-License-Identifier: Apache-2.0
"""RNN, GRU and LSTM as one node per layer and direction, forward and backward.

The input of all time steps is projected at once by an ordinary product, so that autograd makes the
gradients of its weights and biases; the nodes here do what depends on the last state.
"""

import torch
from torch.autograd.function import once_differentiable

from . import _torch_private as private
from . import constants, state
from .errors import make_error, user_frame

_lib = torch.library.Library("tessera", "FRAGMENT")
_lib.define(
    "lstm_layer(Tensor x, Tensor h0, Tensor c0, Tensor w_hh, Tensor? w_hr, int[] sizes, "
    "bool reverse, bool save) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_lib.define(
    "lstm_layer_backward(Tensor? gy, Tensor? ghn, Tensor? gcn, Tensor y, Tensor h0, Tensor c0, "
    "Tensor w_hh, Tensor? w_hr, Tensor cells, Tensor gates, int[] sizes, bool reverse) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_lib.define(
    "gru_layer(Tensor x, Tensor h0, Tensor w_hh, Tensor? b_hn, int[] sizes, bool reverse, "
    "bool save) -> (Tensor, Tensor, Tensor)"
)
_lib.define(
    "gru_layer_backward(Tensor? gy, Tensor? ghn, Tensor y, Tensor h0, Tensor w_hh, Tensor gates, "
    "int[] sizes, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)"
)
_lib.define(
    "rnn_layer(Tensor x, Tensor h0, Tensor w_hh, bool relu, int[] sizes, bool reverse) "
    "-> (Tensor, Tensor)"
)
_lib.define(
    "rnn_layer_backward(Tensor? gy, Tensor? ghn, Tensor y, Tensor h0, Tensor w_hh, bool relu, "
    "int[] sizes, bool reverse) -> (Tensor, Tensor, Tensor)"
)
ops = torch.ops.tessera


def _fake(name):
    return torch.library.register_fake(f"tessera::{name}", lib=_lib)


def _saved(x, width, save):
    return x.new_empty((*x.shape[:-1], width) if save else (0,), dtype=torch.float32)


@_fake("lstm_layer")
def _(x, h0, c0, w_hh, w_hr, sizes, reverse, save):
    hidden = c0.shape[-1]
    y = x.new_empty((*x.shape[:-1], h0.shape[-1]))
    cells, gates = _saved(x, hidden, save), _saved(x, 4 * hidden, save)
    return y, h0.new_empty(h0.shape), c0.new_empty(c0.shape), cells, gates


@_fake("lstm_layer_backward")
def _(gy, ghn, gcn, y, h0, c0, w_hh, w_hr, cells, gates, sizes, reverse):
    dx = y.new_empty((*y.shape[:-1], w_hh.shape[0]))
    dw_hr = w_hh.new_empty((0,) if w_hr is None else w_hr.shape)
    return dx, h0.new_empty(h0.shape), c0.new_empty(c0.shape), w_hh.new_empty(w_hh.shape), dw_hr


@_fake("gru_layer")
def _(x, h0, w_hh, b_hn, sizes, reverse, save):
    hidden = h0.shape[-1]
    y = x.new_empty((*x.shape[:-1], hidden))
    return y, h0.new_empty(h0.shape), _saved(x, 4 * hidden, save)


@_fake("gru_layer_backward")
def _(gy, ghn, y, h0, w_hh, gates, sizes, reverse):
    dx = y.new_empty((*y.shape[:-1], w_hh.shape[0]))
    return dx, h0.new_empty(h0.shape), w_hh.new_empty(w_hh.shape), w_hh.new_empty(h0.shape[-1:])


@_fake("rnn_layer")
def _(x, h0, w_hh, relu, sizes, reverse):
    return x.new_empty(x.shape), h0.new_empty(h0.shape)


@_fake("rnn_layer_backward")
def _(gy, ghn, y, h0, w_hh, relu, sizes, reverse):
    return y.new_empty(y.shape), h0.new_empty(h0.shape), w_hh.new_empty(w_hh.shape)


class LstmLayer(torch.autograd.Function):
    """One direction of one LSTM layer: (x, h0, c0, ...) -> y, hn, cn."""

    @staticmethod
    def forward(ctx, x, h0, c0, w_hh, w_hr, sizes, reverse, grad_enabled):
        save = grad_enabled and any(ctx.needs_input_grad)
        y, hn, cn, cells, gates = ops.lstm_layer(x, h0, c0, w_hh, w_hr, sizes, reverse, save)
        ctx.save_for_backward(y, h0, c0, w_hh, w_hr, cells, gates)
        ctx.rest = (sizes, reverse)
        ctx.set_materialize_grads(False)
        return y, hn, cn

    @staticmethod
    @once_differentiable
    def backward(ctx, gy, ghn, gcn):
        dx, dh0, dc0, dw_hh, dw_hr = ops.lstm_layer_backward(
            gy, ghn, gcn, *ctx.saved_tensors, *ctx.rest
        )
        dw_hr = dw_hr if ctx.needs_input_grad[4] else None
        return dx, dh0, dc0, dw_hh, dw_hr, None, None, None


class GruLayer(torch.autograd.Function):
    """One direction of one GRU layer: (x, h0, ...) -> y, hn."""

    @staticmethod
    def forward(ctx, x, h0, w_hh, b_hn, sizes, reverse, grad_enabled):
        save = grad_enabled and any(ctx.needs_input_grad)
        y, hn, gates = ops.gru_layer(x, h0, w_hh, b_hn, sizes, reverse, save)
        ctx.save_for_backward(y, h0, w_hh, gates)
        ctx.rest = (sizes, reverse)
        ctx.set_materialize_grads(False)
        return y, hn

    @staticmethod
    @once_differentiable
    def backward(ctx, gy, ghn):
        dx, dh0, dw_hh, db_hn = ops.gru_layer_backward(gy, ghn, *ctx.saved_tensors, *ctx.rest)
        return dx, dh0, dw_hh, db_hn if ctx.needs_input_grad[3] else None, *[None] * 3


class RnnLayer(torch.autograd.Function):
    """One direction of one plain layer: (x, h0, ...) -> y, hn."""

    @staticmethod
    def forward(ctx, x, h0, w_hh, relu, sizes, reverse):
        y, hn = ops.rnn_layer(x, h0, w_hh, relu, sizes, reverse)
        ctx.save_for_backward(y, h0, w_hh)
        ctx.rest = (relu, sizes, reverse)
        ctx.set_materialize_grads(False)
        return y, hn

    @staticmethod
    @once_differentiable
    def backward(ctx, gy, ghn):
        dx, dh0, dw_hh = ops.rnn_layer_backward(gy, ghn, *ctx.saved_tensors, *ctx.rest)
        return dx, dh0, dw_hh, None, None, None


def _projected(x, w_ih, bias):
    flat = x.reshape(-1, x.shape[-1])
    flat = torch.mm(flat, w_ih.t()) if bias is None else torch.addmm(bias, flat, w_ih.t())
    return flat.reshape(*x.shape[:-1], w_ih.shape[0])


def _lstm_step(x, state, weights, biases, sizes, reverse):
    w_ih, w_hh, w_hr = weights
    xp = _projected(x, w_ih, biases[0] + biases[1] if biases else None)
    grad = torch.is_grad_enabled()
    y, *state = LstmLayer.apply(xp, *state, w_hh, w_hr, sizes, reverse, grad)
    return y, state


def _gru_step(x, state, weights, biases, sizes, reverse):
    w_ih, w_hh, _ = weights
    bias = b_hn = None
    if biases:
        gates = 2 * w_hh.shape[1]
        bias = torch.cat([biases[0][:gates] + biases[1][:gates], biases[0][gates:]])
        b_hn = biases[1][gates:]
    xp, grad = _projected(x, w_ih, bias), torch.is_grad_enabled()
    y, hn = GruLayer.apply(xp, *state, w_hh, b_hn, sizes, reverse, grad)
    return y, [hn]


def _plain_step(relu):
    def step(x, state, weights, biases, sizes, reverse):
        w_ih, w_hh, _ = weights
        xp = _projected(x, w_ih, biases[0] + biases[1] if biases else None)
        y, hn = RnnLayer.apply(xp, *state, w_hh, relu, sizes, reverse)
        return y, [hn]

    return step


def _layers(params, has_biases, projected):
    """Weights (w_ih, w_hh, w_hr) and biases (b_ih, b_hh) of each layer and direction."""
    each = 2 + 2 * has_biases + projected
    for i in range(0, len(params), each):
        mine = params[i : i + each]
        yield (*mine[:2], mine[-1] if projected else None), mine[2:4] if has_biases else ()


def _run(step, x, hx, params, has_biases, layers, dropout, train, bidirectional, sizes):
    directions = 2 if bidirectional else 1
    projected = len(hx) == 2 and hx[0].shape[-1] != hx[1].shape[-1]
    weights = list(_layers(params, has_biases, projected))
    finals = []
    for layer in range(layers):
        outputs = []
        for d in range(directions):
            i = layer * directions + d
            y, state = step(x, [h[i] for h in hx], *weights[i], sizes, d == 1)
            outputs.append(y)
            finals.append(state)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout > 0 and train and layer + 1 < layers:
            x = torch.native_dropout(x, float(dropout), True)[0]
    return x, [torch.stack(s) for s in zip(*finals, strict=True)]


DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of the kernels
_STEPS = {
    torch.lstm: ("lstm_layer", _lstm_step),
    torch.gru: ("gru_layer", _gru_step),
    torch.rnn_tanh: ("rnn_layer", _plain_step(False)),
    torch.rnn_relu: ("rnn_layer", _plain_step(True)),
}


def _recurrent(mode, func, args, kwargs):
    if kwargs:
        return NotImplemented
    row, step = _STEPS[func]
    packed = isinstance(args[3], (list, tuple))
    if packed:
        x, batch_sizes, hx, params, *rest = args
        batch_first = False
    else:
        x, hx, params, *rest, batch_first = args
        batch_sizes = None
    states = [hx] if isinstance(hx, torch.Tensor) else list(hx)
    dtypes = {t.dtype for t in (x, *states, *params)}
    if row not in mode.session.native_ops or len(dtypes) > 1 or not dtypes <= set(DTYPES):
        return NotImplemented
    if torch.is_autocast_enabled("cpu") or 0 in x.shape:
        return NotImplemented
    sizes = [] if batch_sizes is None else known_lengths(batch_sizes)
    x = x.transpose(0, 1) if batch_first else x
    y, states = _run(step, x, states, params, *rest, sizes)
    return (y.transpose(0, 1) if batch_first else y, *states)


def known_lengths(lengths):
    """The numbers in a tensor of lengths; they shape the program, so they must be known now."""
    known, values = constants.value_of(lengths), state.current().frozen
    if known is None and values.refuses:
        raise make_error(
            "The lengths of a packed sequence are not known when the model is compiled: they "
            "decide the shapes of the program. Give them as a list of numbers that is the same in "
            "every call, or leave the sequences padded and mask the results.",
            user_frame(),
        )
    if known is None:
        known = values.read(lengths, "The length of a packed sequence", user_frame())
    return private.without_modes(known.tolist)


def _pack(mode, func, args, kwargs):
    """pack_padded_sequence: rows of a padded batch, step by step without the padding."""
    x, lengths, batch_first = args
    lengths = known_lengths(lengths)
    x = x.transpose(0, 1) if batch_first else x
    steps, batch = x.shape[:2]
    if lengths != sorted(lengths, reverse=True):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. "
            "You can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to "
            "sidestep this requirement if you do not need ONNX exportability."
        )
    if len(lengths) != batch or min(lengths, default=1) <= 0 or lengths[0] > steps:
        raise RuntimeError(
            f"Expected {batch} lengths from 1 to {steps} for a batch of {batch} sequences, "
            f"but got {lengths}"
        )
    sizes = [sum(n > t for n in lengths) for t in range(lengths[0])]
    rows = [t * batch + b for t, size in enumerate(sizes) for b in range(size)]
    return x.reshape(-1, *x.shape[2:])[torch.tensor(rows)], torch.tensor(sizes)


def _pad(mode, func, args, kwargs):
    """pad_packed_sequence: each place of the padded batch takes its row, or the padding."""
    data, batch_sizes, batch_first, padding, total = args
    sizes = known_lengths(batch_sizes)
    steps = len(sizes) if total <= 0 else total
    if steps < len(sizes):
        raise RuntimeError(
            "Expected total_length to be at least the length of the longest sequence in input, "
            f"but got total_length={total} and max sequence length being {len(sizes)}"
        )
    batch, n, rows = sizes[0], 0, []
    for size in sizes + [0] * (steps - len(sizes)):
        rows += [n + b if b < size else data.shape[0] for b in range(batch)]
        n += size
    last = torch.full((1, *data.shape[1:]), padding, dtype=data.dtype)
    y = torch.cat([data, last])[torch.tensor(rows)].reshape(steps, batch, *data.shape[1:])
    lengths = torch.tensor([sum(size > b for size in sizes) for b in range(batch)])
    return y.transpose(0, 1) if batch_first else y, lengths


HANDLERS = {
    **dict.fromkeys(_STEPS, _recurrent),
    torch._VF._pack_padded_sequence: _pack,
    torch._VF._pad_packed_sequence: _pad,
}
