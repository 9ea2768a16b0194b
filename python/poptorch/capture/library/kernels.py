# SPDX-License-Identifier: Apache-2.0
"""What our own ops compute, in plain torch: for values that are needed while a model is captured.

Programs never run these; they have rows of the core instead.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from poptorch.capture.library import recurrent  # noqa: F401

_lib = torch.library.Library("tessera", "IMPL", "CPU")


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


_lib.impl("mark_loss", _copy)
_lib.impl("checkpoint", _copy)
_lib.impl("loss_seed", torch.ones_like)


# Attention ----------------------------------------------------------------------------------------


def _weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    stream: int,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """(weights of the values, log-sum-exp of the scores) in float32."""
    scores = q.float() @ k.float().transpose(-2, -1) * scale
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None and mask.dtype is torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    # A row with nothing to attend to gives zero, not NaN.
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    if dropout_p > 0:
        # By its stream, so that backward drops what forward dropped.
        drawn = torch.rand(weights.shape, generator=torch.Generator().manual_seed(stream))
        weights = weights * (drawn >= dropout_p) / (1 - dropout_p)
    return weights, scores.logsumexp(-1)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor]:
    weights, logsumexp = _weights(q, k, mask, *rest)
    return (weights @ v.float()).to(q.dtype), logsumexp


def _sdpa_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    *rest: Any,
) -> tuple[Tensor, ...]:
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    with torch.enable_grad():
        out, _ = _sdpa(q, k, v, mask, *rest)
        return torch.autograd.grad(out, (q, k, v), grad)


_lib.impl("sdpa", _sdpa)
_lib.impl("sdpa_backward", _sdpa_backward)


# Padding ------------------------------------------------------------------------------------------


def _circular_pad(x: Tensor, pad: list[int]) -> Tensor:
    return F.pad(x, pad, "circular")


def _circular_pad_backward(grad: Tensor, shape: list[int], pad: list[int]) -> Tensor:
    x = torch.zeros(shape, dtype=grad.dtype).requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(_circular_pad(x, pad), x, grad)[0]


_lib.impl("circular_pad", _circular_pad)
_lib.impl("circular_pad_backward", _circular_pad_backward)


# Recurrent layers ---------------------------------------------------------------------------------


_Tensors = tuple[Tensor, ...]
_Cell = Callable[..., tuple[_Tensors, _Tensors]]  # (x, *states) -> (states, kept of each row)


def _steps(
    x: Tensor, first: _Tensors, sizes: list[int], reverse: bool, cell: _Cell
) -> tuple[list[Tensor], list[Tensor]]:
    """Runs a cell over time; returns (what it kept, final states)."""
    rows = x.reshape(-1, x.shape[-1]).float()
    sizes = list(sizes) or [x.shape[1]] * x.shape[0]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    states, found = [s.float() for s in first], []
    for size, end in list(zip(sizes, ends, strict=True))[:: -1 if reverse else 1]:
        new, saved = cell(rows[end - size : end], *[s[:size] for s in states])
        states = [torch.cat([n, s[size:]]) for n, s in zip(new, states, strict=True)]
        found.append(saved)
    parts = zip(*found[:: -1 if reverse else 1], strict=True)
    return [torch.cat(p).reshape(*x.shape[:-1], -1) for p in parts], states


def _save(tensor: Tensor, save: bool) -> Tensor:
    return tensor if save else tensor.new_empty(0)


def _lstm_layer(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None,
    sizes: list[int],
    reverse: bool,
    save: bool,
) -> _Tensors:
    def cell(x: Tensor, h: Tensor, c: Tensor) -> tuple[_Tensors, _Tensors]:
        i, f, g, o = (x + h @ w_hh.float().t()).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        h = h if w_hr is None else h @ w_hr.float().t()
        return (h, c), (h, c, torch.cat([i, f, g, o], -1))

    (y, cells, gates), (hn, cn) = _steps(x, (h0, c0), sizes, reverse, cell)
    y, hn, cn = (t.to(x.dtype) for t in (y, hn, cn))
    return y, hn, cn, _save(cells, save), _save(gates, save)


def _gru_layer(
    x: Tensor,
    h0: Tensor,
    w_hh: Tensor,
    b_hn: Tensor | None,
    sizes: list[int],
    reverse: bool,
    save: bool,
) -> _Tensors:
    def cell(x: Tensor, h: Tensor) -> tuple[_Tensors, _Tensors]:
        (xr, xz, xn), (hr, hz, q) = x.chunk(3, -1), (h @ w_hh.float().t()).chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        q = q if b_hn is None else q + b_hn.float()
        n = (xn + r * q).tanh()
        h = (1 - z) * n + z * h
        return (h,), (h, torch.cat([r, z, n, q], -1))

    (y, gates), (hn,) = _steps(x, (h0,), sizes, reverse, cell)
    return y.to(x.dtype), hn.to(x.dtype), _save(gates, save)


def _rnn_layer(
    x: Tensor, h0: Tensor, w_hh: Tensor, relu: bool, sizes: list[int], reverse: bool
) -> _Tensors:
    def cell(x: Tensor, h: Tensor) -> tuple[_Tensors, _Tensors]:
        h = x + h @ w_hh.float().t()
        h = h.relu() if relu else h.tanh()
        return (h,), (h,)

    (y,), (hn,) = _steps(x, (h0,), sizes, reverse, cell)
    return y.to(x.dtype), hn.to(x.dtype)


_lib.impl("lstm_layer", _lstm_layer)
_lib.impl("gru_layer", _gru_layer)
_lib.impl("rnn_layer", _rnn_layer)
