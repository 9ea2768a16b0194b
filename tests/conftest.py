# SPDX-License-Identifier: Apache-2.0
"""Helper modules of this folder are importable from every test."""

import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent
for path in (TESTS, TESTS.parent / "python"):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))
