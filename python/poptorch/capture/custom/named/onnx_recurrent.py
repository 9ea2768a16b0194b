# SPDX-License-Identifier: Apache-2.0
"""``ai.onnx``: RNN, GRU and LSTM.

With the usual activations they are torch's layers, with weights in its order. Everything else is
computed step by step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from poptorch.capture.custom.named.table import Call, Named, Result

_Function = Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, Callable[[float | None, float | None], _Function]] = {
    "Relu": lambda a, b: torch.relu,
    "Tanh": lambda a, b: torch.tanh,
    "Sigmoid": lambda a, b: torch.sigmoid,
    "Softsign": lambda a, b: F.softsign,
    "Softplus": lambda a, b: F.softplus,
    "Affine": lambda a, b: lambda x: x * (1.0 if a is None else a) + (b or 0.0),
    "LeakyRelu": lambda a, b: lambda x: F.leaky_relu(x, 0.01 if a is None else a),
    "ThresholdedRelu": lambda a, b: lambda x: torch.where(x > (1.0 if a is None else a), x, 0.0),
    "ScaledTanh": lambda a, b: lambda x: torch.tanh(x * (b or 1.0)) * (a or 1.0),
    "HardSigmoid": lambda a, b: (
        lambda x: torch.clamp(x * (0.2 if a is None else a) + (0.5 if b is None else b), 0.0, 1.0)
    ),
    "Elu": lambda a, b: lambda x: F.elu(x, 1.0 if a is None else a),
}
_USUAL = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
# where torch's gates are among those of ONNX
_GATES = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}


@dataclass
class _Direction:
    """The parameters of one direction."""

    w: Tensor
    r: Tensor
    bias: Tensor | None  # of the input, then of the state
    peephole: Tensor | None
    functions: list[_Function]


@dataclass
class _Layer:
    """A call of a recurrent op, inputs with time first."""

    kind: str
    x: Tensor
    hidden: int
    directions: list[_Direction]
    reverse: list[bool]
    lengths: Tensor | None
    states: list[Tensor]  # h, for LSTM c as well: [directions, batch, hidden]
    usual: str | None  # torch's function, if there is one
    clip: float | None
    linear_before_reset: bool
    input_forget: bool


def _functions(call: Call, kind: str, count: int) -> tuple[list[str], list[list[_Function]]]:
    names = call.strs("activations") or _USUAL[kind] * count
    alphas, betas = call.floats("activation_alpha") or [], call.floats("activation_beta") or []
    each = len(_USUAL[kind])
    if len(names) != each * count:
        call.fail(f"attribute activations must have {each * count} names, not {len(names)}.")
    made = []
    known = {name.lower(): name for name in _ACTIVATIONS}
    for i, name in enumerate(names):
        if name.lower() not in known:
            call.fail(f"the activation {name!r} is none of {', '.join(_ACTIVATIONS)}.")
        a = alphas[i] if i < len(alphas) else None
        b = betas[i] if i < len(betas) else None
        made.append(_ACTIVATIONS[known[name.lower()]](a, b))
    return [known[n.lower()] for n in names], [made[d * each :][:each] for d in range(count)]


def _layer(call: Call, kind: str) -> _Layer:
    x, w, r = call.x(0), call.x(1, "W"), call.x(2, "R")
    batch_first = call.version >= 14 and call.flag("layout")
    x = x.transpose(0, 1) if batch_first else x
    hidden = call.int_("hidden_size", r.shape[-1])
    direction = call.choice("direction", "forward", ("forward", "reverse", "bidirectional"))
    count = 2 if direction == "bidirectional" else 1
    if w.dim() != 3 or w.shape[0] != count or r.shape[-1] != hidden:
        call.fail(
            f"W {list(w.shape)} and R {list(r.shape)} do not fit {count} direction(s) and "
            f"hidden_size {hidden}."
        )
    bias, lengths = call.maybe(3), call.maybe(4)
    states = []
    for i in range(2 if kind == "LSTM" else 1):
        state = call.maybe(5 + i)
        if state is None:
            state = torch.zeros((count, x.shape[1], hidden), dtype=x.dtype)
        elif batch_first:
            state = state.transpose(0, 1)
        states.append(state)
    peephole = call.maybe(7) if kind == "LSTM" else None
    names, functions = _functions(call, kind, count)
    call.known("clip", "output_sequence")
    clip = call.float_("clip") if "clip" in call.attributes else None
    linear = call.flag("linear_before_reset") if kind == "GRU" else False
    forget = call.flag("input_forget") if kind == "LSTM" else False
    plain = clip is None and lengths is None and peephole is None and not forget
    usual = None
    if plain and (kind != "GRU" or linear):
        if names == _USUAL[kind] * count:
            usual = {"RNN": "rnn_tanh", "GRU": "gru", "LSTM": "lstm"}[kind]
        elif kind == "RNN" and names == ["Relu"] * count:
            usual = "rnn_relu"
    directions = [
        _Direction(
            w[d],
            r[d],
            None if bias is None else bias[d],
            None if peephole is None else peephole[d],
            functions[d],
        )
        for d in range(count)
    ]
    reverse = [direction == "reverse", True][:count] if count == 1 else [False, True]
    return _Layer(
        kind, x, hidden, directions, reverse, lengths, states, usual, clip, linear, forget
    )


def _by_torch(layer: _Layer) -> tuple[Tensor, list[Tensor]]:
    """The layer by torch's function: y [time, directions, batch, hidden] and the last states."""
    order = _GATES[layer.kind]

    def gates(t: Tensor) -> Tensor:
        parts = t.chunk(len(order))
        return torch.cat([parts[g] for g in order]) if len(order) > 1 else t

    weights: list[Tensor] = []
    for one in layer.directions:
        weights += [gates(one.w), gates(one.r)]
        if one.bias is not None:
            weights += [gates(b) for b in one.bias.chunk(2)]
    backwards = layer.reverse == [True]
    x = layer.x.flip(0) if backwards else layer.x
    first = layer.states if layer.kind == "LSTM" else layer.states[0]
    biased = layer.directions[0].bias is not None
    run = getattr(torch, str(layer.usual))
    two = len(layer.directions) == 2
    y, *last = run(x, first, weights, biased, 1, 0.0, False, two, False)
    y = y.reshape(*y.shape[:2], len(layer.directions), layer.hidden).transpose(1, 2)
    return (y.flip(0) if backwards else y), last


