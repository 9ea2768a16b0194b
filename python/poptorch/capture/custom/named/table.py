# SPDX-License-Identifier: Apache-2.0
"""A row of a table of named ops, and what its function gets to see of a call."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from poptorch.capture.errors import make_error, user_frame
from poptorch.capture.values.constants import value_of

#: The types of a tensor by their number in ONNX, with those that an IPU has in their place.
ONNX_TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}
#: The names that PopART has for them.
_TYPE_NAMES = {
    "FLOAT": 1, "UINT8": 2, "INT8": 3, "INT16": 5, "INT32": 6, "INT64": 7, "BOOL": 9, "FLOAT16": 10,
    "DOUBLE": 11, "BFLOAT16": 16,
}  # fmt: skip


@dataclass
class Call:
    """A call of a named op.

    Attributes:
        op: the op as messages name it.
        version: the version of the domain that was asked for.
        inputs: the tensors.
        attributes: those that were given.
        examples: the example outputs.
        seen: the attributes that the op knows.
    """

    op: str
    version: int
    inputs: Sequence[Tensor]
    attributes: dict[str, Any]
    examples: Sequence[Tensor]
    seen: set[str] = field(default_factory=set)

    @property
    def results(self) -> int:
        """How many results the caller expects."""
        return len(self.examples)

    def fail(self, text: str, cause: Exception | None = None) -> NoReturn:
        """Raise an error that names the op and the user's line."""
        raise make_error(f"{self.op}: {text}", user_frame()) from cause

    # inputs

    def x(self, index: int = 0, what: str = "") -> Tensor:
        """An input that must be there."""
        if index >= len(self.inputs):
            named = f" ({what})" if what else ""
            self.fail(f"input {index}{named} is missing, {len(self.inputs)} given.")
        return self.inputs[index]

    def maybe(self, index: int) -> Tensor | None:
        """An input that may be left out; a tensor without elements stands for one that is."""
        found = self.inputs[index] if index < len(self.inputs) else None
        return None if found is None or found.numel() == 0 else found

    def constant(self, index: int, what: str) -> Tensor:
        """The value of an input that decides on shapes."""
        known = value_of(self.x(index, what))
        if known is None:
            self.fail(
                f"input {index} ({what}) must be known when the model is compiled, because the "
                "program is static. Make it from Python numbers in forward, "
                "for example torch.tensor([2, 3])."
            )
        return known

    def numbers(self, index: int, what: str) -> list[Any]:
        """The values of an input that decides on shapes, flat."""
        return self.constant(index, what).flatten().tolist()

    def numbers_or_none(self, index: int, what: str) -> list[Any] | None:
        """Likewise of an input that may be left out."""
        return None if self.maybe(index) is None else self.numbers(index, what)

    def axis(self, value: int, rank: int) -> int:
        """A dimension counted from the front."""
        if not -rank <= value < max(rank, 1):
            self.fail(f"axis {value} is out of range for a tensor of {rank} dimensions.")
        return value % rank if rank else 0

    # attributes

    def given(self, name: str) -> Any:
        """The value of an attribute as it was given, or None. PopART writes some names with
        underscores and others with capitals: for its own ops either is taken."""
        self.seen.add(name)
        if name in self.attributes or self.op.startswith("ai.onnx."):
            return self.attributes.get(name)
        plain = name.replace("_", "").lower()
        for key, value in self.attributes.items():
            if not key.startswith("_") and key.replace("_", "").lower() == plain:
                self.seen.add(key)
                return value
        return None

    def _get(self, name: str, kind: str, accepted: tuple[type, ...]) -> Any:
        value = self.given(name)
        if value is None:
            return None
        many = kind.endswith("s")
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if (not many and isinstance(value, (list, tuple))) or not all(
            isinstance(v, accepted) for v in values
        ):
            self.fail(f"attribute {name} must be of type {kind}, not {value!r}.")
        return values if many else value

    def int_(self, name: str, default: int | None = None) -> int:
        """An Int attribute; without a default it must be given."""
        value = self._get(name, "Int", (int,))
        return int(self._default(name, value, default))

    def flag(self, name: str, default: bool = False) -> bool:
        """An Int attribute that stands for yes or no."""
        return bool(self.int_(name, int(default)))

    def float_(self, name: str, default: float | None = None) -> float:
        """A Float attribute; an Int is taken too."""
        value = self._get(name, "Float", (float, int))
        return float(self._default(name, value, default))

    def str_(self, name: str, default: str | None = None) -> str:
        """A String attribute."""
        return str(self._default(name, self._get(name, "String", (str,)), default))

    def ints(self, name: str) -> list[int] | None:
        """An Ints attribute, or None; a single Int is taken too."""
        return self._get(name, "Ints", (int,))

    def floats(self, name: str) -> list[float] | None:
        """A Floats attribute, or None."""
        return self._get(name, "Floats", (float, int))

    def strs(self, name: str) -> list[str] | None:
        """A Strings attribute, or None."""
        return self._get(name, "Strings", (str,))

    def choice(self, name: str, default: str, values: Sequence[str]) -> str:
        """A String attribute that is one of a few, whatever its case."""
        given = self.str_(name, default)
        for value in values:
            if value.lower() == given.lower():
                return value
        self.fail(f"attribute {name} must be one of {', '.join(values)}, not {given!r}.")

    def dtype(self, name: str, default: torch.dtype | None = None) -> torch.dtype:
        """A type: its number in ONNX, or its name."""
        value = self._get(name, "Int", (int, str))
        if value is None and default is not None:
            return default
        number = self._default(name, value, None)
        number = _TYPE_NAMES.get(number.upper()) if isinstance(number, str) else number
        if number not in ONNX_TYPES:
            self.fail(f"attribute {name} is {value!r}, which is no type of a tensor on an IPU.")
        return ONNX_TYPES[number]

    def _default(self, name: str, value: Any, default: Any) -> Any:
        if value is None and default is None:
            self.fail(f"attribute {name} must be given.")
        return default if value is None else value

    def known(self, *names: str) -> None:
        """Attributes that the op has and that change nothing here."""
        self.seen.update(names)


Result = Tensor | Sequence[Tensor]


@dataclass(frozen=True)
class Named:
    """An op.

    Attributes:
        run: gives a tensor or several.
        since: the first version of the domain that has it.
        form: inputs, attributes and results, for the documentation; those of ONNX are in its.
    """

    run: Callable[[Call], Result]
    since: int = 1
    form: str = ""


def product(sizes: Sequence[int]) -> int:
    """The number of elements of a shape."""
    return math.prod(sizes)
