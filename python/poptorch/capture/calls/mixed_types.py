# SPDX-License-Identifier: Apache-2.0
"""Operands of unlike floating-point types, which plain torch refuses in products and norms."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from poptorch.capture import _torch_private as private
from poptorch.capture.calls.handler import Args, Function, Handler, Kwargs, Mode, by_name


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _promote_operands(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Products of unlike float types are done in the wider one, which plain torch refuses."""
    floats = [a for a in (*args, *kwargs.values()) if is_float(a)]
    if len({t.dtype for t in floats}) < 2 or torch.is_autocast_enabled("cpu"):
        return NotImplemented
    wide = floats[0].dtype
    for t in floats[1:]:
        wide = torch.promote_types(wide, t.dtype)

    def cast(value: Any) -> Any:
        return value.to(wide) if is_float(value) else value

    return func(*map(cast, args), **{k: cast(v) for k, v in kwargs.items()})


def _norm_in_input_type(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Normalisation is done in the type of its input; only weight and bias are cast."""

    def cast(name: str, value: Any) -> Any:
        affine = name in ("weight", "bias") and is_float(value)
        return value.to(dtype) if affine and value.dtype != dtype else value

    bound = by_name(_NORM_ARGUMENTS[func], args, kwargs)
    dtype = bound["input"].dtype
    changed = {k: cast(k, v) for k, v in bound.items()}
    if all(changed[k] is bound[k] for k in bound):
        return NotImplemented
    body = private.functional_body(func)
    assert body is not None
    with mode:
        return body(**changed)


_NORM_ARGUMENTS: dict[Function, tuple[str, ...]] = {
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


HANDLERS: dict[Function, Handler] = {
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
