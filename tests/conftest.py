# SPDX-License-Identifier: Apache-2.0
"""Helper modules of this folder are importable from every test; Ctrl-C works; each test has
IPUs of its own."""

import atexit
import itertools
import os
import pathlib
import shutil
import signal
import sys
import tempfile

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
for path in (TESTS, TESTS.parent / "python"):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))

# Shells start background jobs with it ignored, and child processes inherit that: tests that
# interrupt would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _own_directory():
    """For the locks of IPUs; removed at the end of this process, not of one forked from it."""
    directory, process = tempfile.mkdtemp(prefix="tessera-tests-"), os.getpid()

    @atexit.register
    def clean_up():
        if os.getpid() == process:
            shutil.rmtree(directory, ignore_errors=True)

    return directory


_directory = os.environ["TESSERA_RUNTIME_DIR"] = _own_directory()
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_machine():
    """No test has to do with the models that another one, or another program, has attached."""
    directory = os.environ["TESSERA_RUNTIME_DIR"] = os.path.join(_directory, str(next(_numbers)))
    yield
    os.environ["TESSERA_RUNTIME_DIR"] = _directory
    shutil.rmtree(directory, ignore_errors=True)
