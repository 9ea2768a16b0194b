# SPDX-License-Identifier: Apache-2.0
"""Names of the API that exist but raise a "not yet" error: one table, read by the documentation."""

from collections.abc import Callable
from typing import Any

from poptorch._errors import not_yet

#: Methods of an executor.
METHODS = (
    "compileAndExport",
    "loadExecutable",
    "save",
)


def add_pending_methods(cls: type) -> type:
    """Give ``cls`` those of the pending methods that it does not define."""
    for name in METHODS:
        if name not in cls.__dict__:
            setattr(cls, name, _pending(name))
    return cls


def _pending(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise not_yet(f"{name}()")

    method.__name__ = name
    method.__doc__ = "Not available yet."
    return method
