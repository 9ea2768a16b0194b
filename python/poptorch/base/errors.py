# SPDX-License-Identifier: Apache-2.0
"""The exception classes of the API and the translation of the core's exceptions into them."""

import os
from typing import Any, NoReturn

from poptorch.base import logging

PY_ERROR_TYPE = "poptorch_py_error"
CPP_ERROR_TYPE = "poptorch_cpp_error"
_LONG = 80  # lines
_LOG = "poptorch_error.log"


class Error(Exception):
    """A mistake in the program or its data; the process and the executor stay usable.

    Attributes:
        message: the text without its context.
        type: the component or category that raised it.
        location: where in the program it happened; may be empty.
    """

    def __init__(self, message: str = "", type: str = PY_ERROR_TYPE, location: str = "") -> None:
        self.message = message
        self.type = type
        self.location = location
        super().__init__(self._format())

    #: What the text says between the message and the place.
    _action = ""

    def _format(self) -> str:
        text = f"'{self.type}': {self.message}{self._action}"
        # Errors of capture say where at the end of their message, with the text of the line.
        if not self.location or f"at {self.location}" in self.message:
            return text
        if self.type != PY_ERROR_TYPE:  # the first word of a location is file:line
            text = f"In {self.location.split(' ')[0]}: {text}"
        return f"{text}\nError raised in:\n  [0] {self.location}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (self.__class__, (self.message, self.type, self.location))


class RecoverableError(Error):
    """A fault of a device that a reset cures.

    Attributes:
        recovery_action: one of ``IPU_RESET``, ``LINK_RESET``, ``PARTITION_RESET``, ``FULL_RESET``.
    """

    def __init__(
        self,
        message: str = "",
        type: str = PY_ERROR_TYPE,
        location: str = "",
        recovery_action: str = "FULL_RESET",
    ) -> None:
        self.recovery_action = recovery_action
        self._action = f"\nRecovery action required: {recovery_action}"
        super().__init__(message, type, location)

    def __reduce__(self) -> tuple[Any, ...]:
        return (self.__class__, (self.message, self.type, self.location, self.recovery_action))


class UnrecoverableError(Error):
    """A fault of a device that needs someone to look at it."""


# Programs import them from there, and pickles name them by that path.
for _cls in (Error, RecoverableError, UnrecoverableError):
    _cls.__module__ = "poptorch.poptorch_core"


def createPoptorchError(msg: str) -> Error:
    """Make (not raise) an error of the Python layer."""
    return Error(msg)


def not_yet(what: str, missing: str = "") -> Error:
    """The error of a part of the API that exists by name only."""
    reason = f": {missing}" if missing else ""
    return Error(f"{what} is not available yet in this version{reason}.", type="not_yet")


def _short(message: str) -> str:
    """The message; a very long one is written to a file and replaced by its name."""
    if message.count("\n") < _LONG:
        return message
    path = os.path.join(logging.directory or "", _LOG)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(message + "\n")
    except OSError:
        return message  # nowhere to write to
    return f"See {path} for details"


def raise_core_error(exc: BaseException) -> NoReturn:
    """Raise the public exception for ``exc``, which the core raised."""
    if isinstance(exc, Error):
        raise exc
    from poptorch import _core

    message = _short(str(getattr(exc, "message", None) or exc))
    kind = str(getattr(exc, "type", None) or CPP_ERROR_TYPE)
    kind = CPP_ERROR_TYPE if kind == "tessera" else kind
    location = str(getattr(exc, "location", None) or "")
    if isinstance(exc, _core.RecoverableError):
        action = str(getattr(exc, "recovery_action", None) or "FULL_RESET")
        raise RecoverableError(message, kind, location, action) from None
    cls = UnrecoverableError if isinstance(exc, _core.UnrecoverableError) else Error
    raise cls(message, kind, location) from None
