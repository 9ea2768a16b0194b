# SPDX-License-Identifier: Apache-2.0
"""What importing the package does to the process, its log, and its environment variables."""

import io
import logging
import os
import re
import subprocess
import sys

import poptorch
import pytest
from poptorch.base import logging as _logging
from poptorch.base import process


def run(code, **environment):
    """A program of its own; returns what it did."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_one_program_sees_all_effects():
    done = run(
        """
import os, sys, faulthandler
os.environ.pop("RDMAV_FORK_SAFE", None)
import poptorch
from tqdm import tqdm
assert os.environ["RDMAV_FORK_SAFE"] == "1"
assert faulthandler.is_enabled()
assert tqdm.get_lock().locks == []
assert sys.excepthook is not sys.__excepthook__
assert "poptorch.testing" not in sys.modules
assert "torch._inductor" not in sys.modules, "importing is cheap"
import poptorch.poptorch_core
raise ValueError("uncaught")
"""
    )
    assert done.returncode == 1
    line = r"^\\[\\d\\d:\\d\\d:\\d\\d\\.\\d{3}\\] \\[poptorch::python\\] \\[critical\\] Traceback"
    assert re.match(line.replace("\\\\", "\\"), done.stderr), done.stderr
    assert done.stderr.rstrip().endswith("ValueError: uncaught")


def test_a_set_variable_is_left_alone_and_sigterm_shows_where_the_program_was():
    done = run(
        """
