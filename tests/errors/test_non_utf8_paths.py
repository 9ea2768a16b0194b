# SPDX-License-Identifier: Apache-2.0
"""Programs and files in folders whose names are not UTF-8."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import poptorch, torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.linear = nn.Linear(3, 3)

    def forward(self, i):
        with poptorch.Block("a", ipu_id=0):
            y = self.table(i)
        with poptorch.Block("b", ipu_id=1):
            return self.linear(y)

stages = [poptorch.Stage(name).ipu(ipu) for ipu, name in enumerate("ab")]
options = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution(*stages))
model, i = Model(), torch.arange(4)
inference = poptorch.inferenceModel(model, options.deviceIterations(2))
torch.testing.assert_close(inference(i), model(i).detach())
print("right")
try:
    inference(i + 1)
except poptorch.Error as error:
    print(error.location, error)

class Wrong(nn.Module):
    def forward(self, x):
        return x[x > 0]

try:
    poptorch.inferenceModel(Wrong())(torch.ones(3))
except poptorch.Error as error:
    print(error.location, error)
raise ValueError("the end")
"""


@pytest.fixture
def folder(tmp_path):
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(path)
    with open(os.path.join(path, b"program.py"), "w") as file:
        file.write(PROGRAM)
    return path


def run(folder, **environment):
    done = subprocess.run(
        [sys.executable, os.path.join(folder, b"program.py")],
        env=os.environ | environment,
        capture_output=True,
        timeout=300,
    )
    return done.stdout.decode(), done.stderr.decode()


def test_a_program_there(folder):
    out, err = run(folder)
    assert out.startswith("right\n")
    assert "caf\\xe9/program.py:13 (table)" in out, "of an error of the core"
    assert "caf\\xe9/program.py:30" in out, "of an error of capture"
    assert "ValueError: the end" in err and "Logging error" not in err


def test_files_there(folder):
    trace, dump = os.path.join(folder, b"trace.json"), os.path.join(folder, b"dump")
    log = os.path.join(folder, b"log")
    out, err = run(folder, TESSERA_TRACE=trace, TESSERA_DUMP=dump, POPTORCH_LOG_DEST=log)
    assert out.startswith("right\n") and err == ""
    with open(trace) as file:
        assert json.load(file)
    assert any(name.endswith(b".tir") for name in os.listdir(dump))
    with open(log) as file:
        assert "ValueError: the end" in file.read()


def test_a_trace_that_cannot_be_written_is_said(folder):
    _, err = run(folder, TESSERA_TRACE=os.path.join(folder, b"none", b"trace.json"))
    assert "TESSERA_TRACE: cannot write" in err and "caf\\xe9/none/trace.json" in err
