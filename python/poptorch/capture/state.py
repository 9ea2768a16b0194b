# SPDX-License-Identifier: Apache-2.0
"""What is being captured right now: one capture at a time, seen only by the thread that runs it."""

import threading

# Torch's tag for new nodes is global to the process. The tensors of a model have no values while it
# is captured: who moves them takes this too.
lock = threading.RLock()
_current = None  # the running capture's Session, see trace.py
_owner = 0


def enter(session):
    """Makes `session` the running capture of this thread."""
    global _current, _owner
    _current, _owner = session, threading.get_ident()


def leave():
    """Ends the running capture."""
    global _current, _owner
    _current, _owner = None, 0


def current():
    """The Session of the capture that runs in this thread, or None."""
    return _current if _current is not None and _owner == threading.get_ident() else None


def running_on_ipu():
    """True only while the forward of a model is being captured."""
    session = current()
    return session is not None and session.in_forward
