# SPDX-License-Identifier: Apache-2.0
"""Ops of our own in a captured graph: the loss mark and where its gradient starts, whole attention,
circular padding, CTC with static shapes, and in `recurrent` the layers of RNNs.

They have fake versions for capture. Those that may end as a host call have a CPU version too;
`kernels` has one of the others, for values that are needed while a model is captured.
"""

from typing import Any

import torch
from torch import Tensor

_lib = torch.library.Library("tessera", "DEF")
_lib.define("mark_loss(Tensor x) -> Tensor")
_lib.define("exported_loss(Tensor x) -> Tensor")  # the mark in a program of torch.export
_lib.define("loss_seed(Tensor loss) -> Tensor")
_lib.define("checkpoint(Tensor x) -> Tensor")
_lib.define(
    "sdpa(Tensor q, Tensor k, Tensor v, Tensor? mask, int stream, float dropout_p, bool is_causal, "
    "float scale) -> (Tensor, Tensor)"
)
_lib.define(
    "sdpa_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor out, "
    "Tensor logsumexp, int stream, float dropout_p, bool is_causal, float scale) "
    "-> (Tensor, Tensor, Tensor)"
)
_lib.define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
    "int blank, bool zero_infinity, int longest) -> (Tensor, Tensor)"
)
_lib.define(
    "ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths, "
    "Tensor target_lengths, Tensor loss, Tensor log_alpha, int blank, bool zero_infinity) -> Tensor"
)
_lib.define(
    "ctc_beam_search(Tensor log_probs, Tensor lengths, int blank, int width, int top) "
    "-> (Tensor, Tensor, Tensor)"
)
_lib.define("circular_pad(Tensor x, int[] pad) -> Tensor")
_lib.define("circular_pad_backward(Tensor grad, int[] shape, int[] pad) -> Tensor")
_lib.define("bincount(Tensor x, Tensor? weights, int size) -> Tensor")

ops = torch.ops.tessera
aten = torch.ops.aten


