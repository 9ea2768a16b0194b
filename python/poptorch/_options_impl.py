# SPDX-License-Identifier: Apache-2.0
"""Where programs look for the storage of options."""

from poptorch.options.storage import OptionsDict

__all__ = ["OptionsDict"]
