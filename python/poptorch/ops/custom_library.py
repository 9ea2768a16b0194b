# SPDX-License-Identifier: Apache-2.0
"""Libraries of custom ops: how they are built and loaded."""

import ctypes
import os
from pathlib import Path

from poptorch import _core
from poptorch.base.errors import createPoptorchError
from poptorch.base.logging import logger

_PACKAGE = Path(__file__).resolve().parents[1]


def include_folder() -> Path:
    """The folder of the header ``tessera/custom_op.h``."""
    installed = _PACKAGE / "include"
    return installed if installed.is_dir() else _PACKAGE.parents[1] / "include"


def library_folder() -> Path:
    """The folder of ``libtessera_ops``."""
    return _PACKAGE / "lib"


def custom_op_cflags() -> list[str]:
    """Flags of the compiler for a library of custom ops: where the headers are, PopART's among
    them."""
    include = include_folder()
    return ["-std=c++17", "-fPIC", f"-I{include}", f"-I{include / 'tessera/compat'}"]


def custom_op_ldflags() -> list[str]:
    """Flags of the linker for a library of custom ops; they come after its sources."""
    folder = library_folder()
    return ["-shared", f"-L{folder}", "-ltessera_ops", f"-Wl,-rpath,{folder}"]


def load_custom_op_library(path: str | os.PathLike[str]) -> list[str]:
    """Loads a library of custom ops, as ``ctypes.cdll.LoadLibrary`` does, and says what is wrong
    with it.

    Args:
        path: the file.

    Returns:
        The ops of the library, as ``domain.name:version``.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise createPoptorchError(f"load_custom_op_library: there is no file {os.fspath(path)}.")
    refused = len(_core.custom_refused())
    try:
        ctypes.CDLL(str(file))
    except OSError as e:
        raise createPoptorchError(
            f"load_custom_op_library: {e}. Build it with the flags of poptorch.custom_op_cflags() "
            "and poptorch.custom_op_ldflags()."
        ) from e
    problems = _core.custom_refused()[refused:]
    known = [text for text in problems if text.endswith("has it already")]
    for text in known:
        logger.warning("%s", text)
    broken = [text for text in problems if text not in known]
    if broken:
        raise createPoptorchError(f"load_custom_op_library: {'; '.join(broken)}.")
    found = [op for op in _core.custom_ops() if Path(op.library).resolve() == file]
    if not found and not known:
        logger.warning("%s has no custom ops: nothing was registered when it was loaded", path)
    return [f"{op.domain}.{op.name}:{op.version}" for op in found]
