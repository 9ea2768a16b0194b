# SPDX-License-Identifier: Apache-2.0
"""``ai.graphcore``: ops that PopART adds to ONNX, but for those of `graphcore_slices` and
`graphcore_replicas`."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from poptorch.base.logging import logger
from poptorch.capture.custom.named import graphcore_replicas, graphcore_slices
from poptorch.capture.custom.named.onnx_math import binary, unary
from poptorch.capture.custom.named.onnx_norms import batch_normalization, group_norm
from poptorch.capture.custom.named.onnx_random import in_training
from poptorch.capture.custom.named.onnx_shape import depth_to_space, reshaped
from poptorch.capture.custom.named.table import Call, Named, Result

_REDUCTIONS = ("Sum", "Mean", "None", "NoReduction")


def _reduction(call: Call) -> str:
    return call.choice("reduction", "Mean", _REDUCTIONS)


def _reduced(values: Tensor, how: str) -> Tensor:
    if how == "Sum":
        return values.sum()
    return values.mean() if how == "Mean" else values


# losses


def _ctc_type(call: Call, x: Tensor) -> torch.dtype:
    """Programs give a text where PopART reads a number, and get the type of the input."""
    given = call.given("outDataType")
    if given is None or isinstance(given, str) or given == 0:
        if isinstance(given, str) and given.upper() not in ("UNDIFINED", "UNDEFINED"):
            logger.warning(
                "%s: outDataType is the text %r where PopART has a number, so the type is that of "
                "the input.",
                call.op,
                given,
            )
        return x.dtype
    dtype = call.dtype("outDataType")
    return dtype if dtype.is_floating_point else call.fail("outDataType must be a float type.")


def _ctc(call: Call) -> Result:
    """The loss, and its gradient for each sample as if that were 1."""
    from poptorch.capture import library  # defines ops, which only a capture needs

    x, targets = call.x(0, "log-probabilities"), call.x(1, "targets")
    times, sizes = call.x(2, "input lengths"), call.x(3, "target lengths")
    if x.dim() != 3 or targets.dim() != 2 or targets.shape[0] != x.shape[1]:
        call.fail(
            "log-probabilities must be [time, batch, classes] and targets [batch, labels], not "
            f"{list(x.shape)} and {list(targets.shape)}."
        )
    how, blank, zero = _reduction(call), call.int_("blank", 0), call.flag("zeroInfinity")
    if not 0 <= blank < x.shape[2]:
        call.fail(f"blank is {blank}, but there are {x.shape[2]} classes.")
    call.known("enableReducedClassesInLabel")
    x = x.to(_ctc_type(call, x))
    rest = (targets, times, sizes, blank, zero, targets.shape[1])
    loss = library.CtcLoss.apply(x, *rest)
    loss = torch.where(loss == math.inf, 0.0, loss) if zero else loss
    mean = loss / sizes.clamp_min(1).to(loss.dtype) if how == "Mean" else loss
    reduced = _reduced(mean, how)
    if call.results < 2:
        return reduced
    plain = x.detach()
    each, alpha = library.ops.ctc_loss(plain, *rest)
    gradient = library.ops.ctc_loss_backward(
        torch.ones_like(each), plain, targets, times, sizes, each, alpha, blank, zero
    )
    return reduced, gradient


def _ctc_decoder(call: Call) -> Result:
    """Probabilities of the paths, their lengths and labels."""
    x, lengths = call.x(0, "log-probabilities"), call.x(1, "lengths")
    beams = call.int_("blank", 0), call.int_("beamWidth", 100), call.int_("topPaths", 1)
    return torch.ops.tessera.ctc_beam_search(x.detach(), lengths, *beams)


def _l1(call: Call) -> Tensor:
    return _reduced(call.x().abs() * call.float_("lambda", 1.0), _reduction(call))


def _nll(call: Call) -> Tensor:
    x, labels, how = call.x(0), call.x(1, "labels").long(), _reduction(call)
    logs = x if call.flag("inputIsLogProbability") else torch.log(x)
    ignored = None if call.given("ignoreIndex") is None else call.int_("ignoreIndex")
    kept = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
    index = torch.where(kept, labels, 0).unsqueeze(-1)
    losses = torch.where(kept, -torch.gather(logs, -1, index).squeeze(-1), 0.0)
    if how != "Mean" or ignored is None:
        return _reduced(losses, how)
    return losses.sum() / kept.sum().to(losses.dtype)


def _identity_loss(call: Call) -> Tensor:
    from poptorch.capture import identity_loss

    how = {"Sum": "sum", "Mean": "mean"}.get(_reduction(call), "none")
    return identity_loss(call.x(), how)  # type: ignore[arg-type]


# element-wise


def _away_from_zero(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.floor(x.abs() + 0.5)


def _scaled_add(call: Call) -> Tensor:
    a, b = call.x(0), call.x(1)
    scales = [call.maybe(2), call.maybe(3)]
    first, second = (
        call.float_(f"scale{i}", 1.0) if scale is None else scale for i, scale in enumerate(scales)
    )
    return a * first + b * second


def _increment_mod(call: Call) -> Tensor:
    step, modulus = call.float_("increment"), call.float_("modulus")
    x = call.x()
    if x.is_floating_point():
        return torch.remainder(x + step, modulus)
    return torch.remainder(x + int(step), int(modulus))


def _remapped(call: Call) -> Tensor:
    call.known("remap_type")  # where a tensor lies on tiles
    return call.x().clone()


def _print_tensor(call: Call) -> Tensor:
    from poptorch.ops.print_tensor import ipu_print_tensor

    styles = ("auto", "fixed", "scientific", "none")
    style = call.given("floatFormat") or 0
    return ipu_print_tensor(
        call.x(),
        call.str_("title", ""),
        call.flag("print_gradient", True),
        call.int_("summariseThreshold", 1000),
        call.int_("edgeItems", 3),
        call.int_("maxLineWidth", 80),
        call.int_("digits", 4),
        styles[style] if isinstance(style, int) and 0 <= style < len(styles) else "auto",
        call.str_("separator", ", "),
        call.str_("openBracket", "("),
        call.str_("closeBracket", ")"),
    )


def _nop(call: Call) -> Tensor:
    from poptorch.ops.hints import nop

    return nop(call.x())


def _shaped_dropout(call: Call) -> Tensor:
    x, ratio, shape = call.x(), call.float_("ratio", 0.5), call.ints("shape")
    if shape is None:
        call.fail("attribute shape must be given.")
    if not in_training():
        return x.clone()
    return x * F.dropout(torch.ones(shape, dtype=x.dtype), ratio, True)


# norms and layers


def _group_normalization(call: Call) -> Result:
    found = group_norm(call, call.int_("num_groups"), call.float_("epsilon", 1e-5))
    return found[: max(call.results, 1)]


def _as_of(version: int, run: Callable[[Call], Result], form: str) -> Named:
    """An op of ONNX at a version, for a domain that has one version only."""

    def at(call: Call) -> Result:
        call.version = version
        return run(call)

    return Named(at, form=form)


def _lstm(call: Call) -> Result:
    """Weights [4, input + hidden, hidden], gates in the order forget, input, new, output."""
    x, weights, biases, first = call.x(0), call.x(1, "weights"), call.maybe(2), call.maybe(3)
    whole, hidden = call.flag("output_full_sequence", True), weights.shape[-1]
    if weights.dim() != 3 or weights.shape[0] != 4 or weights.shape[1] != x.shape[-1] + hidden:
        call.fail(
            f"weights must be [4, {x.shape[-1]} + hidden, hidden], not {list(weights.shape)}."
        )
    order = torch.tensor([1, 0, 2, 3])

    def gates(t: Tensor) -> Tensor:
        return t.index_select(0, order).transpose(1, 2).reshape(4 * hidden, -1)

    parts = [gates(weights[:, : x.shape[-1]]), gates(weights[:, x.shape[-1] :])]
    if biases is not None:
        bias = biases.index_select(0, order).reshape(-1)
        parts += [bias, torch.zeros_like(bias)]
    if first is None:
        first = torch.zeros((2, x.shape[1], hidden), dtype=x.dtype)
    states = [first[i].unsqueeze(0) for i in range(2)]
    y, h, c = torch.lstm(x, states, parts, biases is not None, 1, 0.0, False, False, False)
    return [y if whole else h.squeeze(0), c.squeeze(0)][: max(call.results, 1)]


def _reduce_median(call: Call) -> Result:
    """Values, and their places along the reduced dimensions taken together."""
    x, keep = call.x(), call.flag("keepdims", True)
    dims = [call.axis(a, x.dim()) for a in call.ints("axes") or range(x.dim())]
    rest = [d for d in range(x.dim()) if d not in dims]
    flat = x.permute(*rest, *sorted(dims)).flatten(len(rest))
    shape = [1 if d in dims else n for d, n in enumerate(x.shape) if keep or d not in dims]
    return [t.reshape(shape) for t in flat.median(-1)][: max(call.results, 1)]


def _sort(call: Call) -> Result:
    x, descending = call.x(), call.flag("descending")
    axis = call.axis(call.int_("axis", -1), x.dim())
    found = torch.sort(x, dim=axis, descending=descending, stable=call.flag("stable"))
    return list(found)[: max(call.results, 1)]


def _reshape(call: Call) -> Tensor:
    return reshaped(call, call.x(), list(call.ints("shape") or []))


ROWS: dict[str, Named] = {
    "Atan2": binary(torch.atan2),
    "BatchNormalization": _as_of(
        9,
        batch_normalization,
        form="x, scale, bias, mean, variance; `epsilon`, `momentum`; 1 or 5 results",
    ),
    "BitwiseAnd": binary(torch.bitwise_and),
    "BitwiseNot": unary(torch.bitwise_not),
    "BitwiseOr": binary(torch.bitwise_or),
    "BitwiseXnor": binary(lambda a, b: torch.bitwise_not(torch.bitwise_xor(a, b))),
    "BitwiseXor": binary(torch.bitwise_xor),
    "Ctc": Named(
        _ctc,
        form="log-probabilities [T, N, C], targets [N, S], lengths [N], target lengths "
        "[N]; `reduction` (`Sum`, `Mean`, `None`), `blank`, `outDataType`, "
        "`zeroInfinity`; loss and its gradient for each sample",
    ),
    "CtcBeamSearchDecoder": Named(
        _ctc_decoder,
        form="log-probabilities, lengths; `blank`, `beamWidth`, `topPaths`; 3 results",
    ),
    "DepthToSpace": _as_of(
        11,
        depth_to_space,
        form="x; `blocksize`, `mode` (`DCR`, `CRD`)",
    ),
    "Detach": unary(torch.Tensor.detach),
    "Expm1": unary(torch.expm1),
    "Fmod": binary(torch.fmod),
    "Gelu": unary(lambda x: F.gelu(x, approximate="tanh"), form="x; its tanh form"),
    "GeluErf": unary(F.gelu, form="x; the exact form"),
    "GroupNormalization": Named(
        _group_normalization,
        form="x, scale, bias; `num_groups`, `epsilon`; also mean and inverse deviation, [N "
        "* groups]",
    ),
    "IdentityLoss": Named(_identity_loss, form="x; `reduction`; the loss of the model"),
    "IncrementMod": Named(_increment_mod, form="x; `increment`, `modulus`"),
    "L1": Named(_l1, form="x; `lambda`, `reduction`"),
    "LSTM": Named(
        _lstm,
        form="x [T, N, I], weights [4, I + H, H] (gates: forget, input, new, output), "
        "biases [4, H], first output and cell state [2, N, H]; "
        "`output_full_sequence`; output, cell state",
    ),
    "Log1p": unary(torch.log1p),
    "NearbyInt": unary(torch.round, form="x; halves to even"),
    "Nll": Named(
        _nll,
        form="probabilities, labels; `reduction`, `ignoreIndex`, `inputIsLogProbability`",
    ),
    "Nop": Named(_nop, form="x; a step of its own, as `poptorch.nop`"),
    "PrintTensor": Named(
        _print_tensor,
        form="x; `title`, `print_gradient`, `summariseThreshold`, `edgeItems`, "
        "`maxLineWidth`, `digits`, `floatFormat`, `separator`, `openBracket`, "
        "`closeBracket`",
    ),
    "ReduceMedian": Named(_reduce_median, form="x; `axes`, `keepdims`; values, places"),
    "Remainder": binary(torch.remainder),
    "Reshape": Named(_reshape, form="x; `shape`"),
    "Round": unary(_away_from_zero, form="x; halves away from zero"),
    "Scale": Named(lambda call: call.x() * call.float_("scale"), form="x; `scale`"),
    "ScaledAdd": Named(
        _scaled_add,
        form="a, b, and two scales or the attributes `scale0`, `scale1`",
    ),
    "ShapedDropout": Named(_shaped_dropout, form="x; `ratio`, `shape`"),
    "Sort": Named(_sort, form="x; `axis`, `descending`, `stable`; values, places"),
    "Swish": unary(F.silu),
    "TensorRemap": Named(_remapped, form="x; `remap_type`, without effect"),
    "ZerosLike": unary(torch.zeros_like),
    **graphcore_replicas.ROWS,
    **graphcore_slices.ROWS,
}
