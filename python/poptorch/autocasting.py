# SPDX-License-Identifier: Apache-2.0
"""Automatic casting of regions of a model between float16 and float32, as PopTorch had it up to
3.0. Weights keep their type: a cast is an op of the compiled program."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from poptorch.capture.casting import enter_region, leave_region

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


_NAMESPACES = (
    torch,
    torch.nn.functional,
    torch.Tensor,
    torch._C._nn,
    torch.linalg,
    torch.special,
)


def _known(item: Any) -> Any:
    name = getattr(item, "__name__", "")
    if isinstance(item, type):
        found = issubclass(item, torch.nn.Module)
    else:
        found = callable(item) and any(getattr(n, name, None) is item for n in _NAMESPACES)
    if not found:
        raise ValueError(
            f"{item!r} in a casting policy is neither a function of torch nor a class of modules"
        )
    return item


class Policy:
    """Which functions and modules are cast: to float16, to float32, or, where their inputs have
    both types, up or down. A function stands for all of its name: ``torch.relu`` for
    ``torch.nn.functional.relu`` and ``Tensor.relu`` too.

    Args:
        fp16: functions and classes of modules computed in float16.
        fp32: those computed in float32.
        promote: those computed in float32 if their inputs have both types.
        demote: those computed in float16 if their inputs have both types.
    """

    def __init__(self, fp16: Any = None, fp32: Any = None, promote: Any = None, demote: Any = None):
        self.fp16 = [_known(item) for item in fp16 or []]
        self.fp32 = [_known(item) for item in fp32 or []]
        self.promote = [_known(item) for item in promote or []]
        self.demote = [_known(item) for item in demote or []]

    def apply(self, module: torch.nn.Module, options: Any) -> None:
        """Convert the parameters of all layers that take part; see applyToLayer()."""
        for layer in module.modules():
            self.applyToLayer(layer, options)

    def applyToLayer(self, layer: torch.nn.Module, options: Any) -> None:
        """Convert the layer's own parameters to the type that its class has in the policy, if
        casting was enabled for it and by the options."""
        on = layer.__dict__.get("_poptorch_autocast") and options.Precision.autocast_enabled
        for dtype, items in ((torch.float16, self.fp16), (torch.float32, self.fp32)):
            if on and isinstance(layer, tuple(i for i in items if isinstance(i, type))):
                for parameter in layer.parameters(recurse=False):
                    if parameter.is_floating_point():
                        parameter.data = parameter.data.to(dtype)

    def __repr__(self) -> str:
        parts = (self.fp16, self.fp32, self.promote, self.demote)
        names = ([getattr(item, "__name__", str(item)) for item in part] for part in parts)
        return f"Policy({', '.join(map(str, names))})"


default = Policy(default_fp16, default_fp32, default_promote, default_demote)


class autocast:
    """Context manager and decorator around a region of a model to cast.

    Args:
        enabled: False keeps the types as they are, inside a region that is cast too.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def __enter__(self) -> "autocast":
        enter_region(self.enabled)
        return self

    def __exit__(self, *exc: object) -> None:
        leave_region()

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its body as the region."""

        @functools.wraps(func)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return func(*args, **kwargs)

        return inside


def _autocast_module(self: torch.nn.Module, enabled: bool = True) -> torch.nn.Module:
    """Cast this module and all within it automatically, or do not; the last call counts."""
    for module in self.modules():
        module.__dict__["_poptorch_autocast"] = enabled
    return self


torch.nn.Module.autocast = _autocast_module  # type: ignore[attr-defined]
