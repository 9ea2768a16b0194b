# SPDX-License-Identifier: Apache-2.0
"""``TESSERA_FAULT``: failures at chosen calls, so that programs can try what they do about them."""

import itertools
import os
import re
from collections.abc import Callable
from typing import Any

from poptorch.base.errors import CPP_ERROR_TYPE, Error, RecoverableError, UnrecoverableError

_VARIABLE = "TESSERA_FAULT"
_RECOVERABLE = ("IPU_RESET", "LINK_RESET", "PARTITION_RESET", "FULL_RESET")
_CLASSES = (*_RECOVERABLE, "UNRECOVERABLE", "ERROR")
_ONE = re.compile(r"(\w+)@([1-9][0-9]*)")

#: Calls of programs in this process; each fault happens once.
_calls = itertools.count(1)


def around(run: Callable[..., None]) -> Callable[..., None]:
    """``run``, which fails at the calls that the environment names."""
    given = os.environ.get(_VARIABLE, "")
    if not given:
        return run
    faults = _read(given)

    def failing(inputs: Any, outputs: Any) -> None:
        run(inputs, outputs)
        # Afterwards: as on a device that fails half way, its weights are not those of the host.
        number = next(_calls)
        if number in faults:
            raise _error(faults[number], f"{_VARIABLE}: {faults[number]} at call {number}")

    return failing


def _read(text: str) -> dict[int, str]:
    """Call -> class."""
    faults = {}
    for part in text.split(","):
        found = _ONE.fullmatch(part.strip())
        if found is None or found[1] not in _CLASSES:
            raise Error(
                f"The environment variable {_VARIABLE} has {part.strip()!r}, which is not "
                f"class@call with a class of {', '.join(_CLASSES)} and a call from 1 on",
                type=CPP_ERROR_TYPE,
            )
        faults[int(found[2])] = found[1]
    return faults


def _error(name: str, text: str) -> Error:
    if name in _RECOVERABLE:
        return RecoverableError(text, "poplar_recoverable_runtime_error", "", name)
    if name == "UNRECOVERABLE":
        return UnrecoverableError(text, "poplar_unrecoverable_runtime_error")
    return Error(text, CPP_ERROR_TYPE)
