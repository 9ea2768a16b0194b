# SPDX-License-Identifier: Apache-2.0
"""Lowerings: ATen ops to rows of the core, one file per family. Importing it fills the table."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, __name__ + "."):
    importlib.import_module(_module.name)
