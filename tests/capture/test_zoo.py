# SPDX-License-Identifier: Apache-2.0
"""One line per module: captured text against eager, forward, gradients and buffers."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from harness import WithLoss, check
from torch import nn


class Fn(nn.Module):
    """A function of x with one parameter `w` of x's shape, so that gradients flow through it."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function = function
        self.w = nn.Parameter(
            torch.linspace(-1.3, 1.4, max(1, torch.Size(shape).numel())).reshape(shape)
        )

    def forward(self, x, *rest):
        return self.function(x + self.w, *rest)


def x(*shape):
    return torch.randn(shape)


def ints(high, *shape):
    return torch.randint(0, high, shape)


def fn(function, *shape, extra=()):
    shape = shape or (3, 4)
    return lambda: (Fn(function, *shape), (x(*shape), *extra))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, v):
        return self.b(self.a(v).relu())


def _written_through_views(v):
    v.diagonal(0, 1, 2).mul_(2)
    v[0].unfold(1, 2, 2)[:, 0].add_(1)
    v[:, 1, ::2] = v[:, 2, 1::2] * 3
    return v


class TwiceRegistered(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a

    def forward(self, v):
        return self.b(self.a(v).relu())


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(2, 2)
        self.a.weight.requires_grad_(False)

    def forward(self, v):
        return self.b(self.a(v))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(4))
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, v):
        self.count += 1
        self.seen[1:3] = v.detach().sum(0)[1:3]
        return v * self.w * self.count + self.seen


class Ema(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, v):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(v.mean(0), alpha=0.1)
        return (v - self.mean) * self.w


class SliceAssign(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, v):
        y = self.lin(v)
        y[:, 1:3] = y[:, 0:2] * 2
        y[0] = 1.0
        return y


class InPlaceChain(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, v):
        y = self.lin(v).mul_(2).add_(1)
        return F.relu_(y).sigmoid()


