# SPDX-License-Identifier: Apache-2.0
"""RNN, GRU and LSTM as one node per layer and direction, and packed sequences.

The input of all time steps is projected at once by an ordinary product, so that autograd computes
the gradients of its weights and biases; the nodes do what depends on the last state.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from poptorch.capture import _torch_private as private
from poptorch.capture import state
from poptorch.capture.calls.handler import Args, Function, Handler, Kwargs, Mode
from poptorch.capture.errors import make_error, user_frame
from poptorch.capture.library.recurrent import GruLayer, LstmLayer, RnnLayer
from poptorch.capture.values import constants

_Weights = tuple[Tensor, Tensor, Tensor | None]  # of the input, the state and the projection
_Biases = Sequence[Tensor]  # of the input and the state, or none


class _Step(Protocol):
    """One layer in one direction, from its input and first states to its output and last states."""

    def __call__(
        self,
        x: Tensor,
        state: list[Tensor],
        weights: _Weights,
        biases: _Biases,
        sizes: list[int],
        reverse: bool,
    ) -> tuple[Tensor, list[Tensor]]: ...


def _projected(x: Tensor, w_ih: Tensor, bias: Tensor | None) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    flat = torch.mm(flat, w_ih.t()) if bias is None else torch.addmm(bias, flat, w_ih.t())
    return flat.reshape(*x.shape[:-1], w_ih.shape[0])


def _lstm_step(
    x: Tensor,
    state: list[Tensor],
    weights: _Weights,
    biases: _Biases,
    sizes: list[int],
    reverse: bool,
) -> tuple[Tensor, list[Tensor]]:
    w_ih, w_hh, w_hr = weights
    xp = _projected(x, w_ih, biases[0] + biases[1] if biases else None)
    grad = torch.is_grad_enabled()
    y, *state = LstmLayer.apply(xp, *state, w_hh, w_hr, sizes, reverse, grad)
    return y, state


def _gru_step(
    x: Tensor,
    state: list[Tensor],
    weights: _Weights,
    biases: _Biases,
    sizes: list[int],
    reverse: bool,
) -> tuple[Tensor, list[Tensor]]:
    w_ih, w_hh, _ = weights
    bias = b_hn = None
    if biases:
        gates = 2 * w_hh.shape[1]
        bias = torch.cat([biases[0][:gates] + biases[1][:gates], biases[0][gates:]])
        b_hn = biases[1][gates:]
    xp, grad = _projected(x, w_ih, bias), torch.is_grad_enabled()
    y, hn = GruLayer.apply(xp, *state, w_hh, b_hn, sizes, reverse, grad)
    return y, [hn]


def _plain_step(relu: bool) -> _Step:
    def step(
        x: Tensor,
        state: list[Tensor],
        weights: _Weights,
        biases: _Biases,
        sizes: list[int],
        reverse: bool,
    ) -> tuple[Tensor, list[Tensor]]:
        w_ih, w_hh, _ = weights
        xp = _projected(x, w_ih, biases[0] + biases[1] if biases else None)
        y, hn = RnnLayer.apply(xp, *state, w_hh, relu, sizes, reverse)
        return y, [hn]

    return step


def _layers(
    params: Sequence[Tensor], has_biases: bool, projected: bool
) -> Iterator[tuple[_Weights, _Biases]]:
    """Weights (w_ih, w_hh, w_hr) and biases (b_ih, b_hh) of each layer and direction."""
    each = 2 + 2 * has_biases + projected
    for i in range(0, len(params), each):
        mine = params[i : i + each]
        w_hr = mine[-1] if projected else None
        yield (mine[0], mine[1], w_hr), mine[2:4] if has_biases else ()


def _run(
    step: _Step,
    x: Tensor,
    hx: list[Tensor],
    params: Sequence[Tensor],
    sizes: list[int],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, list[Tensor]]:
    """All layers of a network: (the last output, the last states of all layers)."""
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
_STEPS: dict[Function, tuple[str, _Step]] = {
    torch.lstm: ("lstm_layer", _lstm_step),
    torch.gru: ("gru_layer", _gru_step),
    torch.rnn_tanh: ("rnn_layer", _plain_step(False)),
    torch.rnn_relu: ("rnn_layer", _plain_step(True)),
}


def _recurrent(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    if kwargs:
        return NotImplemented
    row, step = _STEPS[func]
    rest: list[Any]  # has_biases, layers, dropout, train, bidirectional
    if isinstance(args[3], (list, tuple)):
        x, batch_sizes, hx, params, *rest = args
        batch_first = False
    else:
        x, hx, params, *rest, batch_first = args
        batch_sizes = None
    states = [hx] if isinstance(hx, torch.Tensor) else list(hx)
    dtypes = {t.dtype for t in (x, *states, *params)}
    if row not in mode.session.rows or len(dtypes) > 1 or not dtypes <= set(DTYPES):
        return NotImplemented
    if torch.is_autocast_enabled("cpu") or 0 in x.shape:
        return NotImplemented
    sizes = [] if batch_sizes is None else known_lengths(batch_sizes)
    x = x.transpose(0, 1) if batch_first else x
    y, states = _run(step, x, states, params, sizes, *rest)
    return (y.transpose(0, 1) if batch_first else y, *states)


def known_lengths(lengths: Tensor) -> list[int]:
    """The numbers in a tensor of lengths; they shape the program, so they must be known now."""
    session = state.current()
    assert session is not None
    known, values = constants.value_of(lengths), session.frozen
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


def _pack(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
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


def _pad(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """pad_packed_sequence: each step of the padded batch takes its rows, or the padding."""
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


HANDLERS: dict[Function, Handler] = {
    **dict.fromkeys(_STEPS, _recurrent),
    torch._VF._pack_padded_sequence: _pack,
    torch._VF._pad_packed_sequence: _pad,
}
