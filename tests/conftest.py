# SPDX-License-Identifier: Apache-2.0
"""Helper modules of this folder are importable from every test; Ctrl-C works."""

import pathlib
import signal
import sys

TESTS = pathlib.Path(__file__).resolve().parent
for path in (TESTS, TESTS.parent / "python"):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))

# Shells start background jobs with it ignored, and child processes inherit that: tests that
# interrupt would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
