# SPDX-License-Identifier: Apache-2.0
"""Custom ops that write to their arguments: each has a pure form, which returns the new values.

A captured graph holds the pure form and a copy of each new value to its tensor, which is undone
like any other write in place.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from poptorch.base.errors import createPoptorchError

_lib = torch.library.Library("tessera_pure", "DEF")
# Those that torch itself makes pure.
_KNOWN = frozenset({"aten", "prim", "prims", "quantized", "tessera", "tessera_pure", "poptorch"})

#: The op that a pure form stands for, by its name as the target of a host call.
ORIGINALS: dict[str, str] = {}


class PureForm:
    """How an op that writes to arguments is called as one that does not."""

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        arguments = op._schema.arguments
        self._names = [a.name for a in arguments]
        self._written = [a.name for a in arguments if a.alias_info and a.alias_info.is_write]
        self._returns = [str(r.type) for r in op._schema.returns]
        # A result that is one of the tensors written to.
        self._same = [
            next((a.name for a in arguments if _shares(a, r)), None) for r in op._schema.returns
        ]
        made = [t for t, same in zip(self._returns, self._same, strict=True) if same is None]
        if set(made) - {"Tensor", "List[Tensor]"} or made.count("List[Tensor]") > 1:
            raise createPoptorchError(
                f"{op}: an op that writes to its arguments may return tensors and one list of "
                f"tensors, not {', '.join(self._returns)}"
            )
        self.pure = _define(op, self._run)

    def _tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
        """Those written to, in order."""
        given = dict(zip(self._names, args, strict=False)) | dict(kwargs)
        for name in self._written:
            value = given.get(name)
            if value is not None:
                yield from value if isinstance(value, (list, tuple)) else [value]

    def _run(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        """What the op returns, then the new values, as one list."""
        given = dict(zip(self._names, args, strict=False)) | kwargs
        for name in self._written:
            value = given.get(name)
            if isinstance(value, (list, tuple)):
                given[name] = [t.clone() for t in value]
            elif value is not None:
                given[name] = value.clone()
        copies = [given[n] for n in self._names[: len(args)]]
        named = {n: given[n] for n in kwargs}
        out = self.op(*copies, **named)
        found = list(out) if len(self._returns) > 1 else [out] * len(self._returns)
        flat: list[Tensor] = []
        for value, same in zip(found, self._same, strict=True):
            if same is None:
                flat += value if isinstance(value, (list, tuple)) else [value]
        return [*flat, *self._tensors(tuple(copies), named)]

    def call(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The pure form in the place of the op; `call` records one op of the graph."""
        written = list(self._tensors(args, kwargs))
        made = call(self.pure, args, kwargs)
        count = len(made) - len(written)
        for target, value in zip(written, made[count:], strict=True):
            call(torch.ops.aten.copy_.default, (target, value), {})
        given = dict(zip(self._names, args, strict=False)) | kwargs
        single = sum(
            t == "Tensor" and same is None
            for t, same in zip(self._returns, self._same, strict=True)
        )
        left = iter(made[:count])
        found: list[Any] = []
        for kind, same in zip(self._returns, self._same, strict=True):
            if same is not None:
                found.append(given[same])
            elif kind == "Tensor":
                found.append(next(left))
            else:
                found.append([next(left) for _ in range(count - single)])
        return None if not found else found[0] if len(found) == 1 else tuple(found)


def _shares(argument: Any, result: Any) -> bool:
    """Whether a result is an argument itself."""
    one, other = argument.alias_info, result.alias_info
    return bool(one and other and one.is_write and one.before_set & other.before_set)


def _define(op: OpOverload, run: Callable[..., list[Tensor]]) -> OpOverload:
    base, _, overload = op.name().replace("::", "__").partition(".")
    name = f"{base}__{overload}" if overload else base
    arguments = str(op._schema).partition("(")[2].rpartition(" -> ")[0].removesuffix(")")
    arguments = re.sub(r"Tensor\(\w+!?( -> \*)?\)", "Tensor", arguments)
    _lib.define(f"{name}({arguments}) -> Tensor[]")
    _lib.impl(name, run, "CPU")
    torch.library.register_fake(f"tessera_pure::{name}", run, lib=_lib)
    pure = getattr(torch.ops.tessera_pure, name).default
    original = op.name() if "." in op.name() else f"{op.name()}.default"
    ORIGINALS[f"tessera_pure::{name}.default"] = original
    return pure


@functools.cache
def pure_form(op: OpOverload) -> PureForm | None:
    """The pure form of a custom op that writes to its arguments; None for all others."""
    if not op._schema.is_mutable or op.namespace in _KNOWN:
        return None
    return PureForm(op)
