# SPDX-License-Identifier: Apache-2.0
"""The library of most tests of our header, and calls of its ops."""

import functools
import pathlib
import shutil

import poptorch
from built_libraries import WARNINGS, compiler, kept

TESTS = pathlib.Path(__file__).resolve().parent


def build(source, *flags: str) -> pathlib.Path:
    """The library of a source file, or of a text."""
    text = source.read_bytes() if isinstance(source, pathlib.Path) else source.encode()
    before = [*poptorch.custom_op_cflags(), *WARNINGS, "-O2", *flags]
    after = [*poptorch.custom_op_ldflags(), "-Wl,--no-undefined", "-o"]

    def make(library: pathlib.Path) -> None:
        file = library.with_suffix(".cpp")
        file.write_bytes(text)
        compiler([*before, file, *after, library])

    return kept("lib*.so", [text, *before, *after], make)


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
