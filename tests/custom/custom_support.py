# SPDX-License-Identifier: Apache-2.0
"""Builds the libraries of the tests, once for each content of their sources and our headers."""

import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import poptorch

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parents[1]
CACHE = ROOT / "build/custom_ops"


@functools.cache
def _headers() -> bytes:
    h = hashlib.sha256()
    for file in sorted((ROOT / "include").rglob("*.h*")):
        h.update(file.read_bytes())
    return h.digest()


def build(source, *flags: str) -> pathlib.Path:
    """The library of a source file, or of a text."""
    text = source.read_bytes() if isinstance(source, pathlib.Path) else source.encode()
    key = hashlib.sha256(text + _headers() + " ".join(flags).encode()).hexdigest()[:20]
    found = CACHE / f"lib{key}.so"
    if found.exists():
        return found
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        file = pathlib.Path(folder) / "ops.cpp"
        file.write_bytes(text)
        made = pathlib.Path(folder) / "ops.so"
        warnings = ["-Wall", "-Wextra", "-Werror"]
        subprocess.run(
            [
                os.environ.get("CXX", "g++"),
                *poptorch.custom_op_cflags(),
                *warnings,
                "-O2",
                *flags,
                file,
                *poptorch.custom_op_ldflags(),
                "-Wl,--no-undefined",
                "-o",
                made,
            ],
            check=True,
        )
        made.replace(found)
    return found


@functools.cache
def load_door() -> pathlib.Path:
    """The library of most tests, loaded."""
    library = build(TESTS / "library/door.cpp")
    poptorch.load_custom_op_library(library)
    return library


def custom(inputs, name, example=None, /, outputs=None, version=1, **attributes):
    """A call of an op of that library; its first result unless `outputs` says how many."""
    examples = [example if example is not None else inputs[0]] * (outputs or 1)
    found = poptorch.custom_op(
        inputs, name, "test.door", version, example_outputs=examples, attributes=attributes
    )
    return found[0] if outputs is None else found


def copy_of(library: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Another file of the same content."""
    return pathlib.Path(shutil.copy(library, folder / "copy.so"))
