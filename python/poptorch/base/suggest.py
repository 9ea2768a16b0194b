# SPDX-License-Identifier: Apache-2.0
"""The name that was probably meant."""

import difflib
from collections.abc import Iterable
from typing import Any


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def close_name(name: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that is most like ``name``, whatever its case and underscores."""
    if name.startswith("__"):  # Python looks for these; nobody has mistyped them
        return None
    by_plain = {_plain(k.rpartition(".")[2]): k for k in known}
    found = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=0.75)
    return by_plain[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence to put after a message, or nothing."""
    found = close_name(name, known)
    return f" Did you mean {found}?" if found else ""


def no_member(enum: Any, value: Any) -> str:
    """The message for a value that is no member of one of the package's enumerations."""
    names = [f"poptorch.{enum.__name__}.{name}" for name in enum.__members__]
    meant = did_you_mean(value.rpartition(".")[2], names) if isinstance(value, str) else ""
    return f"Expected a poptorch.{enum.__name__}, got {value!r}.{meant}"
