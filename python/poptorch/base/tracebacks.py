# SPDX-License-Identifier: Apache-2.0
"""Tracebacks of errors in a model, cut to the frames of the user's program.

Capture runs forward below some ninety frames of torch and of this package, which say nothing about
the model. TESSERA_TRACEBACK=full leaves them in.
"""

import os
from types import TracebackType

from poptorch.base.errors import Error
from poptorch.capture import errors


def shorten(error: BaseException) -> None:
    """Cut the traceback of ``error``, and of those it comes from, to the user's frames.

    An exception that neither the user's code nor a check raised is a defect of ours and keeps its
    frames.
    """
    checked = isinstance(error, AssertionError) and bool(error.args)  # those of ours have a text
    if not (checked or isinstance(error, (Error, KeyboardInterrupt)) or errors.is_explained(error)):
        return
    if os.environ.get("TESSERA_TRACEBACK", "user") == "full":
        return
    seen: set[int] = set()
    found: list[BaseException] = [error]
    while found:
        link = found.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        link.__traceback__ = _of_user(link.__traceback__)
        if link.__cause__ is not None:
            found.append(link.__cause__)
        context = link.__context__
        if context is not None and context is not link.__cause__:
            # What torch caught itself on the way is no news to the user.
            if link.__suppress_context__ or _of_user(context.__traceback__) is None:
                link.__context__ = None
            else:
                found.append(context)


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        if not errors.is_internal(trace.tb_frame):
            frames.append(trace)
        trace = trace.tb_next
    kept = None
    for found in reversed(frames):
        kept = TracebackType(kept, found.tb_frame, found.tb_lasti, found.tb_lineno)
    return kept
