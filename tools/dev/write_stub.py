# SPDX-License-Identifier: Apache-2.0
"""Writes python/poptorch/_core.pyi, what type checkers know of the native module."""

import pathlib

import poptorch
from nanobind.stubgen import StubGen

STUB = pathlib.Path(poptorch.__file__).parent / "_core.pyi"
_HEADER = "# SPDX-License-Identifier: Apache-2.0\n# Made by tools/dev/write_stub.py\n"


def stub() -> str:
    """The stub of the module that is built."""
    generator = StubGen(poptorch._core)
    generator.put(poptorch._core)
    return _HEADER + generator.get().rstrip() + "\n"


if __name__ == "__main__":
    STUB.write_text(stub())