import os, signal, poptorch
assert os.environ["RDMAV_FORK_SAFE"] == "0"
os.kill(os.getpid(), signal.SIGTERM)
""",
        RDMAV_FORK_SAFE="0",
    )
    assert done.returncode == -15 and "most recent call first" in done.stderr


def test_exceptions_are_shown_even_when_the_log_is_off():
    done = run("import poptorch; raise ValueError('uncaught')", POPTORCH_LOG_LEVEL="OFF")
    assert done.stderr.startswith("Traceback") and "ValueError: uncaught" in done.stderr


def test_a_missing_native_module_says_so():
    done = run("import sys; sys.modules['poptorch._core'] = None; import poptorch")
    assert "ImportError: Unable to import PopTorch" in done.stderr


def test_another_torch_is_refused(monkeypatch):
    monkeypatch.setattr(process, "TORCH_VERSION", "1.10")
    with pytest.raises(AssertionError, match="made for torch 1.10"):
        process.install()


def test_removed_modules_do_not_exist():
    for name in ("experimental", "eager"):
        assert not hasattr(poptorch, name)


# Log ----------------------------------------------------------------------------------------------

LINES = "import poptorch; [poptorch.logger.info('info'), poptorch.logger.warning('warn')]"


@pytest.mark.parametrize(
    "level, shown",
    [(None, ["info", "warn"]), ("WARN", ["warn"])],
)
def test_the_level_of_the_environment(level, shown):
    environment = {} if level is None else {"POPTORCH_LOG_LEVEL": level}
    assert [line.split()[-1] for line in run(LINES, **environment).stderr.splitlines()] == shown


@pytest.mark.parametrize("level", ["LOUD", "info", "3", " INFO", ""])
def test_a_bad_level_stops_the_import(level):
    done = run("import poptorch", POPTORCH_LOG_LEVEL=level)
    assert f"ValueError: Unknown log level: {level}. Valid values are" in done.stderr
    assert done.returncode == 1


def test_the_log_can_go_to_a_file(tmp_path):
    path = tmp_path / "log.txt"
    assert run(LINES, POPTORCH_LOG_DEST=str(path)).stderr == ""
    assert "[poptorch::python] [warning] warn" in path.read_text()


def test_levels_by_name_and_by_number(log):
    for level, expected in [
        ("TRACE_ALL", 1),
        ("TRACE", 5),
        ("DEBUG", 10),
        ("DEBUG_IR", 10),
        ("ERR", 40),
        (0, 5),
        (1, 10),
        (2, 20),
        (3, 30),
        (4, 40),
    ]:
        poptorch.setLogLevel(level)
        assert poptorch.logger.level == expected
    for level in ("OFF", 6):
        poptorch.setLogLevel(level)
        assert not poptorch.logger.isEnabledFor(logging.CRITICAL)
    poptorch.poptorch_core.setLogLevel()
    assert poptorch.logger.level == 20
    for level in (5, 7, -1):
        with pytest.raises(ValueError, match="Invalid log level integer"):
            poptorch.setLogLevel(level)
    with pytest.raises(ValueError, match="Unknown log level: loud. Valid values are TRACE_ALL"):
        poptorch.setLogLevel("loud")


@pytest.mark.parametrize("level, shown", [("DEBUG_IR", 1), ("TRACE", 1), ("DEBUG", 0)])
def test_some_levels_log_the_text_of_models(regression, batch, opts, log, level, shown):
    poptorch.setLogLevel(level)
    try:
        poptorch.inferenceModel(regression, opts)(batch[0])
    finally:
        poptorch.setLogLevel("INFO")
    assert log.text.count('graph "inference" {') == shown


def test_repeated_lines_are_capped(regression, batch, opts):
    shown = io.StringIO()
    before = poptorch.logger.handlers[0].setStream(shown)
    try:
        for limit, expected in ((4, 4), (1, 1), (None, 7)):
            poptorch.inferenceModel(regression, opts.clone().maxRepeatLogs(limit))(batch[0])
            for _ in range(7):
                poptorch.logger.error("limit %s", limit)
            assert shown.getvalue().count(f"limit {limit}\n") == expected
    finally:
        poptorch.logger.handlers[0].setStream(before)
        _logging.limit_repeats(4)


def test_other_handlers_see_every_line_and_the_same_level_name(caplog):
    for _ in range(6):
        poptorch.logger.error("the same")
    assert [r.levelname for r in caplog.records] == ["ERROR"] * 6
    handler = logging.StreamHandler()
    handler.setFormatter(_logging._Formatter(colour=True))
    shown = handler.format(caplog.records[0])
    assert "\033[1;31merror\033[0m" in shown and caplog.records[0].levelname == "ERROR"


# Devices and hooks --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"])
def test_the_ipu_model_is_no_hardware(monkeypatch, name):
    assert poptorch.ipuHardwareIsAvailable() and poptorch.ipuHardwareVersion() == 2
    assert not poptorch.ipuHardwareIsAvailable(10_000)
    monkeypatch.setenv(name, "1")
    assert not poptorch.ipuHardwareIsAvailable()
    assert poptorch.poptorch_core.ipuHardwareVersion() == 0
    with pytest.raises(AssertionError, match="No IPU hardware available on this system"):
        poptorch.ipuHardwareVersion()
    monkeypatch.setenv(name, "0")
    assert poptorch.ipuHardwareIsAvailable()


def test_hooks_run_in_order_around_every_capture(regression, batch, opts):
    seen = []
    handles = [
        poptorch.registerPreCompileHook(lambda: seen.append(("pre 1", poptorch.isRunningOnIpu()))),
        poptorch.registerPreCompileHook(lambda: seen.append(("pre 2", poptorch.isRunningOnIpu()))),
        poptorch.registerPostCompileHook(lambda: seen.append(("post", poptorch.isRunningOnIpu()))),
    ]
    try:
        poptorch.inferenceModel(regression, opts)(batch[0])
        assert seen == [("pre 1", False), ("pre 2", False), ("post", False)]
        with pytest.raises(RuntimeError):
            poptorch.inferenceModel(regression, opts)(batch[0][:, :2])
        assert [name for name, _ in seen].count("post") == 2, "also when capture fails"
    finally:
        for handle in handles:
            handle.remove()
    seen.clear()
    poptorch.inferenceModel(regression, opts)(batch[0])
    assert not seen
    with pytest.raises(RuntimeError, match="Pre-compile hook must be callable"):
        poptorch.registerPreCompileHook(3)
    with pytest.raises(RuntimeError, match="Post-compile hook must be callable"):
        poptorch.registerPostCompileHook(None)
