# SPDX-License-Identifier: Apache-2.0
"""Libraries of ops that tests compile: one cache for all of them, by the content of the sources, of
our headers and of the command. What is made appears in it whole, so test processes may share it."""

import functools
import hashlib
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Iterable

import poptorch

ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = ROOT / "build/custom_ops"
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
#: The environment that an SDK's enable script would make: build lines have no -I and no -L.
SDK = {
    "CPATH": f"{ROOT / 'include'}:{ROOT / 'include/tessera/compat'}",
    "LIBRARY_PATH": str(pathlib.Path(poptorch.__file__).parent / "lib"),
}


@functools.cache
def _headers() -> bytes:
    h = hashlib.sha256()
    for file in sorted((ROOT / "include").rglob("*.h*")):
        h.update(file.read_bytes())
    return h.digest()


def kept(
    name: str, content: Iterable[bytes | str], make: Callable[[pathlib.Path], None]
) -> pathlib.Path:
    """The file of the cache for a content; `make` writes it to a path if it is not there.

    Args:
        name: its file name, with a star where the key of the content goes.
        content: all that decides on it but our headers.
        make: gets a path in a folder of its own.
    """
    key = hashlib.sha256(_headers())
    for part in content:
        data = part.encode() if isinstance(part, str) else part
        key.update(len(data).to_bytes(8, "little") + data)
    found = CACHE / name.replace("*", key.hexdigest()[:20])
    if not found.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            made = pathlib.Path(folder) / found.name
            make(made)
            made.replace(found)
    return found


def compiler(arguments: Iterable[object], **environment: str) -> None:
    """Runs the compiler; what it says is the failure of the test."""
    command = [os.environ.get("CXX", "g++"), *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