@torch.library.register_fake("tessera::checkpoint", lib=_lib)
@torch.library.register_fake("tessera::loss_seed", lib=_lib)
@torch.library.register_fake("tessera::mark_loss", lib=_lib)
@torch.library.register_fake("tessera::exported_loss", lib=_lib)
def _like_input(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_lib.impl("exported_loss", torch.clone, "CPU")
torch.library.register_autograd("tessera::exported_loss", lambda _, grad: grad, lib=_lib)


@torch.library.register_fake("tessera::sdpa", lib=_lib)
def _sdpa_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    stream: int,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.register_fake("tessera::sdpa_backward", lib=_lib)
def _sdpa_backward_fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@torch.library.register_fake("tessera::ctc_loss", lib=_lib)
def _ctc_loss_fake(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
    longest: int,
) -> tuple[Tensor, Tensor]:
    time, batch, _ = log_probs.shape
    dtype = torch.promote_types(log_probs.dtype, torch.float32)
    alpha = log_probs.new_empty((batch, time, 2 * longest + 1), dtype=dtype)
    return log_probs.new_empty((batch,)), alpha


@torch.library.register_fake("tessera::ctc_beam_search", lib=_lib)
def _ctc_beam_search_fake(
    log_probs: Tensor, lengths: Tensor, blank: int, width: int, top: int
) -> tuple[Tensor, Tensor, Tensor]:
    time, batch, _ = log_probs.shape
    sizes = lengths.new_empty((batch, top), dtype=torch.int32)
    labels = lengths.new_empty((batch, top, time), dtype=torch.int32)
    return log_probs.new_empty((batch, top)), sizes, labels


@torch.library.register_fake("tessera::ctc_loss_backward", lib=_lib)
def _ctc_loss_backward_fake(grad: Tensor, log_probs: Tensor, *_rest: Any) -> Tensor:
    return torch.empty_like(log_probs)


@torch.library.register_fake("tessera::circular_pad", lib=_lib)
def _circular_pad_fake(x: Tensor, pad: list[int]) -> Tensor:
    shape = list(x.shape)
    for i, amount in enumerate(pad):
        shape[-1 - i // 2] += amount
    return x.new_empty(shape)


@torch.library.register_fake("tessera::circular_pad_backward", lib=_lib)
def _circular_pad_backward_fake(grad: Tensor, shape: list[int], pad: list[int]) -> Tensor:
    return grad.new_empty(shape)


@torch.library.register_fake("tessera::bincount", lib=_lib)
def _bincount_fake(x: Tensor, weights: Tensor | None, size: int) -> Tensor:
    if weights is None:
        return x.new_empty((size,), dtype=torch.int64)
    floats = (torch.float32, torch.float64)
    return x.new_empty((size,), dtype=weights.dtype if weights.dtype in floats else torch.float64)


def _bincount_cpu(x: Tensor, weights: Tensor | None, size: int) -> Tensor:
    out = torch.bincount(x, weights, minlength=size)
    if out.shape[0] != size:
        raise RuntimeError(
            f"bincount: {out.shape[0] - 1} needs a longer result than minlength={size}, which is "
            "the size of the result in a compiled program"
        )
    return out


def _ctc_loss_cpu(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
    longest: int,
) -> tuple[Tensor, Tensor]:
    loss, alpha = aten._ctc_loss.Tensor(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    # ATen sizes log_alpha by the longest target of this batch; a static program has one size.
    full = alpha.new_zeros((alpha.shape[0], log_probs.shape[0], 2 * longest + 1))
    full[:, : alpha.shape[1], : alpha.shape[2]] = alpha
    return loss, full


def _ctc_loss_backward_cpu(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    loss: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    width = 2 * int(target_lengths.max()) + 1
    length = int(input_lengths.max())
    alpha = log_alpha[:, :length, :width].contiguous()
    return aten._ctc_loss_backward.Tensor(
        grad.contiguous(),
        log_probs,
        targets,
        input_lengths,
        target_lengths,
        loss,
        alpha,
        blank,
        zero_infinity,
    )


_lib.impl("bincount", _bincount_cpu, "CPU")
_lib.impl("ctc_loss", _ctc_loss_cpu, "CPU")
_lib.impl("ctc_loss_backward", _ctc_loss_backward_cpu, "CPU")


class _Identity(torch.autograd.Function):
    """The gradient passes as it is."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class MarkLoss(_Identity):
    """Identity whose autograd node identifies a loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return ops.mark_loss(x)


class Checkpoint(_Identity):
    """Identity whose result is kept for backward; what it is computed from may be recomputed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return ops.checkpoint(x)


class Nop(torch.autograd.Function):
    """A copy that stays a step of the program, as does that of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return ops.custom([x], "tessera", "Nop", 1, "[]")[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ops.custom([grad], "tessera", "Nop", 1, "[]")[0]


class Attention(torch.autograd.Function):
    """Scaled dot product attention as one node forward and one backward."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        stream: int,
        dropout_p: float,
        is_causal: bool,
        scale: float,
    ) -> Tensor:
        out, logsumexp = ops.sdpa(q, k, v, mask, stream, dropout_p, is_causal, scale)
        ctx.save_for_backward(q, k, v, mask, out, logsumexp)
        ctx.rest = (stream, dropout_p, is_causal, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, out, logsumexp = ctx.saved_tensors
        dq, dk, dv = ops.sdpa_backward(grad, q, k, v, mask, out, logsumexp, *ctx.rest)
        return dq, dk, dv, None, None, None, None, None


class CircularPad(torch.autograd.Function):
    """Padding by what is at the other end; ATen does it by many writes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pad: list[int]) -> Tensor:
        ctx.rest = (list(x.shape), pad)
        return ops.circular_pad(x, pad)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ops.circular_pad_backward(grad, *ctx.rest), None


class CtcLoss(torch.autograd.Function):
    """CTC loss per sample; the aten op's second result has a shape that depends on data."""

    @staticmethod
    def forward(
        ctx: Any,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        blank: int,
        zero_infinity: bool,
        longest: int,
    ) -> Tensor:
        loss, alpha = ops.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, longest
        )
        ctx.save_for_backward(log_probs, targets, input_lengths, target_lengths, loss, alpha)
        ctx.rest = (blank, zero_infinity)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (ops.ctc_loss_backward(grad, *ctx.saved_tensors, *ctx.rest), *[None] * 6)
