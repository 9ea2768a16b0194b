# SPDX-License-Identifier: Apache-2.0
"""The rows of recurrent layers in plain torch: a loop over time in float64. Gradients are those of
the loop, run again on inputs worked out from the saved gates."""

import torch


def _steps(x, sizes, reverse):
    """Rows (first, end) of each step in order of computation."""
    sizes = sizes or [x.shape[1]] * x.shape[0]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    spans = [(e - n, e) for n, e in zip(sizes, ends, strict=True)]
    return spans[::-1] if reverse else spans


def _flat(x):
    return x.reshape(-1, x.shape[-1]).double()


def _start(state, batch, width):
    return torch.zeros(batch, width, dtype=torch.double) if state is None else state.double()


def _loop(cell, x, states, spans):
    """Outputs per row of every step, and the final states; cell(x, *states) -> (outputs, states)"""
    outputs = [None] * len(spans)
    for i, (begin, end) in enumerate(spans):
        n = end - begin
        outs, new = cell(x[begin:end], *[s[:n] for s in states])
        states = [torch.cat([a, s[n:]]) for a, s in zip(new, states, strict=True)]
        outputs[i] = (begin, outs)
    outputs.sort(key=lambda pair: pair[0])
    return [torch.cat(parts) for parts in zip(*[o for _, o in outputs], strict=True)], states


def _lstm_cell(w_hh, w_hr):
    def cell(x, h, c):
        i, f, g, o = (x + h @ w_hh.t()).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        y = o * c.tanh()
        y = y if w_hr is None else y @ w_hr.t()
        return (y, c, torch.cat([i, f, g, o], -1)), (y, c)

    return cell


def _gru_cell(w_hh, b_hn):
    def cell(x, h):
        (xr, xz, xn), (hr, hz, q) = x.chunk(3, -1), (h @ w_hh.t()).chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        q = q if b_hn is None else q + b_hn
        n = (xn + r * q).tanh()
        h = (1 - z) * n + z * h
        return (h, torch.cat([r, z, n, q], -1)), (h,)

    return cell


def _plain_cell(w_hh, relu):
    def cell(x, h):
        a = x + h @ w_hh.t()
        h = a.relu() if relu else a.tanh()
        return (h,), (h,)

    return cell


def _shaped(flat, like, dtype):
    return flat.reshape(*like.shape[:-1], flat.shape[-1]).to(dtype)


def _wide(*tensors):
    return [None if t is None else t.double() for t in tensors]


def _before(y, start, spans):
    """For each row the state one step before."""
    out = torch.empty_like(y)
    last, state = None, start.clone()
    for begin, end in spans:
        if last is not None:
            state[: last[1] - last[0]] = y[last[0] : last[1]]
        out[begin:end] = state[: end - begin]
        last = (begin, end)
    return out


def _gradients(cell, x, states, spans, grads):
    """Gradients of the loop for x and the states, given those of (outputs, final states)."""
    x, states = x.detach().requires_grad_(), [s.detach().requires_grad_() for s in states]
    with torch.enable_grad():
        outs, finals = _loop(cell, x, states, spans)
        total = 0.0
        for value, grad in zip((outs[0], *finals), grads, strict=True):
            if grad is not None:
                total = total + (value * grad.double().reshape(value.shape)).sum()
        return torch.autograd.grad(total, (x, *states))


