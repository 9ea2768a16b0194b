# SPDX-License-Identifier: Apache-2.0
"""Losses: which functions compute one, how it is marked, and those that ATen computes otherwise."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from poptorch.capture import _torch_private as private
from poptorch.capture import library, state
from poptorch.capture.calls.handler import Args, Function, Handler, Kwargs, Mode, by_name
from poptorch.capture.calls.mixed_types import is_float
from poptorch.capture.errors import user_frame
from poptorch.capture.session import MarkedLoss, Session
from poptorch.capture.values import constants

_LOSS_NAMES = (
    "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy "
    "cross_entropy_loss ctc_loss gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss "
    "linear_cross_entropy margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss "
    "multilabel_soft_margin_loss nll_loss nll_loss2d nll_loss_nd poisson_nll_loss smooth_l1_loss "
    "soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss"
).split()


# The same name in three namespaces is three functions; programs of torch.export call the ATen ops.
LOSSES = frozenset(
    getattr(space, name)
    for space in (F, torch, torch._C._nn)
    for name in _LOSS_NAMES
    if hasattr(space, name)
) | frozenset(
    getattr(packet, overload)
    for packet in (getattr(torch.ops.aten, name, None) for name in _LOSS_NAMES)
    if packet is not None
    for overload in packet.overloads()
)


def mark_loss(session: Session, result: Any) -> Any:
    """Remembers the result of a loss function; returns what the user goes on with."""
    if not session.training or not isinstance(result, Tensor):
        return result
    where = user_frame()
    if session.lifters:  # of one turn, or of a body that may not run
        session.inner_losses.append(where)
        return result
    if result.grad_fn is None:
        session.detached_losses.append(MarkedLoss(result, where))
        return result
    kept = library.MarkLoss.apply(result)
    session.losses.append(MarkedLoss(kept, where))
    # The user gets another tensor, so that changing it in place leaves the marked one as it was.
    return library.MarkLoss.apply(kept)


def identity_loss(x: Tensor, reduction: str) -> Any:
    """As capture.identity_loss."""
    assert reduction in ("sum", "mean", "none"), "Unsupported reduction type!"
    if isinstance(x, torch.fx.Proxy):  # symbolic_trace: the call stays one in the traced model
        return x.tracer.create_proxy("call_function", identity_loss, (x, reduction), {})
    if not isinstance(x, Tensor):
        raise TypeError(f"identity_loss: the loss must be a tensor, not {type(x).__name__}")
    session = state.current()
    if session is not None and not (session.in_forward and session.training):
        session = None
    if reduction == "none":
        value = x.clone() if session is None or x.grad_fn is None else x
    else:
        value = x.sum() if reduction == "sum" else x.mean()
    if torch.compiler.is_exporting():
        return library.ops.exported_loss(value)
    return value if session is None else mark_loss(session, value)


def _exported_loss(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    return identity_loss(args[0], "none")


def _reduce(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def _gaussian_nll_loss(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def run(
        input: Tensor,
        target: Tensor,
        var: Tensor | float,
        full: bool = False,
        eps: float = 1e-6,
        reduction: str = "mean",
    ) -> Tensor:
        if not isinstance(var, Tensor):
            var = torch.full_like(input, var)
        if var.size() != input.size():
            if input.size()[:-1] == var.size():
                var = var.unsqueeze(-1)
            elif input.size()[:-1] != var.size()[:-1] or var.size(-1) != 1:
                raise ValueError("var is of incorrect size")
        with torch.no_grad():
            shift = var.clamp(min=eps) - var
        var = var + shift  # clamped value, gradient as if it were not
        loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
        if full:
            loss = loss + 0.5 * math.log(2 * math.pi)
        return _reduce(loss, reduction)

    return run(*args, **kwargs)


def _ctc_loss(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def run(
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor | Sequence[int],
        target_lengths: Tensor | Sequence[int],
        blank: int = 0,
        reduction: str | int = "mean",
        zero_infinity: bool = False,
    ) -> Tensor:
        if isinstance(reduction, int):
            reduction = {1: "mean", 2: "sum"}.get(reduction, "none")
        times, sizes = (
            n if isinstance(n, Tensor) else torch.tensor(list(n), dtype=torch.int64)
            for n in (input_lengths, target_lengths)
        )
        known = constants.value_of(sizes)
        batched = log_probs.dim() == 3
        if not batched:
            log_probs = log_probs.unsqueeze(1)
            times, sizes = times.reshape(1), sizes.reshape(1)
        longest = mode.session.ragged.longest(targets) or targets.shape[-1]
        if targets.dim() == 1 and known is not None and known.numel():
            longest = int(private.without_modes(known.max))
        loss = library.CtcLoss.apply(
            log_probs, targets, times, sizes, blank, zero_infinity, longest
        )
        if zero_infinity:
            loss = torch.where(loss == float("inf"), 0.0, loss)
        if reduction == "mean":
            return (loss / sizes.clamp_min(1).to(loss.dtype)).mean()
        if reduction == "sum":
            return loss.sum()
        return loss if batched else loss.squeeze(0)

    return run(*args, **kwargs)


def _linear_cross_entropy(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Unchunked: when to keep the logits is the compiler's choice.

    In the type that the options accumulate in, if they give one.
    """
    names = ("input", "linear_weight", "target")
    given = {**by_name(names, args, kwargs), "options": None}
    wide, dtype = getattr(kwargs.get("options"), "acc_dtype", None), given["input"].dtype
    if wide is not None and wide != dtype:
        given = {k: v.to(wide) if is_float(v) else v for k, v in given.items()}
    body = private.functional_body(func)
    assert body is not None
    with mode:
        return body(**given).to(dtype)


HANDLERS: dict[Function, Handler] = {
    library.ops.exported_loss.default: _exported_loss,
    F.gaussian_nll_loss: _gaussian_nll_loss,
    F.ctc_loss: _ctc_loss,
    torch.ctc_loss: _ctc_loss,
    F.linear_cross_entropy: _linear_cross_entropy,
}
