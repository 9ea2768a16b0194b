# SPDX-License-Identifier: Apache-2.0
"""Functions of the user's that run around every capture."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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


class SubstitutionManagers:
    """Classes whose objects put other functions in place of some while a model is captured: they
    have ``replace()`` and ``restore()``."""

    _types: list[type] = []

    @classmethod
    def registerSubsitutionManager(cls, manager_type: type) -> None:
        """Make an object of this class for every capture."""
        if manager_type not in cls._types:
            cls._types.append(manager_type)

    @classmethod
    def enter(cls, stack: ExitStack) -> None:
        """Replace now, restore when ``stack`` ends."""
        for kind in cls._types:
            manager = kind()
            manager.replace()
            stack.callback(manager.restore)


@contextmanager
def around_capture() -> Iterator[None]:
    """Run the hooks around the block."""
    for hook in list(_before.values()):
        hook()
    try:
        with ExitStack() as stack:
            SubstitutionManagers.enter(stack)
            yield
    finally:
        for hook in list(_after.values()):
            hook()
