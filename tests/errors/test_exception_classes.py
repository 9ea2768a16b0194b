# SPDX-License-Identifier: Apache-2.0
"""The exception classes: their attributes, their text, and what becomes of the core's errors."""

import pickle
import subprocess
import sys

import poptorch
import pytest
import torch
from poptorch import _core
from poptorch.base.errors import raise_core_error
from poptorch.poptorch_core import TestErrorType as Kind
from poptorch.poptorch_core import _throwTestError


@pytest.mark.parametrize(
    "kind, cls, name",
    [
        (Kind.Poptorch, poptorch.Error, "poptorch_cpp_error"),
        (Kind.Popart, poptorch.Error, "popart_exception"),
        (Kind.PopartInternal, poptorch.Error, "popart_internal_exception"),
        (Kind.Poplibs, poptorch.Error, "poplibs_exception"),
        (Kind.PoplarUnrecoverable, poptorch.UnrecoverableError, "poplar_unrecoverable"),
        (Kind.PoplarUnknown, poptorch.Error, "poplar_unknown"),
        (Kind.PoplarRecoverableFullReset, poptorch.RecoverableError, "poplar_recoverable"),
        (Kind.PoplarLinkError, poptorch.Error, "poplar_link_error"),
    ],
)
def test_every_category_can_be_thrown(kind, cls, name):
    with pytest.raises(poptorch.Error) as caught:
        _throwTestError(kind)
    error = caught.value
    assert type(error) is cls and error.type.startswith(name) and error.message
    assert type(error).__module__ == "poptorch.poptorch_core"
    assert isinstance(error.location, str)
    assert hasattr(error, "recovery_action") == (cls is poptorch.RecoverableError)


def test_all_categories_are_there():
    assert len(Kind) == 8


def test_the_exceptions_are_imported_by_their_module():
    code = "import poptorch.poptorch_core as c; print(c.Error, c.RecoverableError.__mro__[1:3])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == (
        "<class 'poptorch.poptorch_core.Error'> (<class 'poptorch.poptorch_core.Error'>, "
        "<class 'Exception'>)\n"
    )


def test_texts():
    error = poptorch.Error("message", "kind", "model.py:3 (layer)")
    assert str(error) == (
        "In model.py:3: 'kind': message\nError raised in:\n  [0] model.py:3 (layer)"
    )
    error = poptorch.RecoverableError("message", "kind", "model.py:3", "IPU_RESET")
    assert str(error) == (
        "In model.py:3: 'kind': message\nRecovery action required: IPU_RESET\n"
        "Error raised in:\n  [0] model.py:3"
    )
    assert str(poptorch.createPoptorchError("message")) == "'poptorch_py_error': message"
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.recovery_action) == (str(error), "IPU_RESET")


def test_an_error_of_the_core_names_the_line_of_the_model(opts):
    executor = poptorch.inferenceModel(torch.nn.Embedding(4, 2), opts)
    executor(torch.arange(4))
    with pytest.raises(poptorch.Error, match="out of bounds") as caught:
        executor(torch.arange(4) + 1)
    assert caught.value.type == "poptorch_cpp_error"
    assert "'poptorch_cpp_error': [embedding]" in str(caught.value)


def test_a_very_long_message_goes_to_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    long = "\n".join(f"line {i}" for i in range(81))
    with pytest.raises(poptorch.Error, match="See poptorch_error.log for details") as caught:
        raise_core_error(_core.Error(long))
    assert caught.value.message == "See poptorch_error.log for details"
    assert (tmp_path / "poptorch_error.log").read_text() == long + "\n"
    with pytest.raises(poptorch.Error, match="line 79"):
        raise_core_error(_core.Error(long.rpartition("\n")[0]))


def test_a_long_message_that_cannot_be_written_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "poptorch_error.log").mkdir()
    with pytest.raises(poptorch.Error, match="line 99"):
        raise_core_error(_core.Error("\n".join(f"line {i}" for i in range(100))))
