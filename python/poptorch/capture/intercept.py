# SPDX-License-Identifier: Apache-2.0
"""Calls that capture sees before autograd does: losses, attention, dropout, value reads.

Everything not listed here is left to ATen.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812

from . import _torch_private as private
from . import (
    constants,
    dynamic_index,
    follow,
    intercept_statistics,
    library,
    ragged,
    recurrent,
    state,
)
from .errors import make_error, user_frame
from .least_squares import lstsq

_VALUE_READS = {
    torch.Tensor.tolist: ".tolist()",
    torch.Tensor.numpy: ".numpy()",
    torch.Tensor.__array__: "Conversion to a NumPy array",
    torch.Tensor.__reduce_ex__: "Pickling (`torch.save`, `pickle`, `multiprocessing`)",
}

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


def mark_loss(session, tensor):
    """Remembers a tensor as a loss of the running capture; returns what the user goes on with."""
    if not session.training or not isinstance(tensor, torch.Tensor):
        return tensor
    where = user_frame()
    if tensor.grad_fn is None:
        session.detached_losses.append((tensor, where))
        return tensor
    kept = library.MarkLoss.apply(tensor)
    session.losses.append((kept, where))
    # The user gets another tensor, so that changing it in place leaves the marked one as it was.
    return library.MarkLoss.apply(kept)


def identity_loss(x, reduction):
    """Marks `x`, reduced by "sum", "mean" or "none", as the loss to differentiate.

    Needed for losses that are not one of torch.nn's, or that combine several. Outside a captured
    model it only
    computes the reduction.
    """
    assert reduction in ("sum", "mean", "none"), "Unsupported reduction type!"
    if isinstance(x, torch.fx.Proxy):  # symbolic_trace: the call stays one in the traced model
        return x.tracer.create_proxy("call_function", identity_loss, (x, reduction), {})
    session = state.current()
    marks = session is not None and session.in_forward and session.training
    if reduction == "none":
        value = x if marks and x.grad_fn is not None else x.clone()
    else:
        value = x.sum() if reduction == "sum" else x.mean()
    if torch.compiler.is_exporting():
        return library.ops.exported_loss(value)
    return mark_loss(session, value) if marks else value


def _attention(mode, func, args, kwargs):
    return _attention_call(mode.session, *args, **kwargs)


def _attention_call(
    session,
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
):
    if is_causal and attn_mask is not None:
        raise RuntimeError(
            "scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
        )
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(groups, -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    if "sdpa" in session.native_ops and _attention_is_plain(query, key, value, attn_mask):
        lead, stream = query.shape[:-2], 0
        if 0.0 < dropout_p < 1.0:
            stream = session.next_stream()
        elif dropout_p > 0:
            value, dropout_p = value * 0.0, 0.0
        mask = None if attn_mask is None else _mask_of_heads(attn_mask, lead)
        rest = (stream, float(dropout_p), bool(is_causal), scale)
        if query.dim() == 4:
            return library.Attention.apply(query, key, value, mask, *rest)
        # Of other ranks eager keeps float32 between the steps, whatever the type.
        q, k, v = (_as_heads(t).to(torch.float32) for t in (query, key, value))
        out = library.Attention.apply(q, k, v, mask, *rest)
        return out.to(query.dtype).reshape(*lead, *out.shape[-2:])
    return _attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale)


def _attention_is_plain(q, k, v, mask):
    if not (q.dtype == k.dtype == v.dtype and q.dtype in recurrent.DTYPES):
        return False
    if q.shape[:-2] != k.shape[:-2] or k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        return False
    if 0 in q.shape or 0 in k.shape or 0 in v.shape:
        return False
    return mask is None or (mask.dim() <= q.dim() and not mask.requires_grad)


def _as_heads(x):
    """[..., heads, tokens, depth] as [batch, heads, tokens, depth]."""
    heads = x.shape[-3] if x.dim() > 2 else 1
    return x.reshape(-1, heads, *x.shape[-2:])


def _mask_of_heads(mask, lead):
    mask = mask if mask.dtype == torch.bool else mask.to(torch.float32)
    if len(lead) > 2 and mask.dim() > 3:
        mask = mask.expand(*lead, *mask.shape[-2:])
        return _as_heads(mask)
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))


def _attention_math(q, k, v, mask, dropout_p, is_causal, scale):
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


def _pad(mode, func, args, kwargs):
    def bind(input, pad, mode="constant", value=None):
        return input, list(pad), mode

    x, pad, how = bind(*args, **kwargs)
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    if how != "circular" or x.dtype not in dtypes or "resample" not in mode.session.native_ops:
        return NotImplemented
    spatial = len(pad) // 2
    fits = x.dim() == spatial + 2 and 1 <= spatial <= 3 and x.numel() > 0
    for i, amount in enumerate(pad):
        fits = fits and 0 <= amount <= x.shape[-1 - i // 2]
    return library.CircularPad.apply(x, pad) if fits else NotImplemented


def _dropout(mode, func, args, kwargs):
    def bind(input, p=0.5, training=True, inplace=False):
        return input, p, training, inplace

    def bind_builtin(input, p, train):
        return input, p, train, func is torch.dropout_

    x, p, training, inplace = (bind if func is F.dropout else bind_builtin)(*args, **kwargs)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0.0:
        return x
    # With nothing kept eager multiplies by zero, which keeps NaN.
    out = torch.native_dropout(x, float(p), True)[0] if p < 1.0 else x * 0
    return x.copy_(out) if inplace else out


def _one_hot(mode, func, args, kwargs):
    """By a scatter, which checks its indices; ATen compares, so that a wrong one has no place."""

    def run(input, num_classes=-1):
        if num_classes < 1 or input.dtype is not torch.int64 or not input.numel():
            return NotImplemented
        zeros = torch.zeros(*input.shape, num_classes, dtype=torch.int64, device=input.device)
        return zeros.scatter(-1, input.unsqueeze(-1), 1)

    return run(*args, **kwargs)


def _reduce(loss, reduction):
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def _gaussian_nll_loss(mode, func, args, kwargs):
    def run(input, target, var, full=False, eps=1e-6, reduction="mean"):
        if not isinstance(var, torch.Tensor):
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


def _ctc_loss(mode, func, args, kwargs):
    def run(
        log_probs,
        targets,
        input_lengths,
        target_lengths,
        blank=0,
        reduction="mean",
        zero_infinity=False,
    ):
        reduction = {0: "none", 1: "mean", 2: "sum"}.get(reduction, reduction)
        input_lengths, target_lengths = (
            n if isinstance(n, torch.Tensor) else torch.tensor(list(n), dtype=torch.int64)
            for n in (input_lengths, target_lengths)
        )
        known = constants.value_of(target_lengths)
        batched = log_probs.dim() == 3
        if not batched:
            log_probs = log_probs.unsqueeze(1)
            input_lengths = input_lengths.reshape(1)
            target_lengths = target_lengths.reshape(1)
        longest = mode.session.ragged.longest(targets) or targets.shape[-1]
        if targets.dim() == 1 and known is not None and known.numel():
            longest = int(private.without_modes(known.max))
        loss = library.CtcLoss.apply(
            log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, longest
        )
        if zero_infinity:
            loss = torch.where(loss == float("inf"), 0.0, loss)
        if reduction == "mean":
            return (loss / target_lengths.clamp_min(1).to(loss.dtype)).mean()
        if reduction == "sum":
            return loss.sum()
        return loss if batched else loss.squeeze(0)

    return run(*args, **kwargs)


def _value_read(mode, func, args, kwargs):
    tensor = args[0]
    if isinstance(tensor, private.FakeTensor):
        known = constants.value_of(tensor)
        if known is None:
            known = mode.session.frozen.read(tensor, _VALUE_READS[func], user_frame())
        return private.without_modes(lambda: func(known, *args[1:], **kwargs))
    return NotImplemented


def _text(mode, func, args, kwargs):
    """Text of a tensor that has no value yet; eager writes single numbers by the format."""
    tensor, spec = args[0], args[1] if len(args) > 1 else ""
    if not isinstance(tensor, private.FakeTensor):
        return NotImplemented
    known = constants.value_of(tensor)
    if known is not None:
        return private.without_modes(lambda: func(known, *args[1:]))
    mode.session.warn_of_text()
    return "<unavailable>" if spec and tensor.dim() == 0 else NotImplemented


def _decision(mode, func, args, kwargs):
    """int(t) and bool(t): only what Python gets of the value has to be the same in each call."""
    if not mode.session.frozen.checking or args[0].numel() != 1:
        return NotImplemented
    return func(args[0].long() if func is torch.Tensor.__int__ else args[0] != 0)


def _tensor_split(mode, func, args, kwargs):
    """ATen reads sections given as a tensor from memory that a captured tensor does not have."""

    def run(input, indices_or_sections=None, dim=0, **other):
        known = constants.value_of(indices_or_sections)
        if known is None:
            where, values = user_frame(), mode.session.frozen
            known = values.read(indices_or_sections, "tensor_split by a tensor", where)
        return func(input, private.without_modes(known.tolist), dim, **other)

    split = args[1] if len(args) > 1 else kwargs.get("indices_or_sections")
    return run(*args, **kwargs) if isinstance(split, torch.Tensor) else NotImplemented


def _index_fill(mode, func, args, kwargs):
    """The gradient of a value to fill with is a sum over unique indices in ATen, here over a
    mask."""

    def run(input, dim, index, value):
        if not (isinstance(value, torch.Tensor) and value.requires_grad):
            return NotImplemented
        shape = [1] * input.dim()
        if shape:
            shape[dim] = input.shape[dim]
        size = input.shape[dim] if shape else 1
        mask = torch.zeros(size, dtype=torch.bool).index_fill(0, index, True).reshape(shape)
        out = torch.where(mask, value.to(input.dtype), input)
        return input.copy_(out) if func is torch.Tensor.index_fill_ else out

    return run(*args, **kwargs)


def _set_data(mode, func, args, kwargs):
    """`tensor.data = value` writes the tensor, past autograd; its shape and type are fixed."""
    tensor, value = args
    if not isinstance(tensor, private.FakeTensor):
        return NotImplemented
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        raise make_error(
            f"`.data` of a tensor of {tensor.dtype} and shape {list(tensor.shape)} is set to one "
            f"of {value.dtype} and shape {list(value.shape)} in forward: a program can't change "
            "the shape or the type of a tensor",
            user_frame(),
        )
    with torch.no_grad():
        tensor.data.copy_(value)
    return None


def _backward(mode, func, args, kwargs):
    raise make_error(
        "backward() is called in forward. The backward pass and the weight update are part of each "
        "call of a training model: return the loss, or mark it with poptorch.identity_loss.",
        user_frame(),
    )


def _is_float(value):
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _promote_operands(mode, func, args, kwargs):
    """Products of unlike float types are done in the wider one, which plain torch refuses."""
    floats = [a for a in (*args, *kwargs.values()) if _is_float(a)]
    if len({t.dtype for t in floats}) < 2 or torch.is_autocast_enabled("cpu"):
        return NotImplemented
    wide = floats[0].dtype
    for t in floats[1:]:
        wide = torch.promote_types(wide, t.dtype)

    def cast(value):
        return value.to(wide) if _is_float(value) else value

    return func(*map(cast, args), **{k: cast(v) for k, v in kwargs.items()})


def _norm_in_input_type(mode, func, args, kwargs):
    """Normalisation is done in the type of its input; only weight and bias are cast."""

    def cast(name, value):
        affine = name in ("weight", "bias") and _is_float(value)
        return value.to(dtype) if affine and value.dtype != dtype else value

    names = _NORM_ARGUMENTS[func]
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    dtype = bound["input"].dtype
    changed = {k: cast(k, v) for k, v in bound.items()}
    if all(changed[k] is bound[k] for k in bound):
        return NotImplemented
    with mode:
        return private.functional_body(func)(**changed)


_NORM_ARGUMENTS = {
    F.layer_norm: ("input", "normalized_shape", "weight", "bias", "eps"),
    F.group_norm: ("input", "num_groups", "weight", "bias", "eps"),
    F.batch_norm: (
        "input",
        "running_mean",
        "running_var",
        "weight",
        "bias",
        "training",
        "momentum",
        "eps",
    ),
    F.instance_norm: (
        "input",
        "running_mean",
        "running_var",
        "weight",
        "bias",
        "use_input_stats",
        "momentum",
        "eps",
    ),
}


def _linear_cross_entropy(mode, func, args, kwargs):
    """In one piece: when to keep the logits is the compiler's choice. In the type that the options
    accumulate in, if they give one."""
    names = ("input", "linear_weight", "target")
    given = {**dict(zip(names, args, strict=False)), **kwargs, "options": None}
    wide, dtype = getattr(kwargs.get("options"), "acc_dtype", None), given["input"].dtype
    if wide is not None and wide != dtype:
        given = {k: v.to(wide) if _is_float(v) else v for k, v in given.items()}
    with mode:
        return private.functional_body(func)(**given).to(dtype)


def _exported_loss(mode, func, args, kwargs):
    return identity_loss(*args, "none")


HANDLERS = {
    library.ops.exported_loss.default: _exported_loss,
    F.scaled_dot_product_attention: _attention,
    F.dropout: _dropout,
    F.one_hot: _one_hot,
    F.pad: _pad,
    torch.dropout: _dropout,
    torch.dropout_: _dropout,
    F.gaussian_nll_loss: _gaussian_nll_loss,
    F.ctc_loss: _ctc_loss,
    F.linear_cross_entropy: _linear_cross_entropy,
    torch.ctc_loss: _ctc_loss,
    **intercept_statistics.HANDLERS,
    torch.Tensor.backward: _backward,
    torch.Tensor.data.__set__: _set_data,
    **dict.fromkeys((torch.tensor_split, torch.Tensor.tensor_split), _tensor_split),
    **dict.fromkeys(
        (torch.index_fill, torch.Tensor.index_fill, torch.Tensor.index_fill_), _index_fill
    ),
    **recurrent.HANDLERS,
    **dynamic_index.HANDLERS,
    **follow.HANDLERS,
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), ragged.masked_select),
    torch.linalg.lstsq: lambda mode, func, args, kwargs: lstsq(*args, **kwargs),
    **dict.fromkeys(_VALUE_READS, _value_read),
    **dict.fromkeys((torch.Tensor.__format__, torch.Tensor.__repr__), _text),
    **dict.fromkeys((torch.Tensor.__int__, torch.Tensor.__bool__), _decision),
    **dict.fromkeys(_NORM_ARGUMENTS, _norm_in_input_type),
    **dict.fromkeys(
        (
            F.linear,
            F.conv1d,
            F.conv2d,
            F.conv3d,
            F.conv_transpose1d,
            F.conv_transpose2d,
            F.conv_transpose3d,
            F.bilinear,
        ),
        _promote_operands,
    ),
}


# Whether these return a view or a copy depends on the strides of their tensor.
_VIEW_OR_COPY = frozenset(
    getattr(space, name)
    for space in (torch, torch.Tensor)
    for name in ("reshape", "flatten", "ravel", "contiguous", "reshape_as", "to")
    if hasattr(space, name)
)


class Interceptor(private.TorchFunctionMode):
    """Sends the listed functions to their handlers and marks the results of loss functions."""

    def __init__(self, session):
        super().__init__()
        self.session = session
        self._loss_depth = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        loss = func in LOSSES
        self._loss_depth += loss
        try:
            if self.session.ragged.exist:
                self.session.ragged.check(func, args, kwargs)
            out = self._call(func, args, kwargs)
        except Exception as error:
            self.session.failed = error, func, args, kwargs
            raise
        finally:
            self._loss_depth -= loss
        if self.session.views.exist:
            self.session.views.sync()
        if self.session.ragged.exist:
            self.session.ragged.pass_on(func, args, out)
        if loss and self._loss_depth == 0:
            return mark_loss(self.session, out)
        return out

    def _call(self, func, args, kwargs):
        if kwargs.get("generator") is not None:
            raise make_error(
                "A torch.Generator cannot be used in a captured model: its random numbers come "
                "from the device's own state. Seed that with poptorch.Options().randomSeed().",
                user_frame(),
            )
        casting = self.session.casting
        if casting is not None and self.session.in_forward:
            args, kwargs = casting.arguments(func, args, kwargs)
        if func in _VIEW_OR_COPY:
            return self._view_or_copy(func, args, kwargs)
        handler = HANDLERS.get(func)
        if handler is None:  # _doors may have put another in its place
            handler = HANDLERS.get(getattr(func, "__wrapped__", None))
        if handler is not None:
            out = handler(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        body = private.functional_body(func)
        if body is None:
            return func(*args, **kwargs)
        with self:
            return body(*args, **kwargs)

    def _view_or_copy(self, func, args, kwargs):
        out = func(*args, **kwargs)
        for tensor in (out, *args[:1]):
            if isinstance(tensor, private.FakeTensor):
                self.session.views_or_copies.add(private.storage_id(tensor))
        return out
