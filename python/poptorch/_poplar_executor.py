# SPDX-License-Identifier: Apache-2.0
"""Where programs look for the class of wrapped models, for ``isinstance``."""

from poptorch._hooks import SubstitutionManagers as _OverwriteContextManager
from poptorch.executor import PoplarExecutor

__all__ = ["PoplarExecutor", "_OverwriteContextManager"]
