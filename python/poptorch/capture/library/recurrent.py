# SPDX-License-Identifier: Apache-2.0
"""A layer of an RNN, GRU or LSTM in one direction: one node forward and one backward."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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


def _fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return torch.library.register_fake(f"tessera::{name}", lib=_lib)


def _saved(x: Tensor, width: int, save: bool) -> Tensor:
    """What backward reads: a row per row of x, or nothing."""
    return x.new_empty((*x.shape[:-1], width) if save else (0,), dtype=torch.float32)


@_fake("lstm_layer")
def _lstm_layer_fake(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None,
    sizes: list[int],
    reverse: bool,
    save: bool,
) -> tuple[Tensor, ...]:
    hidden = c0.shape[-1]
    y = x.new_empty((*x.shape[:-1], h0.shape[-1]))
    cells, gates = _saved(x, hidden, save), _saved(x, 4 * hidden, save)
    return y, h0.new_empty(h0.shape), c0.new_empty(c0.shape), cells, gates


@_fake("lstm_layer_backward")
def _lstm_layer_backward_fake(
    gy: Tensor | None,
    ghn: Tensor | None,
    gcn: Tensor | None,
    y: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None,
    *_rest: Any,
) -> tuple[Tensor, ...]:
    dx = y.new_empty((*y.shape[:-1], w_hh.shape[0]))
    dw_hr = w_hh.new_empty((0,) if w_hr is None else w_hr.shape)
    return dx, h0.new_empty(h0.shape), c0.new_empty(c0.shape), w_hh.new_empty(w_hh.shape), dw_hr


@_fake("gru_layer")
def _gru_layer_fake(
    x: Tensor,
    h0: Tensor,
    w_hh: Tensor,
    b_hn: Tensor | None,
    sizes: list[int],
    reverse: bool,
    save: bool,
) -> tuple[Tensor, ...]:
    hidden = h0.shape[-1]
    y = x.new_empty((*x.shape[:-1], hidden))
    return y, h0.new_empty(h0.shape), _saved(x, 4 * hidden, save)


@_fake("gru_layer_backward")
def _gru_layer_backward_fake(
    gy: Tensor | None, ghn: Tensor | None, y: Tensor, h0: Tensor, w_hh: Tensor, *_rest: Any
) -> tuple[Tensor, ...]:
    dx = y.new_empty((*y.shape[:-1], w_hh.shape[0]))
    return dx, h0.new_empty(h0.shape), w_hh.new_empty(w_hh.shape), w_hh.new_empty(h0.shape[-1:])


@_fake("rnn_layer")
def _rnn_layer_fake(x: Tensor, h0: Tensor, *_rest: Any) -> tuple[Tensor, ...]:
    return x.new_empty(x.shape), h0.new_empty(h0.shape)


@_fake("rnn_layer_backward")
def _rnn_layer_backward_fake(
    gy: Tensor | None, ghn: Tensor | None, y: Tensor, h0: Tensor, w_hh: Tensor, *_rest: Any
) -> tuple[Tensor, ...]:
    return y.new_empty(y.shape), h0.new_empty(h0.shape), w_hh.new_empty(w_hh.shape)


class LstmLayer(torch.autograd.Function):
    """One direction of one LSTM layer: (x, h0, c0, ...) -> y, hn, cn."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        c0: Tensor,
        w_hh: Tensor,
        w_hr: Tensor | None,
        sizes: list[int],
        reverse: bool,
        grad_enabled: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        save = grad_enabled and any(ctx.needs_input_grad)
        y, hn, cn, cells, gates = ops.lstm_layer(x, h0, c0, w_hh, w_hr, sizes, reverse, save)
        ctx.save_for_backward(y, h0, c0, w_hh, w_hr, cells, gates)
        ctx.rest = (sizes, reverse)
        ctx.set_materialize_grads(False)
        return y, hn, cn

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gy: Tensor | None, ghn: Tensor | None, gcn: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        dx, dh0, dc0, dw_hh, dw_hr = ops.lstm_layer_backward(
            gy, ghn, gcn, *ctx.saved_tensors, *ctx.rest
        )
        dw_hr = dw_hr if ctx.needs_input_grad[4] else None
        return dx, dh0, dc0, dw_hh, dw_hr, None, None, None


class GruLayer(torch.autograd.Function):
    """One direction of one GRU layer: (x, h0, ...) -> y, hn."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        w_hh: Tensor,
        b_hn: Tensor | None,
        sizes: list[int],
        reverse: bool,
        grad_enabled: bool,
    ) -> tuple[Tensor, Tensor]:
        save = grad_enabled and any(ctx.needs_input_grad)
        y, hn, gates = ops.gru_layer(x, h0, w_hh, b_hn, sizes, reverse, save)
        ctx.save_for_backward(y, h0, w_hh, gates)
        ctx.rest = (sizes, reverse)
        ctx.set_materialize_grads(False)
        return y, hn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor | None, ghn: Tensor | None) -> tuple[Tensor | None, ...]:
        dx, dh0, dw_hh, db_hn = ops.gru_layer_backward(gy, ghn, *ctx.saved_tensors, *ctx.rest)
        return dx, dh0, dw_hh, db_hn if ctx.needs_input_grad[3] else None, *[None] * 3


class RnnLayer(torch.autograd.Function):
    """One direction of one plain layer: (x, h0, ...) -> y, hn."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        w_hh: Tensor,
        relu: bool,
        sizes: list[int],
        reverse: bool,
    ) -> tuple[Tensor, Tensor]:
        y, hn = ops.rnn_layer(x, h0, w_hh, relu, sizes, reverse)
        ctx.save_for_backward(y, h0, w_hh)
        ctx.rest = (relu, sizes, reverse)
        ctx.set_materialize_grads(False)
        return y, hn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor | None, ghn: Tensor | None) -> tuple[Tensor | None, ...]:
        dx, dh0, dw_hh = ops.rnn_layer_backward(gy, ghn, *ctx.saved_tensors, *ctx.rest)
        return dx, dh0, dw_hh, None, None, None
