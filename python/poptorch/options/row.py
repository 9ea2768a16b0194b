# SPDX-License-Identifier: Apache-2.0
"""The form of a row of ``table``."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"

    def __copy__(self) -> "_Unset":
        return self

    def __deepcopy__(self, memo: Any) -> "_Unset":
        return self


UNSET = _Unset()


class Effect(Enum):
    """What an option changes; only the first kind is part of the key of a compiled program."""

    PROGRAM = "changes the compiled program"
    HOST = "changes what the host does, not the compiled program"
    RECORDED = "recorded, no effect on virtual IPUs"


@dataclass(frozen=True)
class Option:
    """A row: where the value is stored, how it is set and checked, and what it changes."""

    section: str
    key: str
    effect: Effect
    doc: str
    #: UNSET: the key exists only once it has been set.
    default: Any = UNSET
    #: Name of the generated method; empty when the value is set by a method in options.py.
    setter: str = ""
    argument: str = ""
    argument_default: Any = UNSET
    #: Takes the value, raises if it is wrong, returns what to store.
    check: Callable[[Any], Any] | None = None
    #: The setter takes a member of this; an int is stored, the form that programs read back.
    enum: type[Enum] | None = None
    #: Stored among the backend options (``_Popart``) under ``key``.
    backend: bool = False
    #: The option of the core that it sets, and the core's value for one of ours.
    core: str = ""
    core_value: Callable[[Any], Any] = bool
    #: What is still missing for the option to do what it says; a model compiled with it warns.
    pending: str = ""
    #: Whether a value asks for what is pending.
    is_missed: Callable[[Any], bool] = bool
    #: The method of options.py that sets the value, if it has no setter of its own.
    method: str = ""

    @property
    def shown_setter(self) -> str:
        """The method that sets the value; the key if there is none."""
        return self.setter or self.method or self.key
