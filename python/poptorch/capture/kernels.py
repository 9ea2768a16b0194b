# SPDX-License-Identifier: Apache-2.0
"""What our own ops compute, in plain torch: for values that are needed while a model is captured.

Programs never run these; they have rows of the core instead.
"""

import torch
import torch.nn.functional as F  # noqa: N812

from . import library, recurrent  # noqa: F401

_lib = torch.library.Library("tessera", "IMPL", "CPU")


def _copy(x):
    return x.clone(memory_format=torch.contiguous_format)


_lib.impl("mark_loss", _copy)
_lib.impl("checkpoint", _copy)
_lib.impl("loss_seed", torch.ones_like)


# Attention ----------------------------------------------------------------------------------------


def _weights(q, k, mask, stream, dropout_p, is_causal, scale):
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


def _sdpa(q, k, v, mask, *rest):
    weights, logsumexp = _weights(q, k, mask, *rest)
    return (weights @ v.float()).to(q.dtype), logsumexp


def _sdpa_backward(grad, q, k, v, mask, out, logsumexp, *rest):
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    with torch.enable_grad():
        out, _ = _sdpa(q, k, v, mask, *rest)
        return torch.autograd.grad(out, (q, k, v), grad)


_lib.impl("sdpa", _sdpa)
_lib.impl("sdpa_backward", _sdpa_backward)


# Padding ------------------------------------------------------------------------------------------


def _circular_pad(x, pad):
    return F.pad(x, pad, "circular")


def _circular_pad_backward(grad, shape, pad):
    x = torch.zeros(shape, dtype=grad.dtype).requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(_circular_pad(x, pad), x, grad)[0]


_lib.impl("circular_pad", _circular_pad)
_lib.impl("circular_pad_backward", _circular_pad_backward)


# Recurrent layers ---------------------------------------------------------------------------------


def _steps(x, states, sizes, reverse, cell):
    """Runs cell(x, *states) -> (states, saved) over time; returns (saved per row, final states)."""
    rows = x.reshape(-1, x.shape[-1]).float()
    sizes = list(sizes) or [x.shape[1]] * x.shape[0]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    states, found = [s.float() for s in states], []
    for size, end in list(zip(sizes, ends, strict=True))[:: -1 if reverse else 1]:
        new, saved = cell(rows[end - size : end], *[s[:size] for s in states])
        states = [torch.cat([n, s[size:]]) for n, s in zip(new, states, strict=True)]
        found.append(saved)
    parts = zip(*found[:: -1 if reverse else 1], strict=True)
    return [torch.cat(p).reshape(*x.shape[:-1], -1) for p in parts], states


def _save(tensor, save):
    return tensor if save else tensor.new_empty(0)


def _lstm_layer(x, h0, c0, w_hh, w_hr, sizes, reverse, save):
    def cell(x, h, c):
        i, f, g, o = (x + h @ w_hh.float().t()).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        h = h if w_hr is None else h @ w_hr.float().t()
        return (h, c), (h, c, torch.cat([i, f, g, o], -1))

    (y, cells, gates), (hn, cn) = _steps(x, (h0, c0), sizes, reverse, cell)
    y, hn, cn = (t.to(x.dtype) for t in (y, hn, cn))
    return y, hn, cn, _save(cells, save), _save(gates, save)


def _gru_layer(x, h0, w_hh, b_hn, sizes, reverse, save):
    def cell(x, h):
        (xr, xz, xn), (hr, hz, q) = x.chunk(3, -1), (h @ w_hh.float().t()).chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        q = q if b_hn is None else q + b_hn.float()
        n = (xn + r * q).tanh()
        h = (1 - z) * n + z * h
        return (h,), (h, torch.cat([r, z, n, q], -1))

    (y, gates), (hn,) = _steps(x, (h0,), sizes, reverse, cell)
    return y.to(x.dtype), hn.to(x.dtype), _save(gates, save)


def _rnn_layer(x, h0, w_hh, relu, sizes, reverse):
    def cell(x, h):
        h = x + h @ w_hh.float().t()
        h = h.relu() if relu else h.tanh()
        return (h,), (h,)

    (y,), (hn,) = _steps(x, (h0,), sizes, reverse, cell)
    return y.to(x.dtype), hn.to(x.dtype)


_lib.impl("lstm_layer", _lstm_layer)
_lib.impl("gru_layer", _gru_layer)
_lib.impl("rnn_layer", _rnn_layer)
