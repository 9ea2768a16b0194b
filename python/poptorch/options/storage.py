# SPDX-License-Identifier: Apache-2.0
"""The storage of every options object: typed named values, freezing, cloning, and setters made
from the rows of ``table``."""

import copy
import inspect
from collections.abc import Callable
from typing import Any, Self, TypeVar

from poptorch.base.suggest import did_you_mean, no_member
from poptorch.options.table import OPTIONS, UNSET, Option

_INTERNAL = ("_values", "_is_frozen")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def option_setter(method: _Method) -> _Method:
    """Marks a method that sets options; texts with options may call no other."""
    method.sets_options = True  # type: ignore[attr-defined]
    return method


def is_setter(kind: type, name: str) -> bool:
    """Whether ``name`` is a method that sets options, also where a subclass has its own."""
    return any(getattr(vars(cls).get(name), "sets_options", False) for cls in kind.__mro__)


class OptionsDict:
    """Named values with fixed types; the names are readable and assignable as attributes."""

    #: The rows of this object are those of the table with this section name.
    section = ""
    _rows: dict[str, Option] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__dict__.get("section"):
            return
        rows = [row for row in OPTIONS if row.section == cls.section]
        cls._rows = {row.key: row for row in rows}
        for row in rows:
            if row.setter and row.setter not in cls.__dict__:
                setattr(cls, row.setter, _make_setter(row))

    def __init__(self, **default_values: Any) -> None:
        values = {
            key: copy.copy(row.default)
            for key, row in self._rows.items()
            if row.default is not UNSET and not row.backend
        }
        values.update(default_values)
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_is_frozen", False)

    # Reading and writing -------------------------------------------------------------------------

    def __getattr__(self, option: str) -> Any:
        values = self.__dict__.get("_values", {})
        if option in values:
            return values[option]
        raise AttributeError(f"Invalid attribute {option}.{self._meant(option)}")

    def _meant(self, option: str) -> str:
        """The name here, or of another object of the options, that ``option`` is like."""
        names = (*self.__dict__.get("_values", ()), *dir(type(self)))  # methods win
        here = [name for name in names if not name.startswith("_")]
        elsewhere = [f"{row.section}.{row.setter}" for row in OPTIONS if row.setter and row.section]
        return did_you_mean(option, here) or did_you_mean(option, elsewhere)

    def __setattr__(self, option: str, value: Any) -> None:
        self.checkIsFrozen(option)
        if option in self._values:
            self.set(**{option: value})
        elif option in self._rows and not self._rows[option].backend:
            self.createOrSet(**{option: value})
        elif option.startswith("_"):
            raise AttributeError(f"Invalid private attribute {option}.")
        else:
            raise AssertionError(
                f"Invalid option {option}, valid options are {sorted(self._public())}."
                f"{self._meant(option)}"
            )

    def __call__(self, option: str) -> Any:
        """``opts("name")`` equals ``opts.name``."""
        return getattr(self, option)

    def set(self, **kwargs: Any) -> Self:
        """Set values that exist already, each of the type it has."""
        for option, value in kwargs.items():
            self.checkIsFrozen(option)
            assert option in self._values, (
                f"Invalid option {option}, valid options are {sorted(self._public())}."
                f"{self._meant(option)}"
            )
            self._values[option] = _checked(option, value, self._values[option], self._rows)
        return self

    def createOrSet(self, **kwargs: Any) -> Self:
        """Set values, adding those that do not exist yet."""
        for option, value in kwargs.items():
            self.checkIsFrozen(option)
            current = self._values.get(option, UNSET)
            self._values[option] = _checked(option, value, current, self._rows)
        return self

    def exists(self, option: str) -> bool:
        """Whether ``option`` has a value."""
        return option in self._values

    def deleteIfExists(self, option: str) -> None:
        """Drop the value of ``option``, if it has one."""
        self._values.pop(option, None)

    # Freezing, copying, showing ------------------------------------------------------------------

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Raise unless the object may still be modified."""
        if self.__dict__.get("_is_frozen") and option not in _INTERNAL:
            raise AttributeError(
                "Can't modify frozen Options: they are in use by a model or a data loader. "
                "Change a copy made with clone() instead."
            )

    def _freeze(self) -> None:
        object.__setattr__(self, "_is_frozen", True)

    def update(self, other: dict[str, Any]) -> dict[str, Any]:
        """``other`` with the public values of this object added; no key may be in both."""
        mine = self._public()
        clash = sorted(mine.keys() & other.keys())
        assert not clash, f"Can't merge dictionaries: {clash} would be defined twice"
        return {**other, **mine}

    def _public(self) -> dict[str, Any]:
        return {key: value for key, value in self._values.items() if not key.startswith("_")}

    def toDict(self) -> dict[str, Any]:
        """The stored values."""
        return self.update({})

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self._public().items())
        return f"{type(self).__name__}({shown})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        result = type(self).__new__(type(self))
        memo[id(self)] = result
        result.__dict__.update(copy.deepcopy(self.__dict__, memo))
        object.__setattr__(result, "_is_frozen", False)
        return result


def _checked(option: str, value: Any, current: Any, rows: dict[str, Option]) -> Any:
    """The value to store: the row's own check first, then "an instance of the current type"."""
    row = rows.get(option)
    if row is not None and row.check is not None:
        value = row.check(value)
    if row is not None and row.enum is not None:
        assert value in list(row.enum), no_member(row.enum, value)
        value = int(value)
    if current is UNSET or current is None:
        return value
    expected = type(current)
    assert isinstance(value, expected), (
        f"Unexpected type {type(value)} for option {option}. Expected {expected}"
    )
    # A bool is an int to isinstance; stored as it is, it would refuse every int that follows.
    return int(value) if expected is int and isinstance(value, bool) else value


def _make_setter(row: Option) -> Callable[..., Any]:
    """The method that stores the one value of ``row`` and returns the object, so calls chain."""
    parameter = inspect.Parameter(
        row.argument or row.key,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=inspect.Parameter.empty if row.argument_default is UNSET else row.argument_default,
    )
    signature = inspect.Signature(
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), parameter]
    )

    def setter(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        value = bound.arguments[parameter.name]
        assert row.enum is None or isinstance(value, row.enum), no_member(row.enum, value)
        if row.backend:
            self.checkIsFrozen(row.key)
            self._backend.set(row.key, row.check(value) if row.check else value)
        else:
            self.createOrSet(**{row.key: value})
        return self

    setter.__name__ = row.setter
    setter.__qualname__ = row.setter
    effect = row.effect.value
    setter.__doc__ = f"{row.doc}\n\n{effect[0].upper()}{effect[1:]}."
    setter.__signature__ = signature  # type: ignore[attr-defined]
    return option_setter(setter)
