# SPDX-License-Identifier: Apache-2.0
"""Functions of torch that read tensors without asking their classes: the newest weights are fetched
before they do. They are put in place when the first model is wrapped for training."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._functorch.eager_transforms
import torch._functorch.vmap
from torch.jit import _builtins

from poptorch.weights.state import Watched, refresh_all

_installed = False


def install() -> None:
    """Put the functions in place, once."""
    global _installed
    if _installed:
        return
    _installed = True
    for space, name in (
        (torch, "tensor"),
        (torch.Tensor, "new_tensor"),
        (torch._C._nested, "nested_tensor"),  # type: ignore[attr-defined]  # not in torch's stub
        (torch._functorch.vmap, "_add_batch_dim"),
        (torch._functorch.eager_transforms, "_wrap_for_grad"),
    ):
        setattr(space, name, _door(getattr(space, name)))


def _door(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def opened(*args: Any, **kwargs: Any) -> Any:
        refresh_all({type(v) for value in (*args, *kwargs.values()) for v in _watched(value)})
        return function(*args, **kwargs)

    op = _builtins._find_builtin(function)
    if op is not None:  # scripted functions may call it as before
        _builtins._register_builtin(opened, op)
    return opened


def _watched(value: Any) -> Iterator[Watched]:
    """Watched tensors of an argument. Lists are long where they hold numbers: those are told by
    their first element."""
    if isinstance(value, Watched):
        yield value
    elif isinstance(value, (list, tuple)) and value and _leads_to_tensor(value[0]):
        for item in value:
            yield from _watched(item)


def _leads_to_tensor(value: Any) -> bool:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, torch.Tensor)
