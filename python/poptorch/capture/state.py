# SPDX-License-Identifier: Apache-2.0
"""What is being captured right now: one capture at a time, seen only by the thread that runs it."""

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poptorch.capture.session import Session

# Torch's tag for new nodes is global to the process, so one capture runs at a time. Whoever moves
# weights takes this too: the tensors of a model have no values while it is captured.
lock = threading.RLock()
_current: "Session | None" = None  # of the running capture
_owner = 0  # its thread


def enter(session: "Session") -> None:
    """Makes `session` the running capture of this thread."""
    global _current, _owner
    _current, _owner = session, threading.get_ident()


def leave() -> None:
    """Ends the running capture."""
    global _current, _owner
    _current, _owner = None, 0


def current() -> "Session | None":
    """The Session of the capture that runs in this thread, or None."""
    return _current if _current is not None and _owner == threading.get_ident() else None


def running_on_ipu() -> bool:
    """True only while the forward of a model is being captured."""
    session = current()
    return session is not None and session.in_forward
