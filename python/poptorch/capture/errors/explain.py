# SPDX-License-Identifier: Apache-2.0
"""An exception of forward as the user is to see it: in eager's words, with module, line and advice.

Warnings of torch get the user's line too.
"""

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import torch
from torch.utils import _pytree as pytree

from poptorch.base.errors import Error
from poptorch.capture import _torch_private as private
from poptorch.capture import errors, state
from poptorch.capture.calls.handler import TorchCall
from poptorch.capture.errors.advice import advice_for

if TYPE_CHECKING:
    from poptorch.capture.session import Session

_E = TypeVar("_E", bound=BaseException)
_LONG_NAME = 200
_LARGE = 1 << 24  # elements; more are not made only for a message
_FAKE = re.compile(r"\b(torch\._subclasses\.fake_tensor\.)?FakeTensor\b(\(\.\.\., )?")


def explained(
    error: Exception, session: "Session", phase: Literal["forward", "backward"] = "forward"
) -> Exception:
    """`error`, which came out of forward or backward, with a note; or eager's in its place."""
    if isinstance(error, Error) and error.location:
        return error
    where = errors.user_line_of(error)
    if phase == "backward" and session.last_tag.file:
        where = session.last_tag.where  # of the op whose gradient it was
    failed = session.failed
    call = failed[1] if failed is not None and failed[0] is error else None
    module = _module_of(error, session)
    if call is not None and not isinstance(error, Error):
        error = _in_eager(error, call)
    if type(error).__module__.startswith("torch._subclasses"):
        error = _in_place_of(error, RuntimeError(*error.args))
    _hide_fakes(error)
    if not errors.is_explained(error):
        text = f"{errors.NOTE}'s {phase}{module}"
        if where[0]:
            text += f", at {errors.describe(where)}"
        advice = advice_for(error, call)
        error.add_note(f"{text}\n{advice}" if advice else text)
    return error


def _in_eager(error: Exception, call: TorchCall) -> Exception:
    """What torch raises for the same call on real tensors, whose rules for shapes have other words.

    `error` itself if the call raises nothing.
    """
    func, args, kwargs = call
    space = getattr(func, "__module__", None) or "torch"
    if space.startswith("torch.autograd"):
        return error  # it needs the graph of the real call
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        packet = func.overloadpacket if isinstance(func, torch._ops.OpOverload) else func
        if packet._qualified_op_name.partition("::")[0] not in ("aten", "prims"):
            return error  # an op of ours or the user's: a long loop, something with side effects
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if not space.startswith("torch") or sum(t.numel() for t in tensors) > _LARGE:
        return error
    floats = {t.dtype for t in tensors if t.dtype.is_floating_point}

    def stand_in(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        # Unlike types are no mistake here, and eager would complain of them first.
        mixed = value.dtype.is_floating_point and len(floats) > 1
        dtype = torch.float32 if mixed else value.dtype
        return torch.zeros(value.shape, dtype=dtype, device=value.device)

    def run() -> None:
        real_args, real_kwargs = pytree.tree_map(stand_in, (args, kwargs))
        with torch.no_grad():
            func(*real_args, **real_kwargs)

    try:
        with torch._C.DisableTorchFunction():
            private.without_modes(run)
    except Exception as found:
        if type(found) is type(error):
            error.args = found.args
            return error
        return _in_place_of(error, found)
    return error


def _in_place_of(error: BaseException, found: _E) -> _E:
    """`found`, as if it had been raised where `error` was."""
    found.__context__, found.__cause__ = error.__context__, error.__cause__
    found.__suppress_context__ = error.__suppress_context__
    return found.with_traceback(error.__traceback__)


def _hide_fakes(error: BaseException) -> None:
    """Tensors are just tensors to the user."""

    def rename(match: re.Match[str]) -> str:
        return "Tensor(" if match[2] else "torch.Tensor" if match[1] else "Tensor"

    def plain(value: Any) -> Any:
        if isinstance(value, private.FakeTensor):
            with torch._C.DisableTorchFunction():
                return str(value)
        return _FAKE.sub(rename, value) if isinstance(value, str) else value

    changed = tuple(map(plain, error.args))
    if any(new is not old for new, old in zip(changed, error.args, strict=True)):
        error.args = changed


@contextlib.contextmanager
def warnings_of_user() -> Iterator[None]:
    """While capturing, warnings name the user's line, and equal ones come once."""
    show = warnings.showwarning
    seen: set[tuple[str, type[Warning]]] = set()
    plain = show is getattr(warnings, "_showwarning_orig", None)

    def shown(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = str(message)
        if (text, category) in seen or "FakeTensor" in text:
            return
        seen.add((text, category))
        if state.current() is not None and errors.is_internal_file(filename):
            filename, lineno = errors.user_frame()
            line = None
        if plain:
            details = warnings.WarningMessage(message, category, filename, lineno, file, line)
            warnings._showwarnmsg_impl(details)  # type: ignore[attr-defined]  # has no stub
        else:
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = shown
    try:
        yield
    finally:
        if warnings.showwarning is shown:
            warnings.showwarning = show


def _module_of(error: BaseException, session: "Session") -> str:
    """The module whose forward was running, if it has a name."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is torch.nn.Module._call_impl.__code__:
            found = trace.tb_frame.f_locals.get("self")
        trace = trace.tb_next
    name = session.scope_of(found)
    if name and len(name) > _LONG_NAME:
        name = f"{name[:20]}...{name[-20:]}"
    return f", in module {name} ({type(found).__name__})" if name else ""
