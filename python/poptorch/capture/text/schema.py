# SPDX-License-Identifier: Apache-2.0
"""Arguments of an ATen op as its schema orders and types them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

_NO_TEXT = (torch.device, torch.layout, torch.memory_format, torch.Generator)


class Schema(NamedTuple):
    """The arguments of an op, keyword-only ones last."""

    names: list[str]
    defaults: list[Any]
    converters: list[Callable[[Any], Any]]


_schemas: dict[torch._ops.OpOverload, Schema] = {}


def schema_of(target: torch._ops.OpOverload) -> Schema:
    """The schema of an op, cached: reading one is slow."""
    found = _schemas.get(target)
    if found is None:
        arguments = target._schema.arguments
        found = _schemas[target] = Schema(
            [a.name for a in arguments],
            [a.default_value if a.has_default_value() else None for a in arguments],
            [_converter(a) for a in arguments],
        )
    return found


def _converter(argument: torch._C.Argument) -> Callable[[Any], Any]:
    kind = str(argument.real_type)
    if argument.name == "pin_memory":
        return lambda x: None
    if kind in ("float", "Optional[float]"):
        return lambda x: None if x is None else float(x)
    if kind in ("List[float]", "Optional[List[float]]"):
        return lambda x: None if x is None else [float(v) for v in x]
    return _plain


def _plain(x: Any) -> Any:
    if isinstance(x, _NO_TEXT):
        return None
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
    return x
