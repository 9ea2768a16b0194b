# SPDX-License-Identifier: Apache-2.0
"""What importing the package changes in the process: how crashes and uncaught exceptions are
reported, and what would otherwise break in child processes."""

import faulthandler
import os
import signal
import sys
import traceback
from types import TracebackType

import torch
from tqdm import tqdm

from poptorch.base.logging import logger

# Capture uses private parts of torch, which change from one release to the next.
TORCH_VERSION = "2.13"


def install() -> None:
    """Check torch's version and set up the process; called once, by the import."""
    assert torch.__version__.startswith(TORCH_VERSION), (
        f"This package was made for torch {TORCH_VERSION}, but torch {torch.__version__} is "
        "installed"
    )
    os.environ.setdefault("RDMAV_FORK_SAFE", "1")
    # A child forked while a progress bar is drawn would wait for its lock for ever.
    tqdm.get_lock().locks = []
    sys.excepthook = log_exception
    stderr = sys.__stderr__  # not what stands in for it now and may be closed later
    if stderr is None:
        return  # there is nothing to write to
    try:
        if not faulthandler.is_enabled():
            faulthandler.enable(stderr)
        faulthandler.register(signal.SIGTERM, stderr, chain=True)
    except (OSError, ValueError, AttributeError, RuntimeError):
        pass  # it has no descriptor, or none that is open


def log_exception(
    kind: type[BaseException], value: BaseException, trace: TracebackType | None
) -> None:
    """The excepthook: the traceback goes to the log, at critical level."""
    if issubclass(kind, KeyboardInterrupt) or not logger.isEnabledFor(50):
        sys.__excepthook__(kind, value, trace)
        return
    logger.critical("".join(traceback.format_exception(kind, value, trace)).rstrip())
