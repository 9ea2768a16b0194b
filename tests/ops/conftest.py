# SPDX-License-Identifier: Apache-2.0
"""The zoo of modules belongs to the capture tests; here it runs on the core."""

import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
for path in (TESTS, TESTS / "capture", TESTS / "ops"):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))
