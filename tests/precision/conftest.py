# SPDX-License-Identifier: Apache-2.0
"""Makes the fixtures of the API's tests known to this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "api"))

from api_support import log, opts  # noqa: E402, F401
