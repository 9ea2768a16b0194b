# SPDX-License-Identifier: Apache-2.0
"""Automatic casting of regions of a model between float16 and float32, as PopTorch had it up to
3.0. Regions can be marked and policies made; casting itself is not available yet."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from poptorch._pending import raise_not_yet
from poptorch.capture import running_on_ipu

default_fp16 = [
    torch.addbmm,
    torch.addmm,
    torch.addmv,
    torch.addr,
    torch.baddbmm,
    torch.bmm,
    torch.chain_matmul,
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    torch.conv_tbc,
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
    torch.convolution,
    torch.matmul,
    torch.mm,
    torch.mv,
    torch.nn.Conv2d,
]
default_fp32: list[Any] = []
default_promote = [
    torch.addcdiv,
    torch.addcmul,
    torch.atan2,
    torch.bilinear,
    torch.cat,
    torch.cross,
    torch.dot,
    torch.equal,
    torch.index_put,
    torch.stack,
    torch.tensordot,
]
default_demote: list[Any] = []


class Policy:
    """Which functions and modules are cast: to float16, to float32, or, where their inputs have
    both types, up or down."""

    def __init__(self, fp16: Any = None, fp32: Any = None, promote: Any = None, demote: Any = None):
        self.fp16 = list(fp16 or [])
        self.fp32 = list(fp32 or [])
        self.promote = list(promote or [])
        self.demote = list(demote or [])

    def __repr__(self) -> str:
        parts = (self.fp16, self.fp32, self.promote, self.demote)
        names = ([getattr(item, "__name__", str(item)) for item in part] for part in parts)
        return f"Policy({', '.join(map(str, names))})"


default = Policy(default_fp16, default_fp32, default_promote, default_demote)


class autocast:
    """Context manager and decorator around a region to cast.

    Args:
        enabled: False keeps the types as they are.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def __enter__(self) -> "autocast":
        if self.enabled and running_on_ipu():
            raise_not_yet("poptorch.autocast")
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its body as the region."""

        @functools.wraps(func)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return func(*args, **kwargs)

        return inside
