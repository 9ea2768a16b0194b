# SPDX-License-Identifier: Apache-2.0
"""Environment variables: what they show, and what they ask for and cannot be had."""

import os
import subprocess
import sys

import poptorch
import pytest
import torch

HERE = os.path.dirname(os.path.dirname(poptorch.__file__))


def options():
    return poptorch.Options().showCompilationProgressBar(False)


class TwoStages(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = poptorch.BeginBlock(torch.nn.Linear(4, 4), "a", ipu_id=0)
        self.second = poptorch.BeginBlock(torch.nn.Linear(4, 4), "b", ipu_id=1)

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.parametrize("place", ["file/dump", "file", "/proc/nothing"])
def test_a_dump_that_cannot_be_written_is_said(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TESSERA_DUMP", place if place[0] == "/" else str(tmp_path / place))
    model = poptorch.inferenceModel(torch.nn.Linear(4, 4), options())
    with pytest.raises(poptorch.Error, match="TESSERA_DUMP: cannot (make the directory|write) .*:"):
        model(torch.ones(1, 4))
    monkeypatch.setenv("TESSERA_DUMP", str(tmp_path / "dump"))
    model(torch.ones(1, 4))
    assert list((tmp_path / "dump").glob("*.tir"))


def test_a_log_that_cannot_be_written_goes_to_stderr(tmp_path):
    code = "import poptorch; poptorch.logger.warning('a word')"
    environment = {**os.environ, "POPTORCH_LOG_DEST": str(tmp_path), "PYTHONPATH": HERE}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    said = done.stderr.decode()
    assert done.returncode == 0 and f"POPTORCH_LOG_DEST: cannot write {tmp_path}: Is a" in said
    assert "[warning] a word" in said and "Traceback" not in said


def test_a_pass_that_is_not_there_cannot_be_left_out(monkeypatch):
    monkeypatch.setenv("TESSERA_DISABLE_PASSES", "dce,nothing")
    model = poptorch.inferenceModel(torch.nn.Linear(4, 4), options())
    with pytest.raises(poptorch.Error, match="TESSERA_DISABLE_PASSES: there is no pass nothing"):
        model(torch.ones(1, 4))
    monkeypatch.setenv("TESSERA_DISABLE_PASSES", "cse,dce")
    model(torch.ones(1, 4))


def test_a_trace_that_cannot_be_written_is_said_before_the_first_call(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_TRACE", str(tmp_path / "none" / "trace.json"))
    model = poptorch.inferenceModel(TwoStages(), options().deviceIterations(2))
    with pytest.raises(poptorch.Error, match="TESSERA_TRACE: cannot write .*trace.json: No such"):
        model.compile(torch.ones(2, 4))
    assert not model.isCompiled()
    monkeypatch.setenv("TESSERA_TRACE", str(tmp_path / "trace.json"))
    model(torch.ones(2, 4))
    assert "traceEvents" in (tmp_path / "trace.json").read_text()


@pytest.mark.parametrize("level", range(5))
def test_debug_levels_show_more_and_more(
    level: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("TESSERA_DEBUG", str(level))
    poptorch.inferenceModel(torch.nn.Linear(4, 4), options())(torch.ones(1, 4))
    said = capfd.readouterr().err
    assert ("tessera: inference compiled in" in said) == (level >= 1)
    assert ("tessera:   canonicalize " in said) == (level >= 2)
    assert ('tessera: program "inference"' in said) == (level >= 3)
    # The graph as it came, and after each pass that changed it.
    assert ("tessera: inference import\ntessera 1\ngraph" in said) == (level >= 4)
    assert ("tessera: inference after_fuse-pointwise\ntessera 1\ngraph" in said) == (level >= 4)
