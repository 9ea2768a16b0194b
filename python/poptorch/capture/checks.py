# SPDX-License-Identifier: Apache-2.0
"""Checks of ATen ops that torch leaves to the kernels of a device: none runs in a capture."""

import torch

aten = torch.ops.aten


def _dim(x, dim, *_rest, **_named):
    rank = max(1, x.dim())
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], "
            f"but got {dim})"
        )


def _bits(*args, **_named):
    for value in args:
        is_float = isinstance(value, float)
        if isinstance(value, torch.Tensor):
            is_float = value.dtype.is_floating_point
        if is_float:
            raise NotImplementedError("Bits of floating-point numbers cannot be combined")


CHECKS = {
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
