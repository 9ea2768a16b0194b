# SPDX-License-Identifier: Apache-2.0
"""Makes the shared fixtures known to the tests of this folder."""

from api_support import batch, log, opts, regression, start  # noqa: F401
from device_support import four_ipus, other_process  # noqa: F401
