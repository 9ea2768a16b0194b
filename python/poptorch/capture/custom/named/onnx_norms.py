# SPDX-License-Identifier: Apache-2.0
"""``ai.onnx``: normalisations and losses."""

import torch
import torch.nn.functional as F
from torch import Tensor

from poptorch.capture.custom.named.table import Call, Named, Result

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}  # as ATen numbers them


def _along_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (x.dim() - 2))


def batch_normalization(call: Call) -> Result:
    """With one result by the given statistics, else by those of the batch."""
    x, scale, bias, mean, variance = (call.x(i) for i in range(5))
    mean, variance = mean.detach(), variance.detach()
    epsilon, momentum = call.float_("epsilon", 1e-5), call.float_("momentum", 0.9)
    call.known("spatial", "is_test", "consumed_inputs", "unbiased_variance")
    if call.version >= 14 and call.flag("training_mode") != (call.results > 1):
        call.fail("three results need the attribute training_mode, one forbids it.")
    if call.results == 1:
        return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)
    dims = [d for d in range(x.dim()) if d != 1]
    now = x.mean(dims)
    centred = x - _along_channels(now, x)
    spread = (centred * centred).mean(dims)
    factor = _along_channels(scale * torch.rsqrt(spread + epsilon), x)
    y = centred * factor + _along_channels(bias, x)
    running = [
        old * momentum + new.detach() * (1 - momentum)
        for old, new in ((mean, now), (variance, spread))
    ]
    if call.version >= 14 or call.results == 3:
        return [y, *running]
    return [y, *running, now, torch.rsqrt(spread + epsilon)][: max(call.results, 3)]


def _instance_normalization(call: Call) -> Tensor:
    x, scale, bias, epsilon = call.x(0), call.x(1), call.x(2), call.float_("epsilon", 1e-5)
    call.known("consumed_inputs")
    return F.instance_norm(x, None, None, scale, bias, True, 0.0, epsilon)


def group_norm(call: Call, groups: int, epsilon: float) -> list[Tensor]:
    """Result, mean and inverse deviation of each group; scale and bias are per channel."""
    x, scale, bias = call.x(0), call.x(1, "scale"), call.x(2, "bias")
    if groups < 1 or x.shape[1] % groups:
        call.fail(f"{x.shape[1]} channels can not be split into {groups} groups.")
    rest = x.numel() // (x.shape[0] * x.shape[1])
    found = torch.native_group_norm(x, scale, bias, x.shape[0], x.shape[1], rest, groups, epsilon)
    return [found[0], *(s.reshape(-1) for s in found[1:])]


def _group_normalization(call: Call) -> Tensor:
    groups, epsilon = call.int_("num_groups"), call.float_("epsilon", 1e-5)
    call.known("stash_type")
    if call.version < 21:  # one scale for each group
        x, each = call.x(), call.x().shape[1] // max(groups, 1)
        spread = [t.repeat_interleave(each) for t in call.inputs[1:3]]
        call.inputs = [x, *spread]
    return group_norm(call, groups, epsilon)[0]


def _layer_normalization(call: Call) -> Result:
    x, scale, bias = call.x(0), call.x(1, "scale"), call.maybe(2)
    axis, epsilon = call.axis(call.int_("axis", -1), x.dim()), call.float_("epsilon", 1e-5)
    call.known("stash_type")
    shape = list(x.shape[axis:])
    scale, bias = scale.expand(shape), None if bias is None else bias.expand(shape)
    out = torch.native_layer_norm(x, shape, scale, bias, epsilon)
    return list(out)[: max(call.results, 1)]


def _rms_normalization(call: Call) -> Tensor:
    x, scale = call.x(0), call.x(1, "scale")
    axis, epsilon = call.axis(call.int_("axis", -1), x.dim()), call.float_("epsilon", 1e-5)
    call.known("stash_type")
    dims = list(range(axis, x.dim()))
    return x * torch.rsqrt((x * x).mean(dims, keepdim=True) + epsilon) * scale


def _local_response(call: Call) -> Tensor:
    x, size = call.x(), call.int_("size")
    alpha, beta = call.float_("alpha", 1e-4), call.float_("beta", 0.75)
    bias = call.float_("bias", 1.0)
    around = [0, 0] * (x.dim() - 2) + [(size - 1) // 2, size // 2]
    squares = F.pad(x * x, around)
    total = torch.stack([squares.narrow(1, i, x.shape[1]) for i in range(size)]).sum(0)
    return x / (bias + alpha / size * total) ** beta


def _lp_normalization(call: Call) -> Tensor:
    x, p = call.x(), call.int_("p", 2)
    axis = call.axis(call.int_("axis", -1), x.dim())
    if p not in (1, 2):
        call.fail(f"attribute p must be 1 or 2, not {p}.")
    norm = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(norm == 0, 0.0, x / torch.where(norm == 0, 1.0, norm))


def _mean_variance(call: Call) -> Tensor:
    x, axes = call.x(), call.ints("axes") or [0, 2, 3]
    call.known("across_channels", "normalize_variance")
    centred = x - x.mean(axes, keepdim=True)
    return centred / ((centred * centred).mean(axes, keepdim=True).sqrt() + 1e-9)


# losses


def _nll(call: Call, logs: Tensor) -> Tensor:
    labels, weights = call.x(1, "labels"), call.maybe(2)
    weights = None if weights is None else weights.detach()
    reduction = _REDUCTIONS[call.choice("reduction", "mean", tuple(_REDUCTIONS))]
    ignored = call.int_("ignore_index", -100)
    # not F.nll_loss, which would make it the loss that the model is trained for
    return torch.ops.aten.nll_loss_nd(logs, labels.long(), weights, reduction, ignored)


def _softmax_cross_entropy(call: Call) -> Result:
    logs = torch.log_softmax(call.x(), 1)
    return [_nll(call, logs), logs][: max(call.results, 1)]


ROWS: dict[str, Named] = {
    "BatchNormalization": Named(batch_normalization),
    "GroupNormalization": Named(_group_normalization, 18),
    "InstanceNormalization": Named(_instance_normalization),
    "LRN": Named(_local_response),
    "LayerNormalization": Named(_layer_normalization, 17),
    "LpNormalization": Named(_lp_normalization),
    "MeanVarianceNormalization": Named(_mean_variance, 9),
    "NegativeLogLikelihoodLoss": Named(lambda call: _nll(call, call.x()), 12),
    "RMSNormalization": Named(_rms_normalization, 23),
    "SoftmaxCrossEntropyLoss": Named(_softmax_cross_entropy, 12),
}
