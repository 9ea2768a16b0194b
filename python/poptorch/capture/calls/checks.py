# SPDX-License-Identifier: Apache-2.0
"""Checks that torch leaves to the kernels of a device, none of which runs in a capture."""

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _dim(x: torch.Tensor, dim: int, *_rest: Any, **_named: Any) -> None:
    rank = max(1, x.dim())
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], "
            f"but got {dim})"
        )


def _bits(*args: Any, **_named: Any) -> None:
    for value in args:
        is_float = isinstance(value, float)
        if isinstance(value, torch.Tensor):
            is_float = value.dtype.is_floating_point
        if is_float:
            raise NotImplementedError("Bits of floating-point numbers cannot be combined")


def _one_kind(*args: Any, **_named: Any) -> None:
    """Operands of a product are all of floating-point types, or none is."""
    kinds = {t.dtype.is_floating_point for t in args if isinstance(t, torch.Tensor)}
    if len(kinds) > 1:
        names = ", ".join(str(t.dtype) for t in args if isinstance(t, torch.Tensor))
        raise RuntimeError(f"The operands of a product must have one type, got {names}")


_PRODUCTS = ("mm", "bmm", "mv", "dot", "addmm", "addmv", "baddbmm", "addbmm", "addr", "convolution")


def check_device(device: torch.device | str | int) -> None:
    """Raise unless a tensor may be made there, or moved there, in a captured model."""
    if torch.device(device).type not in ("cpu", "meta"):
        raise RuntimeError(f"A captured model runs on the IPU: its tensors can't go to {device}")


CHECKS: dict[torch._ops.OpOverload, Callable[..., None]] = {
    **{getattr(aten, name).default: _one_kind for name in _PRODUCTS},
    aten._softmax.default: _dim,
    aten._log_softmax.default: _dim,
    **{
        overload: _bits
        for name in ("and", "or", "xor", "left_shift", "right_shift")
        for packet in (getattr(aten, f"bitwise_{name}"), getattr(aten, f"bitwise_{name}_", None))
        if packet is not None
        for overload in (getattr(packet, overload) for overload in packet.overloads())
    },
}
