# SPDX-License-Identifier: Apache-2.0
"""What type checkers find: the marker of typed packages, and a stub of the native module."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("package", ["poptorch", "lightning_ipu", "popart", "popdist"])
def test_packages_are_marked_as_typed(package):
    assert (ROOT / "python" / package / "py.typed").exists()


def test_the_stub_is_that_of_the_module():
    path = ROOT / "tools/dev/write_stub.py"
    spec = importlib.util.spec_from_file_location("write_stub", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.STUB.read_text() == tool.stub(), "run: tools/dev/write_stub.py"
