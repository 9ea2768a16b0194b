# SPDX-License-Identifier: Apache-2.0
"""What is said of files that are no executables, are damaged, or are of another model."""

import random

import poptorch
import pytest
import torch
from torch import nn


def quiet():
    return poptorch.Options().showCompilationProgressBar(False)


def exported(path, **kwargs):
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    poptorch.inferenceModel(model, quiet()).compileAndExport(path, x, **kwargs)
    return model, x


def fresh(model=None, options=None):
    return poptorch.inferenceModel(model or nn.Linear(4, 4), options or quiet())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.poptorch"


def test_what_is_no_executable(path, tmp_path):
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(poptorch.Error, match="does not contain Poptorch metadata") as caught:
        poptorch.load(path)
    assert str(path) in caught.value.message
    with pytest.raises(poptorch.Error, match="No such file"):
        poptorch.load(tmp_path / "missing")
    with pytest.raises(poptorch.Error, match="is no file"):
        fresh().loadExecutable(tmp_path)


def test_a_cut_and_an_altered_file(path):
    exported(path)
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(poptorch.Error, match="is cut"):
        poptorch.load(path)
    path.write_bytes(good[:200] + b"x" + good[201:])
    with pytest.raises(poptorch.Error, match="is altered"):
        fresh().loadExecutable(path)


def test_damage_anywhere_is_an_error_or_without_effect(path):
    model, x = exported(path)
    good, expected = path.read_bytes(), model(x)
    chosen = random.Random(0)
    for k in range(60):
        bad = bytearray(good)
        if k < 50:
            bad[chosen.randrange(len(bad))] ^= chosen.randrange(1, 256)
        else:
            del bad[chosen.randrange(len(bad)) :]
        path.write_bytes(bytes(bad))
        try:
            result = poptorch.load(path)(x)
        except poptorch.Error:
            continue
        torch.testing.assert_close(result, expected)


def test_another_version(path, monkeypatch):
    exported(path)
    monkeypatch.setattr("poptorch.running.stored.__version__", "9.9.9")
    words = "Invalid file .*: PopTorch version mismatch: File was created with version"
    with pytest.raises(AssertionError, match=words):
        poptorch.load(path)
    with pytest.raises(poptorch.Error, match=words):
        fresh().loadExecutable(path)


def test_another_model(path):
    exported(path, export_model=False)
    with pytest.raises(poptorch.Error, match="was made from another model"):
        fresh(nn.Sequential(nn.Linear(4, 4), nn.Tanh())).loadExecutable(path)


def test_other_options(path):
    exported(path, export_model=False)
    options = quiet()
    options.Precision.setPartialsType(torch.half)
    with pytest.raises(poptorch.Error, match="was made with other options: half_partials"):
        fresh(options=options).loadExecutable(path)


def test_a_compiled_model_takes_no_other_program(path):
    model, x = exported(path)
    executor = fresh(model)
    executor(x)
    with pytest.raises(poptorch.Error, match="already compiled: call destroy"):
        executor.loadExecutable(path)


def test_saving_needs_a_program(path):
    with pytest.raises(poptorch.Error, match="Model has not been compiled"):
        fresh().save(path)


def test_a_directory_gets_a_file(tmp_path, caplog):
    exported(tmp_path)
    assert (tmp_path / "model.poptorch").exists()


def test_what_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(poptorch.Error, match="cannot be written"):
        exported(tmp_path / "file" / "model.poptorch")


def test_functions_of_the_process_cannot_be_saved(path):
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.op = poptorch.CPU(torch.exp, "exponential")

        def forward(self, x):
            return self.op(x)

    executor = fresh(Calls())
    executor.compile(torch.ones(2))
    with pytest.raises(poptorch.Error, match="poptorch.CPU"):
        executor.save(path, export_model=False)
    assert not path.exists()


def test_arguments_that_only_a_pickle_holds(path):
    class Takes(nn.Module):
        def forward(self, x, dtype):
            return x.to(dtype) + 1

    call = (torch.ones(2), torch.float16)
    fresh(Takes()).compileAndExport(path, *call, export_model=False)
    with pytest.raises(poptorch.Error, match="torch.dtype, which is kept with the model only"):
        fresh(Takes()).loadExecutable(path)
