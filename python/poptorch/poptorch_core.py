# SPDX-License-Identifier: Apache-2.0
"""The native module under its PopTorch name: programs take exception classes from here."""

from enum import IntEnum
from typing import Any

from poptorch.base import device, logging
from poptorch.base.errors import Error, RecoverableError, UnrecoverableError

try:
    from poptorch import _core
except ImportError as exc:
    raise ImportError(f"Unable to import PopTorch: its native module is missing: {exc}") from exc

__all__ = [
    "Error",
    "RecoverableError",
    "TestErrorType",
    "TracingMode",
    "UnrecoverableError",
    "ipuHardwareVersion",
    "setLogLevel",
]


def __getattr__(name: str) -> Any:
    return getattr(_core, name)


def ipuHardwareVersion(numIpus: int = 1) -> int:
    """The version of the IPUs; 0 if there are not as many."""
    return device.ipuHardwareVersion() if device.ipuHardwareIsAvailable(numIpus) else 0


def setLogLevel(level: int = 2) -> None:
    """Set the level of the package's log: 0 (trace) to 4 (errors), or 6 (off)."""
    logging.setLogLevel(level)


class TracingMode(IntEnum):
    """How models are captured: there is one way."""

    PopART = 0


class TestErrorType(IntEnum):
    """Kinds of errors that :func:`_throwTestError` can raise."""

    __test__ = False  # not a test class

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


def _throwTestError(kind: TestErrorType) -> None:
    """Raise a sample of a category of errors, for programs that test their handlers."""
    message = "This is a test error"
    samples = {
        TestErrorType.Poptorch: Error(message, "poptorch_cpp_error"),
        TestErrorType.Popart: Error(message, "popart_exception"),
        TestErrorType.PopartInternal: Error(message, "popart_internal_exception"),
        TestErrorType.Poplibs: Error(message, "poplibs_exception"),
        TestErrorType.PoplarUnrecoverable: UnrecoverableError(
            message, "poplar_unrecoverable_runtime_error"
        ),
        TestErrorType.PoplarUnknown: Error(message, "poplar_unknown_runtime_error"),
        TestErrorType.PoplarRecoverableFullReset: RecoverableError(
            message, "poplar_recoverable_runtime_error", "", "FULL_RESET"
        ),
        TestErrorType.PoplarLinkError: Error(message, "poplar_link_error"),
    }
    raise samples[kind]
