# SPDX-License-Identifier: Apache-2.0
"""The log of whole programs: what each level shows, where it goes, and how often."""

import os
import re
import subprocess
import sys

import poptorch
import pytest
import torch
from poptorch import _core
from poptorch.base import logging as _logging
from poptorch.base.errors import raise_core_error

PROGRAM = """
import poptorch, torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if (x > 100).any():
            x = x + 1
        return poptorch.identity_loss(self.layer(poptorch.ipu_print_tensor(x, "x")), "mean")

for _ in range(3):
    model = poptorch.trainingModel(Model(), poptorch.Options().{options})
    for _ in range(5):
        model(torch.ones(2, 3))
    model.detachFromDevice()
    model.attachToDevice()
    model.train()
    model.eval()
    model(torch.ones(2, 3))
    model.destroy()
"""
LINE = re.compile(r"\[\d\d:\d\d:\d\d\.\d{3}\] \[(poptorch::python|poptorch:cpp)\] \[(\w+)\] (.*)")


def run(tmp_path, options="modelName('a')", **environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{options}", options)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(autouse=True)
def as_before():
    yield
    _logging.write_to(None)
    _logging.limit_repeats(_logging.DEFAULT_REPEATS)
    poptorch.setLogLevel("INFO")


# What a level shows first, in the order of the levels.
FIRST = {
    "ERR": None,
    "WARN": r"[warning]",
    "INFO": None,
    "DEBUG": "[poptorch::python] [debug] Attached to device 0: IPUs 0 to 0",
    "DEBUG_IR": 'graph "training" {',
    "TRACE": "[poptorch:cpp] [trace] canonicalize ",
    "TRACE_ALL": "[poptorch:cpp] [trace_all] ",
}


@pytest.mark.parametrize("level", ["OFF", *FIRST])
def test_what_a_level_shows(tmp_path, level):
    done = run(tmp_path, POPTORCH_LOG_LEVEL=level)
    assert done.stdout == "", "nothing of ours"
    order = list(FIRST)
    for other, text in FIRST.items():
        if text is None:
            continue
        expected = level != "OFF" and order.index(other) <= order.index(level)
        # TRACE has what DEBUG_IR has.
        assert (text in done.stderr) == expected, (other, done.stderr)
    compiled = re.search(r"\[poptorch:cpp\] \[debug\] Compiled training in .* steps", done.stderr)
    assert bool(compiled) == (level in order[order.index("DEBUG") :])


def test_lines_are_tagged(tmp_path):
    lines = run(tmp_path, POPTORCH_LOG_LEVEL="DEBUG").stderr.splitlines()
    tagged = [LINE.fullmatch(line) for line in lines]
    tags = {(found[1], found[2]) for found in tagged if found}
    assert {("poptorch:cpp", "debug"), ("poptorch::python", "debug")} <= tags
    assert ("poptorch::python", "warning") in tags


def warnings(text):
    return [
        found[3]
        for found in map(LINE.fullmatch, text.splitlines())
        if found and found[2] == "warning"
    ]


def test_each_warning_is_shown_once(tmp_path):
    shown = warnings(run(tmp_path).stderr)
    assert shown and len(set(shown)) == len(shown)
    assert any("self.calls" in text or "calls" in text for text in shown), shown


def test_warnings_are_repeated_if_that_is_asked_for(tmp_path):
    once = warnings(run(tmp_path).stderr)
    again = warnings(run(tmp_path, "maxRepeatLogs(2)").stderr)
    assert len(once) < len(again) and max(map(again.count, again)) == 2


def test_a_directory_for_the_log(tmp_path):
    done = run(tmp_path, "logDir('logs/deep')", POPTORCH_LOG_LEVEL="DEBUG")
    text = (tmp_path / "logs" / "deep" / "poptorch.log").read_text()
    assert "[poptorch:cpp] [debug] Compiled training" in text
    assert all(line in done.stderr for line in text.splitlines())
    assert len(warnings(text)) == len(set(warnings(text))) > 0
    assert sorted(os.listdir(tmp_path)) == ["logs"]


def test_no_file_is_written_that_nobody_asked_for(tmp_path):
    run(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_written_to(opts, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "logs"):
        model = poptorch.inferenceModel(torch.nn.Linear(3, 2), opts.clone().logDir(str(place)))
        with pytest.raises(poptorch.Error, match="Options.logDir: cannot write to .*file"):
            model(torch.ones(1, 3))


def test_the_log_moves_to_another_directory_and_stays_there(opts, tmp_path):
    for name in ("a", "b", None):
        options = opts.clone() if name is None else opts.clone().logDir(str(tmp_path / name))
        poptorch.inferenceModel(torch.nn.Linear(3, 2), options)(torch.ones(1, 3))
        poptorch.logger.error("after %s", name)
    texts = [(tmp_path / name / "poptorch.log").read_text() for name in "ab"]
    assert [re.findall(r"after (\w+)", text) for text in texts] == [["a"], ["b", "None"]]


def test_long_messages_of_errors_go_there_too(opts, tmp_path):
    options = opts.clone().logDir(str(tmp_path / "logs"))
    poptorch.inferenceModel(torch.nn.Linear(3, 2), options).compile(torch.ones(1, 3))
    long = "\n".join(map(str, range(100)))
    with pytest.raises(poptorch.Error, match="See .*logs/poptorch_error.log for details"):
        raise_core_error(_core.Error(long))
    assert (tmp_path / "logs" / "poptorch_error.log").read_text() == long + "\n"
