# SPDX-License-Identifier: Apache-2.0
"""Types of operands during a capture: calls with both float16 and float32, and regions of autocast.

Casts are ops of the graph like any other, seen by autograd.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from poptorch.capture import state

if TYPE_CHECKING:
    from poptorch.autocasting import Policy

_CAST = (torch.float16, torch.float32)
_Rule = Literal["fp16", "fp32", "promote", "demote"]
_RULES: tuple[_Rule, ...] = ("fp16", "fp32", "promote", "demote")
# They write in place, or are given a type: their operands are not cast.
_KEEP = re.compile(
    r"(.*[^_])?_$|__(get|set|setitem|delete|i[a-z]+)__$|to$|type$|.*_as$|(native_)?"
    r"(batch|instance|layer|group|rms)_norm$|detach|register_.*|backward"
)
_OPERATOR = re.compile(r"__r?(add|sub|mul|truediv|matmul|pow|mod|eq|ne|lt|le|gt|ge)__$")
# What a policy may call them instead.
_PARTS = {
    "linear": ("addmm", "matmul"),
    "einsum": ("bmm", "matmul"),
    "scaled_dot_product_attention": ("bmm", "matmul"),
    "truediv": ("div",),
}
#: Only their input is cast: they write running statistics in place, weight and bias follow it.
NORMS = frozenset(
    getattr(torch.nn.functional, n)
    for n in ("layer_norm", "group_norm", "batch_norm", "instance_norm")
)


class _Region(NamedTuple):
    """A function or module around the call.

    Attributes:
        told: what autocast() told the module, or the nearest one around it that was told.
        rule: False or True, or the rule of a module that the policy names.
    """

    told: bool | None
    rule: bool | _Rule


class Casting:
    """The rules of one capture.

    Args:
        policy: a poptorch.autocasting.Policy, for what is in a region to cast.
        enabled: False: no region is cast.
        half_wins: operands of both types become float16; else they become float32, as in torch,
            also where torch refuses them.
        float_statistics: running statistics that are in half precision on the host are in float32
            in the program.
    """

    def __init__(
        self,
        policy: "Policy | None" = None,
        enabled: bool = True,
        half_wins: bool = True,
        float_statistics: bool = False,
    ) -> None:
        self.half_wins = half_wins
        self.float_statistics = float_statistics
        self._functions: dict[str, _Rule] = {}
        self._modules: dict[type, _Rule] = {}
        for rule in _RULES if enabled and policy else ():
            for item in getattr(policy, rule):
                if isinstance(item, type):
                    self._modules[item] = rule
                else:
                    self._functions[item.__name__] = rule
        self._enabled = enabled
        self._regions = [_Region(None, False)]

    def enter(self, enabled: bool) -> None:
        """Begins a region of a function."""
        self._regions.append(_Region(self._regions[-1].told, bool(enabled) and self._enabled))

    def enter_module(self, module: torch.nn.Module) -> None:
        """Begins the region of a module: as autocast() says for it, or the policy for its class."""
        around, region = self._regions[-1]
        told = module.__dict__.get("_poptorch_autocast")
        if told is None:
            told = around
        elif told != around:  # else autocast() of the module around said it; inner regions win
            region = told and self._enabled
        if region:
            rules = (self._modules.get(c) for c in type(module).__mro__)
            region = next(filter(None, rules), region)
        self._regions.append(_Region(told, region))

    def leave(self) -> None:
        """Ends the last region."""
        self._regions.pop()

    def arguments(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call in the types that it is to have."""
        name = getattr(func, "__name__", "")
        norm = func in NORMS
        if kwargs.get("out") is not None or (not norm and _KEEP.match(name)) or _is_users(func):
            return args, kwargs
        rule = self._rule(name)
        if norm:
            if rule not in ("fp16", "fp32"):
                return args, kwargs
            changed = _to_type(_target(rule))
            if args:
                return (changed(args[0]), *args[1:]), kwargs
            return args, {**kwargs, "input": changed(kwargs["input"])}
        floats = []
        for value in (*args, *kwargs.values()):
            for t in value if isinstance(value, list | tuple) else (value,):
                if isinstance(t, torch.Tensor) and t.dtype in _CAST:
                    floats.append(t)
        if rule == "promote":  # in torch a number does not widen a tensor
            floats = [t for t in floats if t.dim()] or floats
        kinds = {t.dtype for t in floats}
        target = _target(rule)
        if not kinds - {target} or (len(kinds) < 2 and rule in ("promote", "demote")):
            return args, kwargs
        changed = _to_type(target)
        return tuple(map(changed, args)), {k: changed(v) for k, v in kwargs.items()}

    def _rule(self, name: str) -> _Rule:
        region = self._regions[-1].rule
        if isinstance(region, str):
            return region
        if region:
            operator = _OPERATOR.match(name)
            name = operator[1] if operator else name
            for known in (name, *_PARTS.get(name, ())):
                if known in self._functions:
                    return self._functions[known]
        return "demote" if self.half_wins else "promote"


def _is_users(func: Callable[..., Any]) -> bool:
    """Whether it is an op of torch.library that is none of torch's: it gets what it is given, and
    may write to it."""
    kinds = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
    return isinstance(func, kinds) and not str(func).startswith(("aten.", "aten::"))


def _target(rule: _Rule) -> torch.dtype:
    return torch.float16 if rule in ("fp16", "demote") else torch.float32


def _to_type(dtype: torch.dtype) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.dtype in _CAST and value.dtype != dtype else value
        if type(value) in (list, tuple):
            return type(value)(map(change, value))
        return value

    return change


def enter_region(enabled: bool) -> None:
    """Begins a region if a model is being captured."""
    session = state.current()
    if session is not None and session.casting is not None:
        session.casting.enter(bool(enabled))


def leave_region() -> None:
    """Ends a region that enter_region() began."""
    session = state.current()
    if session is not None and session.casting is not None:
        session.casting.leave()
