# SPDX-License-Identifier: Apache-2.0
"""Helpers that programs import from PopTorch's private module of this name: a model that is wrapped
for training gets its plain classes for a while, to be copied, saved or wrapped once more."""

from weakref import WeakKeyDictionary

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.capture import running_on_ipu as isRunningOnIpu
from poptorch.weights import state

__all__ = [
    "createPoptorchError",
    "isRunningOnIpu",
    "isWrapped",
    "rewrapModelIfNecessary",
    "unwrapModelIfNecessary",
]


class _Unwrapped:
    """The classes that a module and its tensors had."""

    def __init__(self, model: torch.nn.Module) -> None:
        tensors = (*model.parameters(), *model.buffers())
        self.tensors = [(tensor, type(tensor)) for tensor in tensors if isWrapped(tensor)]
        self.model = type(model)
        self.executor = state.executor_of(model)
        self.compiled = self.executor.isCompiled()


_unwrapped: WeakKeyDictionary[torch.nn.Module, _Unwrapped] = WeakKeyDictionary()


def isWrapped(obj: object) -> bool:
    """Whether a module is wrapped for training, or a tensor is one of a module that is."""
    return state.is_wrapped(obj) or hasattr(type(obj), "_poptorch_syncs")


def unwrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Give a module that is wrapped for training, and its tensors, their plain classes.

    They hold the newest weights then, and do not follow the device until
    :func:`rewrapModelIfNecessary`.
    """
    if not state.is_wrapped(model):
        return
    state.executor_of(model).copyWeightsToHostIfNeeded()
    before = _unwrapped[model] = _Unwrapped(model)
    state.unwrap_module(model)
    for tensor, kind in before.tensors:
        tensor.__class__ = (
            torch.nn.Parameter if issubclass(kind, torch.nn.Parameter) else torch.Tensor
        )


def rewrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Undo :func:`unwrapModelIfNecessary`."""
    before = _unwrapped.pop(model, None)
    if before is None or state.is_wrapped(model):
        return
    if before.compiled and not before.executor.isCompiled():
        return  # destroyed meanwhile, which unwraps for good
    model.__class__ = before.model
    for tensor, kind in before.tensors:
        tensor.__class__ = kind
