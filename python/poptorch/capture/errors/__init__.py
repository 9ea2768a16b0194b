# SPDX-License-Identifier: Apache-2.0
"""Errors of capture, each with the user's line and with what to write instead.

Here are the lines and the words; `explain` makes an exception of forward one that the user
understands, and `advice` has a row per common mistake.
"""

import contextlib
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Literal

import poptorch

if TYPE_CHECKING:
    from poptorch.base.errors import Error

#: File and line in the user's program; NOWHERE if it is not known.
Where = tuple[str, int]
NOWHERE: Where = ("", 0)

_PACKAGES = os.path.dirname(os.path.dirname(os.path.abspath(poptorch.__file__))) + os.sep
_HERE = tuple(os.path.join(_PACKAGES, name, "") for name in ("poptorch", "lightning_ipu"))
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_SITE = ("site-packages", "dist-packages")
_NUMPY = tuple(f"{site}/numpy/" for site in _SITE)
_internal_code: dict[CodeType, bool] = {}
_excludes: tuple[str, ...] = ()


def _torch_root() -> str:
    import torch

    return os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


_TORCH = _torch_root()


@contextlib.contextmanager
def excluding(fragments: Sequence[str]) -> Iterator[None]:
    """Lines of files whose path has one of these fragments are not reported as the user's."""
    global _excludes, _internal_code
    saved = _excludes, _internal_code
    _excludes, _internal_code = tuple(fragments), {}
    try:
        yield
    finally:
        _excludes, _internal_code = saved


def is_internal(frame: FrameType) -> bool:
    """Whether a frame is of torch, Python's library or this package rather than of the user."""
    known = _internal_code.get(frame.f_code)
    if known is None:
        known = _internal_code[frame.f_code] = _is_internal(frame)
    return known


def _is_internal(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if name.startswith("<eval_with_key>"):
        return False  # a model that torch.fx or torch.export has written
    if name.startswith("<"):
        # Typed in, in a cell, or made with exec: then it belongs to the module that ran it.
        name = frame.f_globals.get("__file__") or ""
        made_by_torch = frame.f_globals.keys() <= {"fn", "__builtins__"}  # by make_fx
        frozen = frame.f_code.co_filename.startswith("<frozen")
        if frozen or made_by_torch or any(site in name for site in _SITE):
            return True
    return is_internal_file(name)


def is_internal_file(name: str) -> bool:
    """Whether a file is of torch, Python's library or this package, or excluded."""
    if any(fragment in name for fragment in _NUMPY):
        return True
    if name.startswith(_LIBRARY):
        return not name[len(_LIBRARY) :].startswith(_SITE) or name.startswith(_TORCH)
    return name.startswith((_TORCH, *_HERE)) or any(fragment in name for fragment in _excludes)


def user_frame(frame: FrameType | None = None) -> Where:
    """The line of the innermost frame that is the user's, outward from `frame` or the caller."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        if not is_internal(frame):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return NOWHERE


def user_line_of(error: BaseException) -> Where:
    """The user's line nearest to where `error` was raised, or that of the running call."""
    found = NOWHERE
    trace = error.__traceback__
    while trace is not None:
        if not is_internal(trace.tb_frame):
            found = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return found if found[0] else user_frame()


def printable(name: str) -> str:
    """A file name as text that any encoding can write; names need not be UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def describe(where: Where) -> str:
    """`file:line` and the source text, for messages."""
    file, line = where
    if not file:
        return "unknown line"
    text = linecache.getline(file, line).strip()
    return f"{printable(file)}:{line}" + (f"\n    {text}" if text else "")


def make_error(message: str, where: Where = NOWHERE) -> "Error":
    """A poptorch.Error that names the user's line."""
    from poptorch.base.errors import Error

    file, line = where
    location = f"{printable(file)}:{line}" if file else ""
    full = f"{message}\n  at {describe(where)}" if file else message
    return Error(full, location=location)


NOTE = "while capturing the model"


def is_explained(error: BaseException) -> bool:
    """Whether the note of an exception says that it came out of a captured model."""
    return any(str(note).startswith(NOTE) for note in getattr(error, "__notes__", ()))


_STATIC = "A model is captured once and compiled into a fixed program"

_ADVICE = {
    "value": (
        "{what} reads the value of a tensor while the model is being captured. "
        f"{_STATIC}, so Python cannot depend on values that exist only when it runs "
        "(aten::item is only supported in eager mode). Keep the value in a tensor: use "
        "torch.where, torch.clamp or a mask instead of `if`, or return the tensor and read it "
        "after the call."
    ),
    "shape": (
        "The shape of the result of {what} depends on the data. "
        f"{_STATIC} with fixed shapes. Use a mask instead: torch.where(mask, x, 0), x * mask, "
        "masked sums, or torch.topk with a fixed k."
    ),
}


def data_dependent(kind: Literal["value", "shape"], what: str, where: Where) -> "Error":
    """The error for reading a value ("value") or making a shape from data ("shape") in forward."""
    return make_error(_ADVICE[kind].format(what=what), where)


def unknown_value(what: str, cause: Exception, where: Where) -> "Error":
    """The error for a value that cannot be computed while the model is captured."""
    message = f"{_ADVICE['value'].format(what=what)}\nIt cannot be computed now: {cause}"
    return make_error(message, where)


def describe_dynamic_op(func: Callable[..., Any]) -> str:
    """A name the user knows for an ATen op whose output shape depends on data."""
    name = str(func).replace("aten.", "").split(".")[0]
    if name == "index" or name == "nonzero":
        return "torch.nonzero (or indexing with a boolean mask)"
    return "torch." + name.strip("_").removesuffix("2")
