# SPDX-License-Identifier: Apache-2.0
"""Attention as one node of the graph, or unfused where the row of the core does not apply."""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from poptorch.capture import library
from poptorch.capture.calls import recurrent
from poptorch.capture.calls.handler import Args, Function, Handler, Kwargs, Mode
from poptorch.capture.session import Session


def _attention(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    return _attention_call(mode.session, *args, **kwargs)


def _attention_call(
    session: Session,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if is_causal and attn_mask is not None:
        raise RuntimeError(
            "scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
        )
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(groups, -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    if "sdpa" in session.rows and _attention_is_plain(query, key, value, attn_mask):
        lead, stream = query.shape[:-2], 0
        if 0.0 < dropout_p < 1.0:
            stream = session.next_stream()
        elif dropout_p > 0:
            value, dropout_p = value * 0.0, 0.0
        mask = None if attn_mask is None else _mask_of_heads(attn_mask, lead)
        rest = (stream, float(dropout_p), bool(is_causal), scale)
        if query.dim() == 4:
            return library.Attention.apply(query, key, value, mask, *rest)
        # For other ranks eager computes in float32, whatever the type.
        q, k, v = (_as_heads(t).to(torch.float32) for t in (query, key, value))
        out = library.Attention.apply(q, k, v, mask, *rest)
        return out.to(query.dtype).reshape(*lead, *out.shape[-2:])
    return _attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale)


def _attention_is_plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    if not (q.dtype == k.dtype == v.dtype and q.dtype in recurrent.DTYPES):
        return False
    if q.shape[:-2] != k.shape[:-2] or k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        return False
    if 0 in q.shape or 0 in k.shape or 0 in v.shape:
        return False
    return mask is None or (mask.dim() <= q.dim() and not mask.requires_grad)


def _as_heads(x: Tensor) -> Tensor:
    """[..., heads, tokens, depth] as [batch, heads, tokens, depth]."""
    heads = x.shape[-3] if x.dim() > 2 else 1
    return x.reshape(-1, heads, *x.shape[-2:])


def _mask_of_heads(mask: Tensor, lead: torch.Size) -> Tensor:
    """A mask as [batch, heads, tokens, tokens], with size 1 where it is broadcast."""
    mask = mask if mask.dtype == torch.bool else mask.to(torch.float32)
    if len(lead) > 2 and mask.dim() > 3:
        mask = mask.expand(*lead, *mask.shape[-2:])
        return _as_heads(mask)
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))


def _attention_math(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> Tensor:
    dtype = q.dtype
    q, k, v = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (q, k, v))
    scores = torch.matmul(q, k.transpose(-2, -1)) * scale
    if is_causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, float("-inf"))
        else:
            scores = scores + mask.to(scores.dtype)
    weights = torch.softmax(scores, -1)
    if mask is not None:
        # A row with nothing to attend to gives zero, not NaN.
        empty = (scores == float("-inf")).all(-1, keepdim=True)
        weights = weights.masked_fill(empty, 0.0)
    if dropout_p > 0:
        weights = torch.native_dropout(weights, dropout_p, True)[0]
    return torch.matmul(weights, v).to(dtype)


HANDLERS: dict[Function, Handler] = {F.scaled_dot_product_attention: _attention}