class Square(torch.autograd.Function):
    """A wrong gradient on purpose: ours must be used, not the true one."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return v * v

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad * v * 5


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.lin, self.first = nn.Linear(4, 4), nn.Linear(4, 4)
        self.reentrant = reentrant

    def forward(self, v):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(lambda u: self.lin(u).tanh(), self.first(v), use_reentrant=self.reentrant)


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.lin.register_full_backward_hook(lambda m, gi, go: tuple(g * 2 for g in gi))

    def forward(self, v):
        y = self.lin(v.clone().requires_grad_() if not v.requires_grad else v)
        if y.requires_grad:
            y.register_hook(lambda g: g * 3)
        return y


class Attribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.tensor(3.0)
        self.table = torch.linspace(0, 1, 4)
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, v):
        return v * self.w * self.scale + self.table + torch.tensor([1.0, 2.0, 3.0, 4.0])


class Recurrent(nn.Module):
    def __init__(self, kind, **kwargs):
        super().__init__()
        self.rnn = kind(3, 5, batch_first=True, **kwargs)

    def forward(self, v):
        return self.rnn(v)[0]


class RecurrentStates(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.scale = kind(3, 5), nn.Parameter(torch.ones(5))

    def forward(self, v, *states):
        states = [s * self.scale for s in states]
        return self.rnn(v, tuple(states) if len(states) == 2 else states[0])


class Packed(nn.Module):
    def __init__(self, kind, sorted_lengths=True, **kwargs):
        super().__init__()
        self.rnn = kind(3, 5, **kwargs)
        self.lengths = [5, 4, 2] if sorted_lengths else [2, 5, 4]

    def forward(self, v):
        packed = nn.utils.rnn.pack_padded_sequence(
            v, self.lengths, enforce_sorted=self.lengths[0] == 5
        )
        y, final = self.rnn(packed)
        return nn.utils.rnn.pad_packed_sequence(y)[0], final


class Mha(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **kwargs)

    def forward(self, v, mask=None):
        return self.attention(v, v, v, attn_mask=mask, need_weights=False)[0]


class Sdpa(nn.Module):
    def __init__(self, mask=None, grad_mask=False, **kwargs):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 2, 2, 5, 4))
        self.mask = mask
        self.bias = nn.Parameter(torch.randn(5, 5)) if grad_mask else None
        self.kwargs = kwargs

    def forward(self, v):
        q, k, u = (self.w * v).unbind(0)
        mask = self.bias if self.bias is not None else self.mask
        return F.scaled_dot_product_attention(q, k, u, mask, **self.kwargs)


class Gqa(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.randn(2, 4, 5, 4))
        self.k = nn.Parameter(torch.randn(2, 2, 5, 4))

    def forward(self, v):
        return F.scaled_dot_product_attention(self.q * v, self.k, self.k, enable_gqa=True)


class WeightNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))

    def forward(self, v):
        return self.lin(v)


class GradPenalty(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, v):
        if not torch.is_grad_enabled():
            return v
        v = v.clone().requires_grad_()
        y = self.lin(v).tanh().sum()
        (g,) = torch.autograd.grad(y, v, create_graph=True)
        return g.square().sum()


INF = float("inf")
MASK = torch.tensor([[True, True, False, True, True]]).expand(5, 5).contiguous()

ZOO = {
    # Linear algebra
    "linear": lambda: (nn.Linear(4, 3), (x(5, 4),)),
    "linear_3d": lambda: (nn.Linear(4, 3), (x(2, 5, 4),)),
    "linear_no_bias": lambda: (nn.Linear(4, 3, bias=False), (x(5, 4),)),
    "linear_1d": lambda: (nn.Linear(4, 3), (x(4),)),
    "bilinear": lambda: (nn.Bilinear(3, 4, 2), (x(5, 3), x(5, 4))),
    "matmul_3d": fn(lambda v: v @ v.transpose(1, 2), 2, 3, 4),
    "matmul_vector": fn(lambda v: v @ torch.ones(4), 3, 4),
    "einsum": fn(lambda v: torch.einsum("bij,bkj->bik", v, v * 2), 2, 3, 4),
    "baddbmm": fn(lambda v: torch.baddbmm(v, v, v, beta=0.5, alpha=2), 2, 4, 4),
    "addmm": fn(lambda v: torch.addmm(v, v, v, beta=0.5, alpha=2), 4, 4),
    "addmv": fn(lambda v: torch.addmv(v[0], v, v[1], beta=0.5, alpha=2), 4, 4),
    "dot_outer": fn(lambda v: torch.outer(v, v) * torch.dot(v, v), 5),
    "tied": lambda: (Tied(), (x(3, 4),)),
    "twice_registered": lambda: (TwiceRegistered(), (x(3, 4),)),
    "frozen": lambda: (Frozen(), (x(3, 4),)),
    "weight_norm": lambda: (WeightNorm(), (x(3, 4),)),
    "weight_norm_whole": lambda: (
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3), dim=None),
        (x(3, 4),),
    ),
    "spectral_norm": lambda: (
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
        (x(3, 4),),
    ),
    # Convolution
    "conv1d": lambda: (nn.Conv1d(3, 4, 3, stride=2, padding=1), (x(2, 3, 9),)),
    "conv2d": lambda: (nn.Conv2d(3, 4, 3), (x(2, 3, 7, 7),)),
    "conv2d_strided": lambda: (nn.Conv2d(4, 6, 3, 2, 1, 2, groups=2), (x(2, 4, 9, 8),)),
    "conv2d_same": lambda: (nn.Conv2d(3, 4, 3, padding="same"), (x(2, 3, 7, 7),)),
    "conv2d_unbatched": lambda: (nn.Conv2d(3, 4, 3), (x(3, 7, 7),)),
    "conv2d_two": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)), (x(2, 3, 7, 7),)),
    "conv_transpose1d": lambda: (
        nn.Sequential(nn.Conv1d(3, 4, 1), nn.ConvTranspose1d(4, 2, 3, 2)),
        (x(2, 3, 5),),
    ),
    "conv_transpose2d": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2)),
        (x(2, 3, 5, 5),),
    ),
    # Pools
    "max_pool2d": fn(lambda v: F.max_pool2d(v, 2), 2, 3, 6, 6),
    "max_pool2d_padded": fn(lambda v: F.max_pool2d(v, 3, 2, 1), 2, 3, 7, 7),
    "max_pool1d": fn(lambda v: F.max_pool1d(v, 2), 2, 3, 6),
    "avg_pool2d": fn(lambda v: F.avg_pool2d(v, 3, 2, 1, count_include_pad=False), 2, 3, 7, 7),
    "avg_pool1d": fn(lambda v: F.avg_pool1d(v, 2), 2, 3, 6),
    "adaptive_avg_pool2d": fn(lambda v: F.adaptive_avg_pool2d(v, (3, 2)), 2, 3, 7, 5),
    "adaptive_avg_pool_one": fn(lambda v: F.adaptive_avg_pool2d(v, 1), 2, 3, 7, 5),
    # Norms
    "batch_norm1d": lambda: (nn.BatchNorm1d(4), (x(6, 4),)),
    "batch_norm2d": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)),
        (x(3, 3, 4, 4),),
    ),
    "batch_norm_eval": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4).eval()),
        (x(3, 3, 4, 4),),
    ),
    "batch_norm_plain": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False, track_running_stats=False)
        ),
        (x(3, 3, 4, 4),),
    ),
    "instance_norm": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4, affine=True)),
        (x(3, 3, 4, 4),),
    ),
    "layer_norm": lambda: (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (x(3, 4),)),
    "layer_norm_first": lambda: (nn.LayerNorm(4), (x(3, 4),)),
    "layer_norm_plain": lambda: (
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, elementwise_affine=False)),
        (x(3, 4),),
    ),
    "group_norm": lambda: (nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4)), (x(3, 3, 4, 4),)),
    "group_norm_plain": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4, affine=False)),
        (x(3, 3, 4, 4),),
    ),
    "rms_norm": lambda: (nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4)), (x(3, 4),)),
    "normalize": fn(lambda v: F.normalize(v, dim=-1)),
    "cdist": fn(lambda v: torch.cdist(v, v * 2)),
    "cdist_orders": fn(lambda v: sum(torch.cdist(v, v.flip(0) + 1, p) for p in (1, 3, 0.5, INF))),
    "cdist_products": fn(lambda v: torch.cdist(v, v * 2), 30, 4),
    "pdist": fn(lambda v: sum(F.pdist(v, p) for p in (1, 2, 3, INF)), 5, 4),
    # Recurrent and attention
    "rnn": lambda: (Recurrent(nn.RNN), (x(2, 3, 3),)),
    "lstm": lambda: (Recurrent(nn.LSTM, num_layers=2), (x(2, 3, 3),)),
    "lstm_bidirectional": lambda: (Recurrent(nn.LSTM, bidirectional=True), (x(2, 3, 3),)),
    "rnn_relu": lambda: (Recurrent(nn.RNN, nonlinearity="relu", bias=False), (x(2, 3, 3),)),
    "lstm_projected": lambda: (Recurrent(nn.LSTM, proj_size=2, num_layers=2), (x(2, 4, 3),)),
    "lstm_states": lambda: (RecurrentStates(nn.LSTM), (x(4, 2, 3), x(1, 2, 5), x(1, 2, 5))),
    "lstm_unbatched": lambda: (Recurrent(nn.LSTM), (x(4, 3),)),
    "lstm_packed": lambda: (Packed(nn.LSTM, bidirectional=True), (x(5, 3, 3),)),
    "lstm_packed_projected": lambda: (Packed(nn.LSTM, proj_size=2), (x(5, 3, 3),)),
    "gru": lambda: (Recurrent(nn.GRU), (x(2, 3, 3),)),
    "gru_layers": lambda: (
        Recurrent(nn.GRU, num_layers=2, bidirectional=True, bias=False),
        (x(2, 3, 3),),
    ),
    "gru_states": lambda: (RecurrentStates(nn.GRU), (x(4, 2, 3), x(1, 2, 5))),
    "gru_packed": lambda: (Packed(nn.GRU, num_layers=2), (x(5, 3, 3),)),
    "gru_packed_unsorted": lambda: (Packed(nn.GRU, sorted_lengths=False), (x(5, 3, 3),)),
    "rnn_packed": lambda: (Packed(nn.RNN, bidirectional=True), (x(5, 3, 3),)),
    "gru_cell": lambda: (nn.GRUCell(3, 4), (x(2, 3),)),
    "rnn_cell": lambda: (nn.RNNCell(3, 4), (x(2, 3),)),
    "lstm_cell": lambda: (nn.LSTMCell(3, 4), (x(2, 3),)),
    "mha": lambda: (Mha(), (x(2, 5, 8),)),
    "mha_masked": lambda: (Mha(), (x(2, 5, 8), torch.zeros(5, 5).masked_fill(~MASK, -1e9))),
    "sdpa": lambda: (Sdpa(), (x(2, 2, 5, 4),)),
    "sdpa_causal": lambda: (Sdpa(is_causal=True), (x(2, 2, 5, 4),)),
    "sdpa_bool_mask": lambda: (Sdpa(MASK), (x(2, 2, 5, 4),)),
    "sdpa_float_mask": lambda: (Sdpa(torch.randn(5, 5), scale=0.3), (x(2, 2, 5, 4),)),
    "sdpa_trained_mask": lambda: (Sdpa(grad_mask=True), (x(2, 2, 5, 4),)),
    "sdpa_gqa": lambda: (Gqa(), (x(2, 4, 5, 4),)),
    "encoder_layer": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (x(2, 5, 8),),
    ),
    "sdpa_3d": fn(lambda v: F.scaled_dot_product_attention(v, v * 2, v[..., :3]), 4, 5, 8),
    "sdpa_5d": fn(lambda v: F.scaled_dot_product_attention(v, v, v, MASK), 2, 2, 3, 5, 4),
    "sdpa_mask_per_batch": fn(
        lambda v, mask: F.scaled_dot_product_attention(v, v, v, mask), 4, 5, 8, extra=(x(4, 5, 5),)
    ),
    "transformer": lambda: (
        nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True),
        (x(2, 5, 8), x(2, 4, 8)),
    ),
    "encoder_masked": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, norm_first=True), 2),
        (x(5, 2, 8), nn.Transformer.generate_square_subsequent_mask(5)),
    ),
    "decoder_layer": lambda: (
        nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (x(2, 5, 8), x(2, 6, 8)),
    ),
    "embedding": lambda: (nn.Embedding(10, 4, padding_idx=2), (ints(10, 3, 5),)),
    # Activations
    **{
        f"act_{name}": fn(function, 4, 6)
        for name, function in {
            "relu": F.relu,
            "relu6": lambda v: F.relu6(v * 5),
            "leaky": F.leaky_relu,
            "prelu": lambda v: F.prelu(v, v.new_full((1,), 0.3)),
            "elu": F.elu,
            "selu": F.selu,
            "celu": lambda v: F.celu(v, 0.7),
            "gelu": F.gelu,
            "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
            "silu": F.silu,
            "mish": F.mish,
            "softplus": lambda v: F.softplus(v * 4, 2, 3),
            "softsign": F.softsign,
            "tanhshrink": F.tanhshrink,
            "softshrink": F.softshrink,
            "hardshrink": F.hardshrink,
            "hardtanh": F.hardtanh,
            "hardsigmoid": lambda v: F.hardsigmoid(v * 3),
            "hardswish": lambda v: F.hardswish(v * 3),
            "logsigmoid": lambda v: F.logsigmoid(v * 4),
            "glu": F.glu,
            "sigmoid": torch.sigmoid,
            "tanh": torch.tanh,
            "threshold": lambda v: F.threshold(v, 0.1, 5.0),
            "softmax": lambda v: F.softmax(v, 0),
            "log_softmax": lambda v: F.log_softmax(v, -1),
            "softmin": lambda v: F.softmin(v, -1),
            "rrelu_eval": lambda v: F.rrelu(v, training=False),
        }.items()
    },
    # Elementwise
    **{
        f"math_{name}": fn(function, 3, 5)
        for name, function in {
            "unary": lambda v: (
                v.exp() + v.sin() + v.cos() + v.abs() + v.erf() + v.atan() + v.sinh() + v.cosh()
            ),
            "positive": lambda v: (
                (v.abs() + 1).log() + (v.abs() + 1).sqrt() + (v.abs() + 1).rsqrt() + v.square()
            ),
            "logs": lambda v: (
                (v.abs() + 1).log2()
                + (v.abs() + 1).log10()
                + v.abs().log1p()
                + v.expm1()
                + v.exp2()
            ),
            "arcs": lambda v: (v * 0.2).asin() + (v * 0.2).acos() + torch.atan2(v, v + 3) + v.tan(),
            "rounding": lambda v: (
                v + v.floor() + v.ceil() + v.round() + v.trunc() + v.frac() + v.sign()
            ),
            "binary": lambda v: (
                torch.maximum(v, -v) + torch.minimum(v, v * v) + torch.fmod(v, 0.7) + v % 0.3
            ),
            "pows": lambda v: (
                v**2
                + v**3
                + v**4
                + v.abs() ** 0.5
                + (v.abs() + 1) ** -1
                + 2.0**v
                + (v.abs() + 1) ** v
            ),
            "scalars": lambda v: (
                1 - v + 2 / (v.abs() + 1) + torch.rsub(v, 3, alpha=2) + torch.add(v, v, alpha=0.3)
            ),
            "division": lambda v: (
                v / 3
                + torch.div(v, 0.3, rounding_mode="floor")
                + v.detach() // 0.7
                + torch.div(v, 0.3, rounding_mode="trunc")
            ),
            "clamps": lambda v: (
                v.clamp(-1, 1) + v.clamp_min(0.1) + v.clamp(max=0.3) + v.clamp(min=-v, max=v + 1)
            ),
            "where": lambda v: (
                torch.where(v > 0, v, 2.0)
                + torch.where(v > 0, v, v * v)
                + v.masked_fill(v < 0, 3.0)
            ),
            "add_fused": lambda v: (
                torch.addcmul(v, v, v, value=2) + torch.addcdiv(v, v, v.abs() + 1, value=0.5)
            ),
            "lerp": lambda v: (
                torch.lerp(v, v * 2, 0.3)
                + torch.lerp(v, v * 2, 0.8)
                + torch.lerp(v, -v, v.sigmoid())
            ),
            "xlogy": lambda v: (
                torch.xlogy(v.abs(), v.abs() + 1)
                + torch.logaddexp(v, -v)
                + torch.logit(v.sigmoid())
            ),
            "nan": lambda v: torch.nan_to_num(v) + torch.fmax(v, -v) + torch.fmin(v, v * 2),
            "mixed_types": lambda v: (
                v * (v > 0) + (v > 0).float() * torch.arange(5) + (v > 0).long() + True
            ),
            "bools": lambda v: (
                v * ((v > 0) & (v < 1) | ~(v > -1) ^ (v == 0)) + (v > 0).logical_and(v < 2).float()
            ),
            "ints": lambda v: (
                v
                + (torch.arange(5) * 3 // 2 % 4)
                + (torch.arange(5) & 3)
                + torch.arange(5).float().mean()
            ),
            "zero_dim": lambda v: v * v.sum() + v[0, 0] * torch.tensor(2.0) + torch.tensor(3),
            "half_out": lambda v: (v.half() * 2).float() + v.bfloat16().float(),
            "isfinite": lambda v: (
                v * torch.isfinite(v) + torch.isnan(v).float() + torch.isinf(v).float()
            ),
        }.items()
    },
    # Shapes
    **{
        f"shape_{name}": fn(function, 2, 3, 4)
        for name, function in {
            "view": lambda v: v.view(6, 4).t().reshape(3, 8).flatten(),
            "permute": lambda v: v.permute(2, 0, 1).contiguous() * 2,
            "squeeze": lambda v: v.unsqueeze(1).squeeze(1).unsqueeze(-1).squeeze(),
            "expand": lambda v: v[:, :1].expand(2, 5, 4) * v[:, :1].expand_as(v[:, :1]),
            "slice": lambda v: v[:, 1:, ::2] + v[:, :2, 1::2] + v[:, 1:, -1:],
            "select": lambda v: v[0] * v[-1, 1] + v[:, 2].sum(),
            "index": lambda v: v[:, torch.tensor([0, 2, 2])] + v[:, [2, 1, 0]],
            "index_two": lambda v: v[torch.tensor([0, 1, 1]), torch.tensor([2, 0, 0])],
            "index_broadcast": lambda v: v[torch.tensor([[0], [1]]), :, torch.tensor([[1, 2]])],
            "cat": lambda v: torch.cat([v, v * 2], 1) + torch.cat([v * 3, v], -2),
            "stack": lambda v: torch.stack([v, v * 2], 1),
            "split": lambda v: v.split(2, 2)[1] * v.split([1, 3], 2)[0],
            "chunk": lambda v: v.chunk(2, 2)[0] * v.unbind(0)[1].chunk(2, 1)[1],
            "repeat": lambda v: v.repeat(2, 1, 3) + v.tile(2, 1, 3),
            "repeat_interleave": lambda v: v.repeat_interleave(2, 1),
            "flip_roll": lambda v: (
                v.flip(0, 2) * v.roll(1, 1) + v.roll(2) + v.roll((1, -1), (0, 2))
            ),
            "pad": lambda v: F.pad(v, (1, 2, 0, 1)) + F.pad(v, (1, 2, 0, 1), value=2.0),
            "pad_negative": lambda v: F.pad(v, (-1, 2)),
            "tri": lambda v: v.tril() + v.triu(1) + torch.eye(3, 4),
            "masked": lambda v: v.masked_fill(torch.eye(3, 4).bool(), -5.0),
            "gather": lambda v: v.gather(1, torch.tensor([[[0, 1, 2, 1]], [[2, 2, 0, 1]]])),
            "index_select": lambda v: v.index_select(2, torch.tensor([3, 0, 0])),
            "scatter_add": lambda v: v.scatter_add(
                1, torch.zeros(2, 3, 4, dtype=torch.int64), v * 2
            ),
            "scatter_value": lambda v: v.scatter(
                1, torch.tensor([[[0, 1, 2, 1]], [[2, 2, 0, 1]]]), 7.0
            ),
            "scatter_src": lambda v: v.scatter(
                1, torch.tensor([[[0, 1, 2, 1]], [[2, 2, 0, 1]]]), v[:, :1] * 3
            ),
            "index_add": lambda v: v.index_add(1, torch.tensor([0, 0, 2]), v * 2, alpha=0.5),
            "index_put": lambda v: v.index_put(
                (torch.tensor([0, 1]), torch.tensor([1, 1])), v[:, 0] * 2
            ),
            "mask_assign": lambda v: torch.where(v > 0, v, v.new_zeros(())) * v.new_ones(4),
            "factories": lambda v: (
                v
                + torch.zeros_like(v)
                + torch.ones(4)
                + v.new_full((4,), 2)
                + torch.full((3, 1), 3.0)
            ),
            "ranges": lambda v: (
                v + torch.arange(4) + torch.arange(1.0, 3.0, 0.5) + torch.linspace(0, 1, 4)
            ),
            "pixel_shuffle": lambda v: F.pixel_shuffle(v.reshape(1, 4, 2, 3), 2),
            "pixel_unshuffle": lambda v: F.pixel_unshuffle(v.reshape(1, 1, 4, 6), 2),
            "unflatten": lambda v: v.unflatten(2, (2, 2)).movedim(1, 3),
            "diagonal": lambda v: v.diagonal(0, 1, 2) * v[0].diagonal(-1).sum(),
            "diag_embed": lambda v: torch.diag_embed(v, 1) + torch.diag(v[0, 0])[:, :1].sum(),
            "unfold": lambda v: v.unfold(2, 3, 1) * v.unfold(1, 2, 2)[:, :, 0, 0].sum(),
            "as_strided": lambda v: (v * 1).as_strided((3, 5), (4, 1), 2) * 2,
            "view_writes": lambda v: _written_through_views(v * 1),
            "scatter_reduce": lambda v: v.scatter_reduce(
                2, torch.tensor([0, 2, 2, 1]).expand(2, 3, 4), v * 2, "amax", include_self=False
            ),
            "scatter_mean": lambda v: v.scatter_reduce(
                0, torch.zeros(2, 3, 4, dtype=torch.int64), v * 2, "mean"
            ),
            "scatter_reduce_op": lambda v: (
                v.detach().scatter(
                    1, torch.tensor([[[0, 1, 2, 1]], [[2, 2, 0, 1]]]), 3.0, reduce="multiply"
                )
                + v
            ),
            "index_copy_fill": lambda v: (
                v.index_copy(1, torch.tensor([2, 0]), v[:, 1:] * 2)
                + v.index_fill(2, torch.tensor([-1, 0]), 2.0)
            ),
            "index_reduce": lambda v: v.index_reduce(1, torch.tensor([0, 0, 2]), v * 2, "prod"),
            "take_put": lambda v: (
                v.take(torch.tensor([[3, -1], [0, 7]])).sum()
                + v.put(torch.tensor([1, 1, 4]), v[0, 0, :3] * 5, accumulate=True)
            ),
            "masked_scatter": lambda v: v.masked_scatter(v > 0, v.flatten() * 3),
            "repeat_interleave_tensor": lambda v: v.repeat_interleave(
                torch.tensor([2, 0, 1]), 1, output_size=3
            ),
            "block_diag": lambda v: torch.block_diag(v[0], v[1, :, :2], v[0, 0]),
            "rot90": lambda v: v.rot90(1, (0, 2)) + v.rot90(3, (0, 2)) + v.rot90(2).sum(),
            "linspace_tensor": lambda v: (
                torch.linspace(v.detach()[0, 0, 0], 2.0, 4) + torch.logspace(0, 1, 4) + v
            ),
        }.items()
    },
    "embedding_bag": lambda: (nn.EmbeddingBag(10, 4), (ints(10, 3, 5),)),
    "embedding_bag_max": lambda: (nn.EmbeddingBag(10, 4, mode="max"), (ints(10, 3, 5),)),
    "embedding_bag_weights": lambda: (
        nn.EmbeddingBag(10, 4, mode="sum", padding_idx=2),
        (ints(10, 7), torch.tensor([0, 3, 3]), x(7)),
    ),
    "embedding_max_norm": lambda: (nn.Embedding(10, 4, max_norm=1.0), (ints(10, 3, 5),)),
    # Reductions
    **{
        f"reduce_{name}": fn(function, 2, 3, 4)
        for name, function in {
            "sum": lambda v: v.sum() + v.sum(1, keepdim=True) + v.sum((0, 2))[:, None],
            "mean": lambda v: v.mean() + v.mean(1, keepdim=True) + v.mean((0, 2))[:, None],
            "max": lambda v: (
                v.max() + v.max(1)[0].sum() + v.amax((0, 1)) + v.min(2, keepdim=True)[0] + v.min()
            ),
            "argmax": lambda v: v * v.argmax(1, keepdim=True) + v.argmin() + v.argmax(),
            "prod": lambda v: v + v.detach().prod(2, keepdim=True) + v.detach().prod(),
            "var": lambda v: (
                v.var(1, keepdim=True) + v.std() + v.var((0, 2), correction=0, keepdim=True)
            ),
            "var_mean": lambda v: (
                torch.var_mean(v, 1)[0] * torch.std_mean(v, 1)[1] + torch.std_mean(v, 1)[0]
            ),
            "logsumexp": lambda v: v.logsumexp(1, keepdim=True) + v.logsumexp((0, 2), keepdim=True),
            "norms": lambda v: (
                v.norm() + v.norm(dim=1, keepdim=True) + v.norm(1) + v.norm(3, dim=2, keepdim=True)
            ),
            "inf_norm": lambda v: torch.linalg.vector_norm(v, float("inf")) * v,
            "any_all": lambda v: (
                v * (v > 0).any(1, keepdim=True) + (v > -9).all().float() + (v > 0).sum()
            ),
            "aminmax": lambda v: (
                torch.aminmax(v)[0] + torch.aminmax(v, dim=1)[1].sum() + torch.count_nonzero(v > 0)
            ),
            "cosine": lambda v: F.cosine_similarity(v, v.flip(0), dim=2),
            "pairwise": lambda v: F.pairwise_distance(v[0], v[1]),
        }.items()
    },
    # State and structure
    "counter": lambda: (Counter(), (x(3, 4),)),
    "ema": lambda: (Ema(), (x(3, 4),)),
    "slice_assign": lambda: (SliceAssign(), (x(3, 4),)),
    "in_place_chain": lambda: (InPlaceChain(), (x(3, 4),)),
    "attribute": lambda: (Attribute(), (x(3, 4),)),
    "custom_function": fn(Square.apply),
    "checkpoint": lambda: (Checkpointed(False), (x(3, 4),)),
    "checkpoint_reentrant": lambda: (Checkpointed(True), (x(3, 4),)),
    "hooks": lambda: (Hooked(), (x(3, 4),)),
    "double_backward": lambda: (GradPenalty(), (x(3, 4),)),
    "no_grad_part": fn(lambda v: v * v.detach() + torch.no_grad()(lambda u: u * 3)(v)),
    "float64": fn(lambda v: (v.double() * 2).sum(1).float()),
    "special": fn(lambda v: torch.erfinv(v * 0.1) + torch.asinh(v) + torch.special.i0(v)),
    "gamma": fn(lambda v: torch.lgamma(v.abs() + 0.1) + torch.polygamma(1, v.abs() + 0.5)),
    "bits": fn(lambda v: v * ((v * 8).int() << 2).gcd(torch.tensor(12, dtype=torch.int32))),
    "conv3d": lambda: (nn.Conv3d(2, 3, 2), (x(1, 2, 4, 4, 4),)),
    "upsample": fn(lambda v: F.interpolate(v, scale_factor=2, mode="bilinear"), 1, 2, 3, 3),
    "upsample_nearest": fn(lambda v: F.interpolate(v, scale_factor=2), 1, 2, 3, 3),
    "adaptive_max_pool": fn(lambda v: F.adaptive_max_pool2d(v, 2), 1, 2, 5, 5),
    "max_pool3d": fn(lambda v: F.max_pool3d(v, 2), 1, 2, 4, 4, 4),
    "reflection_pad": fn(lambda v: F.pad(v, (1, 1, 1, 1), mode="reflect"), 1, 2, 4, 4),
    "fold": fn(lambda v: F.unfold(v, 2), 1, 2, 4, 4),
    "grid_sample": lambda: (
        Fn(lambda v, g: F.grid_sample(v, g, align_corners=False), 1, 2, 4, 4),
        (x(1, 2, 4, 4), x(1, 3, 3, 2)),
    ),
    "cumsum": fn(lambda v: v.cumsum(1)),
    "prod": fn(lambda v: v.prod(1, keepdim=True) * v),
    "cummax": fn(lambda v: v.cummax(1)[0] + v.logcumsumexp(1)),
    "sort": fn(lambda v: v.sort(1)[0]),
    "topk": fn(lambda v: v.topk(2, 1)[0]),
    "median": fn(lambda v: v.median(1)[0]),
    "inverse": fn(lambda v: torch.linalg.inv(v + 9 * torch.eye(4)), 4, 4),
    "cholesky": fn(lambda v: torch.linalg.cholesky(v @ v.T + torch.eye(4)), 4, 4),
    "solve": fn(lambda v: torch.linalg.solve(v + 9 * torch.eye(4), v[:, 0]), 4, 4),
    "lu": fn(lambda v: torch.linalg.lu(v)[1], 4, 4),
    "matrix_exp": fn(torch.linalg.matrix_exp, 4, 4),
    "svdvals": fn(lambda v: v * torch.linalg.svdvals(v.detach()), 4, 4),
    "erfinv": fn(lambda v: torch.erfinv(v * 0.1) + torch.asinh(v) + torch.special.i0(v)),
    "integers": fn(lambda v: v * ((v * 8).int() @ (v * 4).int()), 4, 4),
}

# Ops that the core has no row for: the text must still be right, through host calls.
HOSTED = {
    "fft": (fn(lambda v: torch.fft.rfft(v).abs()), None),
    "complex": (fn(lambda v: torch.view_as_real(torch.complex(v, v) * 2)), None),
}


@pytest.mark.parametrize("name", ZOO)
def test_native(name):
    torch.manual_seed(0)
    model, args = ZOO[name]()
    check(WithLoss(model), args)


@pytest.mark.parametrize("name", HOSTED)
def test_with_host_calls(name):
    torch.manual_seed(0)
    make, allowed = HOSTED[name]
    model, args = make()
    if allowed is None:
        c, _ = _check_any(model, args)
    else:
        c, _ = check(WithLoss(model), args, host=allowed.split())
    assert c.host_ops
    for _, (file, line) in c.host_ops:
        assert file and line > 0


def _check_any(model, args):
    from harness import captured

    called = {
        t.partition("::")[2].partition(".")[0] for t, _ in captured(WithLoss(model), args).host_ops
    }
    return check(WithLoss(model), args, host=called)


@pytest.mark.parametrize(
    "name", ["linear", "conv2d", "batch_norm2d", "lstm", "mha", "sdpa_causal", "embedding", "tied"]
)
def test_inference(name):
    torch.manual_seed(0)
    model, args = ZOO[name]()
    _, graph = check(model.eval(), args, training=False)
    assert not graph.grads and graph.loss < 0
