# SPDX-License-Identifier: Apache-2.0
"""Libraries of custom ops: how they are built and loaded."""

import ctypes
import os
import struct
from pathlib import Path

from poptorch import _core
from poptorch.base.errors import createPoptorchError
from poptorch.base.logging import logger

_PACKAGE = Path(__file__).resolve().parents[1]
#: What the files were when they were loaded.
_loaded: dict[Path, tuple[int, int, int]] = {}


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
        _check_form(file)
        _warn_if_changed(file)
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


def _check_form(file: Path) -> None:
    """Raise OSError for what is no whole shared library. The loader maps a file whose end is
    missing all the same, and the process dies when it reads there."""
    with file.open("rb") as f:
        size = os.fstat(f.fileno()).st_size
        head = f.read(64)
        if head[:4] != b"\x7fELF":
            raise OSError(f"{file} is no shared library")
        if len(head) < 64 or head[4:6] != b"\2\1":
            return  # the loader says what it is instead
        programs, sections = struct.unpack_from("<QQ", head, 32)
        each, program_count, section, count, names = struct.unpack_from("<5H", head, 54)
        parts = [(programs, each * program_count), (sections, section * count)]
        for i in range(program_count):
            f.seek(programs + i * each)
            described = f.read(40).ljust(40, b"\0")  # short if the table itself is beyond the end
            begin, length = struct.unpack("<8xQ16xQ", described)
            parts.append((begin, length))
        if any(begin + length > size for begin, length in parts):
            raise OSError(f"{file} is not complete: its end is missing")
        if sections and names < count:
            f.seek(sections + names * section + 4)
            if struct.unpack("<I", f.read(4))[0] != 3:  # no table of names, but zeros, say
                raise OSError(f"{file} is not complete: not all of it is written")


def _warn_if_changed(file: Path) -> None:
    """A file that is loaded again is what it was when it was loaded first, whatever it is now."""
    found = file.stat()
    now = found.st_ino, found.st_size, found.st_mtime_ns
    if _loaded.setdefault(file, now) != now:
        logger.warning(
            "%s has changed since this process loaded it, and the ops of the first build stay. To "
            "use the new one, start a new process.",
            file,
        )
