# SPDX-License-Identifier: Apache-2.0
"""Functions of the user's that run around every capture."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.hooks import RemovableHandle

_before: "OrderedDict[int, Callable[[], Any]]" = OrderedDict()
_after: "OrderedDict[int, Callable[[], Any]]" = OrderedDict()


def registerPreCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call ``hook`` before the forward of any model is captured."""
    return _register(_before, hook, "Pre")


def registerPostCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call ``hook`` after the forward of any model was captured, also when that failed."""
    return _register(_after, hook, "Post")


def _register(hooks: Any, hook: Any, when: str) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{when}-compile hook must be callable")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


@contextmanager
def around_capture() -> Iterator[None]:
    """Run the hooks around the block."""
    for hook in list(_before.values()):
        hook()
    try:
        yield
    finally:
        for hook in list(_after.values()):
            hook()
