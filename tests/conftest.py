# SPDX-License-Identifier: Apache-2.0
"""Helper modules of this folder are importable from every test; Ctrl-C works; each process of tests
has IPUs of its own."""

import atexit
import os
import pathlib
import shutil
import signal
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parent
for path in (TESTS, TESTS.parent / "python"):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))

# Shells start background jobs with it ignored, and child processes inherit that: tests that
# interrupt would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _own_machine():
    """Other programs of the user, and other workers of pytest, do not take the IPUs of tests."""
    directory, process = tempfile.mkdtemp(prefix="tessera-tests-"), os.getpid()
    os.environ["TESSERA_RUNTIME_DIR"] = directory

    @atexit.register
    def clean_up():
        if os.getpid() == process:  # not in a forked child
            shutil.rmtree(directory, ignore_errors=True)


_own_machine()