def lstm(x, h0, c0, w_hh, w_hr, sizes, reverse, save):
    w_hh, w_hr = _wide(w_hh, w_hr)
    spans = _steps(x, sizes, reverse)
    batch = max(e - b for b, e in spans)
    states = [_start(h0, batch, w_hh.shape[1]), _start(c0, batch, w_hh.shape[0] // 4)]
    (y, c, gates), (hn, cn) = _loop(_lstm_cell(w_hh, w_hr), _flat(x), states, spans)
    saved = [_shaped(t, x, torch.float32) if save else torch.empty(0) for t in (c, gates)]
    return [_shaped(y, x, x.dtype), hn.to(x.dtype), cn.to(x.dtype), *saved]


def lstm_backward(gy, ghn, gcn, c0, w_hh, w_hr, cells, gates, sizes, reverse):
    dtype = w_hh.dtype
    w_hh, w_hr = _wide(w_hh, w_hr)
    spans = _steps(gates, sizes, reverse)
    batch = max(e - b for b, e in spans)
    i, f, g, o = _flat(gates).chunk(4, -1)
    y = o * _flat(cells).tanh()
    y = y if w_hr is None else y @ w_hr.t()
    # The initial state only shifts the input of the first step: zero does as well.
    start = torch.zeros(batch, w_hh.shape[1], dtype=torch.double)
    product = _before(y, start, spans) @ w_hh.t()
    x = torch.cat([i.logit(), f.logit(), g.atanh(), o.logit()], -1) - product
    cell = _lstm_cell(w_hh, w_hr)
    states = [start, _start(c0, batch, w_hh.shape[0] // 4)]
    dx, dh0, dc0 = _gradients(cell, x, states, spans, (gy, ghn, gcn))
    dy = torch.empty(0, dtype=dtype)
    if w_hr is not None:
        later = torch.zeros_like(y)
        for (begin, end), (b, _) in zip(spans[1:], spans, strict=False):
            n = min(end - begin, _size(spans, b))
            later[b : b + n] = dx[begin : begin + n] @ w_hh
        for b, e in spans:
            done = _finished(spans, b, e)
            if ghn is not None:
                later[b + done : e] += ghn.double()[done : e - b]
        dy = later if gy is None else later + _flat(gy)
        dy = _shaped(dy, gates, dtype)
    return [_shaped(dx, gates, dtype), dh0.to(dtype), dc0.to(dtype), dy]


def _size(spans, begin):
    return next(e - b for b, e in spans if b == begin)


def _finished(spans, begin, end):
    """From which sample on a step is the last one."""
    after = spans.index((begin, end)) + 1
    return min(end - begin, spans[after][1] - spans[after][0]) if after < len(spans) else 0


def gru(x, h0, w_hh, b_hn, sizes, reverse, save):
    w_hh, b_hn = _wide(w_hh, b_hn)
    spans = _steps(x, sizes, reverse)
    batch = max(e - b for b, e in spans)
    states = [_start(h0, batch, w_hh.shape[1])]
    (y, gates), (hn,) = _loop(_gru_cell(w_hh, b_hn), _flat(x), states, spans)
    saved = _shaped(gates, x, torch.float32) if save else torch.empty(0)
    return [_shaped(y, x, x.dtype), hn.to(x.dtype), saved]


def gru_backward(gy, ghn, y, h0, w_hh, gates, sizes, reverse):
    dtype, w_hh = w_hh.dtype, w_hh.double()
    spans = _steps(gates, sizes, reverse)
    batch = max(e - b for b, e in spans)
    start = _start(h0, batch, w_hh.shape[1])
    r, z, n, q = _flat(gates).chunk(4, -1)
    pr, pz, pq = (_before(_flat(y), start, spans) @ w_hh.t()).chunk(3, -1)
    b_hn = (q - pq).mean(0)
    x = torch.cat([r.logit() - pr, z.logit() - pz, n.atanh() - r * q], -1)
    dx, dh0 = _gradients(_gru_cell(w_hh, b_hn), x, [start], spans, (gy, ghn))
    dr, dz, dn = dx.chunk(3, -1)
    product = torch.cat([dr, dz, dn * r], -1)
    return [_shaped(dx, gates, dtype), dh0.to(dtype), _shaped(product, gates, dtype)]


def rnn(x, h0, w_hh, relu, sizes, reverse):
    w_hh = w_hh.double()
    spans = _steps(x, sizes, reverse)
    batch = max(e - b for b, e in spans)
    states = [_start(h0, batch, w_hh.shape[1])]
    (y,), (hn,) = _loop(_plain_cell(w_hh, relu), _flat(x), states, spans)
    return [_shaped(y, x, x.dtype), hn.to(x.dtype)]


def rnn_backward(gy, ghn, y, w_hh, relu, sizes, reverse):
    dtype, w_hh = w_hh.dtype, w_hh.double()
    spans = _steps(y, sizes, reverse)
    batch = max(e - b for b, e in spans)
    start = torch.zeros(batch, w_hh.shape[1], dtype=torch.double)
    out = _flat(y)
    inner = torch.where(out > 0, out, -1.0) if relu else out.atanh()
    x = inner - _before(out, start, spans) @ w_hh.t()
    dx, dh0 = _gradients(_plain_cell(w_hh, relu), x, [start], spans, (gy, ghn))
    return [_shaped(dx, y, dtype), dh0.to(dtype)]


EVALUATE = {
    "lstm_layer": lstm,
    "lstm_layer_backward": lstm_backward,
    "gru_layer": gru,
    "gru_layer_backward": gru_backward,
    "rnn_layer": rnn,
    "rnn_layer_backward": rnn_backward,
}
