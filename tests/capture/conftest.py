# SPDX-License-Identifier: Apache-2.0
"""Capture needs no compiled core: if the package does not import here, a bare one with the same
path stands in."""

import pathlib
import sys
import types

TESTS = pathlib.Path(__file__).resolve().parent.parent
for path in (TESTS, TESTS / "capture", TESTS.parent / "python"):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))

try:
    import poptorch.capture  # noqa: F401
except ImportError:
    for name in [m for m in sys.modules if m.split(".")[0] == "poptorch"]:
        del sys.modules[name]
    stand_in = types.ModuleType("poptorch")
    stand_in.__path__ = [str(TESTS.parent / "python" / "poptorch")]
    sys.modules["poptorch"] = stand_in
