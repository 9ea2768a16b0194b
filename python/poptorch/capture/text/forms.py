# SPDX-License-Identifier: Apache-2.0
"""Which calls a row of the core takes as they are: the facts are columns of the row."""

import functools
from typing import Any

import torch

from poptorch.base.dtypes import NATIVE_DTYPES
from poptorch.capture.text.row import Row
from poptorch.capture.text.value import Value


def _is_int(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and dtype is not torch.bool


# Result types that a pointwise row may have, by its rule.
_RESULTS = {
    "same": lambda dtype: True,
    "number": lambda dtype: dtype is not torch.bool,
    "real": lambda dtype: dtype.is_floating_point,
    "int": _is_int,
    "whole": lambda dtype: not dtype.is_floating_point,
    "float": lambda dtype: dtype.is_floating_point,
    "bool": lambda dtype: dtype is torch.bool,
}
# Tensors by the letter of a signature.
_TENSORS = {
    "T": lambda dtype: True,
    "N": lambda dtype: dtype in NATIVE_DTYPES,
    "F": lambda dtype: dtype.is_floating_point,
    "I": _is_int,
    "M": lambda dtype: dtype is torch.bool,
}
_LITERALS = {
    **dict.fromkeys("iwj", (int,)),
    "r": (int, float),
    "b": (bool,),
    "s": (str,),
    "d": (torch.dtype,),
}


def is_pointwise_call(row: Row, args: list[Any], result: torch.dtype) -> bool:
    """Whether the arguments are the operands of a pointwise row, one by one."""
    return (
        len(args) == row.arity
        and row.rule in _RESULTS
        and _RESULTS[row.rule](result)
        and all(isinstance(a, (Value, int, float)) for a in args)
        and any(isinstance(a, Value) for a in args)
    )


def is_structured_call(row: Row, args: list[Any]) -> bool:
    """Whether the arguments are those that the signature of a row lists."""
    required, words = _words(row.signature)
    if not required <= len(args) <= len(words):
        return False
    first = next((a.dtype for a in args if isinstance(a, Value)), None)
    for word, a in zip(words[: len(args)], args, strict=True):
        if "=" in word and isinstance(a, Value) and a.dtype is not first:
            return False
        if a is None and "?" in word:
            continue
        if not any(_is_a(form, a) for form in word.strip("?=").split("/")):
            return False
    return True


@functools.cache
def _words(signature: str) -> tuple[int, list[str]]:
    """(how many arguments are required, the words of all)."""
    words = signature.split()
    required = words.index("|") if "|" in words else len(words)
    return required, [w for w in words if w != "|"]


def _is_a(form: str, a: Any) -> bool:
    if form[0] == "l":
        if not isinstance(a, list):
            return type(a) is int and _is_a(form[1:], a)
        holes = form == "lI"
        return all((x is None and holes) or _is_a(form[1:], x) for x in a)
    if form in _TENSORS:
        return isinstance(a, Value) and _TENSORS[form](a.dtype)
    return type(a) in _LITERALS[form]
