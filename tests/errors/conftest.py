# SPDX-License-Identifier: Apache-2.0
"""Makes the fixtures of tests/api known to the tests of this folder."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))

from api_support import batch, log, opts, regression  # noqa: E402, F401
