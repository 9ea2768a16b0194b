# SPDX-License-Identifier: Apache-2.0
"""Where programs look for the class of wrapped models, for ``isinstance``."""

from poptorch.compiling.hooks import SubstitutionManagers as _OverwriteContextManager
from poptorch.running.executor import PoplarExecutor

__all__ = ["PoplarExecutor", "_OverwriteContextManager"]
