# SPDX-License-Identifier: Apache-2.0
"""Builds the ops of this folder as their Makefiles would, and models that call them."""

import ctypes
import functools
import pathlib

import poptorch
import torch
from built_libraries import SDK, WARNINGS, compiler, kept

HERE = pathlib.Path(__file__).resolve().parent


@functools.cache
def load(name: str) -> None:
    """The library of one op, built as its Makefile would and kept as long as nothing changes."""
    source = HERE / f"{name}.cpp"
    flags = ["-std=c++14", "-fPIC", "-O0", "-shared", *WARNINGS, "-DONNX_NAMESPACE=onnx"]
    libraries = ["-Wl,--no-undefined", "-lpopart", "-lpoplar", "-lpopops", "-o"]

    def make(library: pathlib.Path) -> None:
        compiler([*flags, source, *libraries, library], **SDK)

    library = kept(f"{name}-*.so", [source.read_bytes(), *flags, *libraries], make)
    ctypes.cdll.LoadLibrary(str(library))


class Op(torch.nn.Module):
    """A model that is one call of an op."""

    def __init__(self, library: str, name: str, examples: int = 1, **attributes: object) -> None:
        super().__init__()
        load(library)
        self.name = name
        self.examples = examples
        self.attributes = {"file": str(HERE / f"{library}_codelets.cpp"), **attributes}

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | list[torch.Tensor]:
        found = poptorch.custom_op(
            list(inputs),
            self.name,
            "test.codelets",
            1,
            example_outputs=[inputs[0]] * self.examples,
            attributes=self.attributes,
        )
        return found if self.examples > 1 else found[0]
