# SPDX-License-Identifier: Apache-2.0
"""Types of operands during a capture: operands of both float16 and float32, and the regions that
are cast automatically. Casts are ops of the graph like any other, seen by autograd."""

import re

import torch

from . import state

_CAST = (torch.float16, torch.float32)
# Written in place, or told their type: these keep their operands.
_KEEP = re.compile(
    r"(.*[^_])?_$|__(get|set|setitem|delete|i[a-z]+)__$|to$|type$|.*_as$|(native_)?"
    r"(batch|instance|layer|group|rms)_norm$|detach|register_.*|backward"
)
_OPERATOR = re.compile(r"__r?(add|sub|mul|truediv|matmul|pow|mod|eq|ne|lt|le|gt|ge)__$")
# Functions that are products of another name.
_PARTS = {
    "linear": ("addmm", "matmul"),
    "einsum": ("bmm", "matmul"),
    "scaled_dot_product_attention": ("bmm", "matmul"),
    "truediv": ("div",),
}
#: They keep running statistics, which are written in place; weight and bias follow the input.
NORMS = frozenset(
    getattr(torch.nn.functional, n)
    for n in ("layer_norm", "group_norm", "batch_norm", "instance_norm")
)


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

    def __init__(self, policy=None, enabled=True, half_wins=True, float_statistics=False):
        self.half_wins = half_wins
        self.float_statistics = float_statistics
        self._functions, self._modules = {}, {}
        for rule in ("fp16", "fp32", "promote", "demote") if enabled and policy else ():
            for item in getattr(policy, rule):
                if isinstance(item, type):
                    self._modules[item] = rule
                else:
                    self._functions[item.__name__] = rule
        self._enabled = enabled
        #: Per region around the call: what the module around it was told, and False, True, or the
        #: rule of a module that the policy names.
        self._regions = [(None, False)]

    def enter(self, enabled):
        """Begins a region of a function."""
        self._regions.append((self._regions[-1][0], bool(enabled) and self._enabled))

    def enter_module(self, module):
        """Begins the region that a module is by its own or its policy's word."""
        around, region = self._regions[-1]
        told = module.__dict__.get("_poptorch_autocast")
        if told is None:
            told = around
        elif told != around:  # else it was told with the module around it, and a block counts more
            region = told and self._enabled
        if region:
            rules = (self._modules.get(c) for c in type(module).__mro__)
            region = next(filter(None, rules), region)
        self._regions.append((told, region))

    def leave(self):
        """Ends the last region."""
        self._regions.pop()

    def arguments(self, func, args, kwargs):
        """The arguments of a call in the types that it is to have."""
        name = getattr(func, "__name__", "")
        norm = func in NORMS
        if kwargs.get("out") is not None or (not norm and _KEEP.match(name)):
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

    def _rule(self, name):
        region = self._regions[-1][1]
        if region and region is not True:
            return region
        if region:
            operator = _OPERATOR.match(name)
            name = operator[1] if operator else name
            for known in (name, *_PARTS.get(name, ())):
                if known in self._functions:
                    return self._functions[known]
        return "demote" if self.half_wins else "promote"


def _target(rule):
    return torch.float16 if rule in ("fp16", "demote") else torch.float32


def _to_type(dtype):
    def change(value):
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.dtype in _CAST and value.dtype != dtype else value
        if type(value) in (list, tuple):
            return type(value)(map(change, value))
        return value

    return change


def enter_region(enabled):
    """Begins a region if a model is being captured."""
    session = state.current()
    if session is not None and session.casting is not None:
        session.casting.enter(bool(enabled))


def leave_region():
    """Ends a region that enter_region() began."""
    session = state.current()
    if session is not None and session.casting is not None:
        session.casting.leave()