def _step(layer: _Layer, one: _Direction, x: Tensor, states: list[Tensor]) -> list[Tensor]:
    """The states after one step; x is already multiplied with the weights of the input."""
    h = states[0]
    rb = None if one.bias is None else one.bias.chunk(2)[1]

    def clip(t: Tensor) -> Tensor:
        return t if layer.clip is None else torch.clamp(t, -layer.clip, layer.clip)

    f = one.functions
    if layer.kind == "RNN":
        return [f[0](clip(x + F.linear(h, one.r, rb)))]
    if layer.kind == "GRU":
        parts = one.r.chunk(3)
        biases: Sequence[Tensor | None] = [None] * 3 if rb is None else rb.chunk(3)
        xz, xr, xh = x.chunk(3, -1)
        z = f[0](clip(xz + F.linear(h, parts[0], biases[0])))
        r = f[0](clip(xr + F.linear(h, parts[1], biases[1])))
        if layer.linear_before_reset:
            new = f[1](clip(xh + r * F.linear(h, parts[2], biases[2])))
        else:
            new = f[1](clip(xh + F.linear(r * h, parts[2], biases[2])))
        return [(1 - z) * new + z * h]
    c = states[1]
    i, o, g, n = (x + F.linear(h, one.r, rb)).chunk(4, -1)  # input, output, forget, new
    pi = po = pf = None
    if one.peephole is not None:
        pi, po, pf = one.peephole.chunk(3)
        i, g = i + pi * c, g + pf * c
    i = f[0](clip(i))
    g = 1 - i if layer.input_forget else f[0](clip(g))
    c = g * c + i * f[1](clip(n))
    o = o if po is None else o + po * c
    return [f[0](clip(o)) * f[2](c), c]


def _by_steps(layer: _Layer, d: int) -> tuple[Tensor, list[Tensor]]:
    """One direction step by step: y [time, batch, hidden] and the last states."""
    one, backwards = layer.directions[d], layer.reverse[d]
    wb = None if one.bias is None else one.bias.chunk(2)[0]
    projected = F.linear(layer.x, one.w, wb)
    states = [s[d] for s in layer.states]
    times = range(projected.shape[0])
    outs: dict[int, Tensor] = {}
    for t in reversed(times) if backwards else times:
        new = _step(layer, one, projected[t], states)
        out = new[0]
        if layer.lengths is not None:
            live = (layer.lengths > t).unsqueeze(1)
            new = [torch.where(live, a, b) for a, b in zip(new, states, strict=True)]
            out = torch.where(live, out, 0.0)
        states, outs[t] = new, out
    return torch.stack([outs[t] for t in times]), states


def recurrent(kind: str) -> Named:
    """A row of a recurrent op."""

    def run(call: Call) -> Result:
        layer = _layer(call, kind)
        if layer.usual is not None:
            y, last = _by_torch(layer)
        else:
            each = [_by_steps(layer, d) for d in range(len(layer.directions))]
            y = torch.stack([e[0] for e in each], 1)
            last = [torch.stack(s) for s in zip(*(e[1] for e in each), strict=True)]
        if call.version >= 14 and call.flag("layout"):
            y, last = y.permute(2, 0, 1, 3), [s.transpose(0, 1) for s in last]
        return [y, *last][: max(call.results, 1)]

    return Named(run)


ROWS: dict[str, Named] = {kind: recurrent(kind) for kind in ("GRU", "LSTM", "RNN")}
