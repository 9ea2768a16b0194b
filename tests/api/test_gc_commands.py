# SPDX-License-Identifier: Apache-2.0
"""gc-monitor, gc-info and gc-reset show what is there, in their layout, without torch."""

import getpass
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import poptorch
import pytest
import torch
from poptorch import _core
from poptorch.compiling.inspection import CLOCK_HZ
from tessera_tools import gc_monitor
from tessera_tools.machine import CLOCK_MHZ, Attached, Machine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def four_ipus(monkeypatch):
    monkeypatch.setenv("TESSERA_IPUS", "4")


def run(command, *arguments, returncode=0):
    done = subprocess.run(
        [sys.executable, "-m", f"tessera_tools.{command}", *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == returncode, done.stderr
    return done.stdout if returncode == 0 else done.stderr


@pytest.fixture
def attached(opts):
    model = poptorch.inferenceModel(torch.nn.Linear(3, 2), opts.clone().replicationFactor(2))
    model(torch.ones(4, 3))
    return model


# The layout of the tables, with a process on the first IPU.
CARDS = """
+---------------+---------------------------------------------------------------------------------+
|  gc-monitor   |         Partition: trainee01-2-ipus [active] has 2 reconfigurable IPUs          |
+-------------+--------------------+--------+--------------+----------+-------+----+------+-------+
|    IPU-M    |       Serial       |IPU-M SW|Server version|  ICU FW  | Type  | ID | IPU# |Routing|
+-------------+--------------------+--------+--------------+----------+-------+----+------+-------+
|  127.0.0.1  |        N/A         |        |    0.1.0     |   N/A    |Virtual| 0  |  3   |  N/A  |
|  127.0.0.1  |        N/A         |        |    0.1.0     |   N/A    |Virtual| 1  |  2   |  N/A  |
+-------------+--------------------+--------+--------------+----------+-------+----+------+-------+
"""
PROCESS = "| 205698 |{:^82}|  13s   | trainee01  | 0  | 1330MHz  |  N/A   |  N/A   |  N/A   |"


def test_the_layout():
    process = Attached(0, 205698, "trainee01", 13, "python")
    lines = gc_monitor.as_tables(Machine("trainee01-2-ipus", 2, [process], "0.1.0"))
    assert "\n".join(lines[:8]) == CARDS.strip()
    wide, groups, narrow, heading, below, row, last = lines[8:]
    assert row == PROCESS.format("python")
    assert groups.split("|")[1].strip() == "Attached processes in partition trainee01-2-ipus"
    assert [cell.strip() for cell in groups.split("|")[2:4]] == ["IPU", "Board"]
    assert [cell.strip() for cell in heading.strip("|").split("|")] == [
        *("PID", "Command", "Time", "User", "ID", "Clock", "Temp", "Temp", "Power")
    ]
    assert len({len(line) for line in lines[8:]}) == 1
    assert narrow == below == last
    # Groups end where columns do.
    corners = [[m.start() for m in re.finditer(r"\+", line)] for line in (wide, narrow)]
    assert set(corners[0]) <= set(corners[1])


def test_boxes_of_four_are_apart():
    lines = gc_monitor.as_tables(Machine("a", 6, [], "0.1.0"))
    numbers = [line.split("|")[8].strip() for line in lines[5:13] if line[0] == "|"]
    assert numbers == ["3", "2", "1", "0", "3", "2"]
    assert [line[0] for line in lines[5:13]] == list("||||+||+")


def test_long_values_keep_the_table():
    process = Attached(0, 4194304, "someone-with-a-name", 400 * 86400, "x" * 200)
    lines = gc_monitor.as_tables(Machine("p", 1, [process], "0.1.0"), cards=False)
    assert len({len(line) for line in lines}) == 1
    assert "someone-wit~" in lines[5] and "400d00h" in lines[5]


@pytest.mark.parametrize(
    "seconds, text", [(0, "0s"), (59, "59s"), (61, "1m01s"), (3600, "1h00m"), (90000, "1d01h")]
)
def test_times(seconds, text):
    assert gc_monitor._duration(seconds) == text


def test_the_monitor_shows_live_state(attached):
    text = run("gc_monitor")
    rows = [line for line in text.splitlines() if f" {os.getpid()} " in line]
    assert [row.split("|")[5].strip() for row in rows] == ["0", "1"]
    assert all(getpass.getuser()[:11] in row and "python" in row for row in rows)
    assert f"Partition: {getpass.getuser()}-4-ipus [active] has 4 reconfigurable IPUs" in text
    attached.detachFromDevice()
    text = run("gc_monitor", "--no-card-info")
    assert "No processes are attached in partition" in text and "Serial" not in text


def test_the_monitor_as_json(attached):
    found = json.loads(run("gc_monitor", "--json"))
    assert found["partition"]["ipus"] == len(found["cards"]) == 4
    assert [row["id"] for row in found["processes"]] == [0, 1]
    for row in found["processes"]:
        assert row["pid"] == os.getpid() and row["user"] == getpass.getuser()
        assert 0 <= row["seconds"] < 600 and row["command"].startswith("python")


def test_ipus_beyond_this_machine_are_shown(attached, monkeypatch):
    monkeypatch.setenv("TESSERA_IPUS", "1")
    assert "has 2 reconfigurable IPUs" in run("gc_monitor")


def test_the_monitor_refreshes_until_it_is_interrupted(attached):
    process = subprocess.Popen(
        [sys.executable, "-m", "tessera_tools.gc_monitor", "--json", "--refresh", "0.05"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert len(json.loads(process.stdout.readline())["processes"]) == 2
    attached.detachFromDevice()
    while json.loads(process.stdout.readline())["processes"]:
        pass
    process.send_signal(2)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and error == ""


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m tessera_tools.gc_monitor --refresh 0.01 | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout.startswith("+----")


def test_devices_are_listed():
    text = run("gc_info", "-l")
    assert text.splitlines()[0] == (
        "-+- Id: [0], target: [Virtual], IPU-M host: [127.0.0.1], IPU#: [3]"
    )
    assert len(re.findall(r"^-\+- ", text, re.MULTILINE)) == len(_core.devices(4))
    below = text.partition("-+- Id: [5], target: [Multi IPU]\n")[2].partition("-+-")[0]
    assert re.findall(r" \|--- Id: \[(\d)\]", below) == ["2", "3"]
    assert json.loads(run("gc_info", "-l", "--json"))[-1] == {"id": 6, "first_ipu": 0, "ipus": 4}


def test_a_device_is_told_about(attached):
    text = run("gc_info", "-d", "0", "--device-info")
    assert text.startswith("Device Info:\n")
    facts = dict(line.strip().split(": ", 1) for line in text.splitlines()[1:])
    assert facts["user process id"] == str(os.getpid()) and facts["clock"] == "1330MHz"
    assert facts["ipu architecture"] == f"ipu{poptorch.ipuHardwareVersion()}"
    assert list(facts) == sorted(facts)
    free = json.loads(run("gc_info", "-d", "3", "-i", "--json"))
    assert "user process id" not in free and free["id"] == "3"


@pytest.mark.parametrize("command", ["gc_info", "gc_reset"])
@pytest.mark.parametrize("device", ["7", "-1", "x"])
def test_devices_that_there_are_not(command, device):
    error = run(command, f"--device-id={device}", returncode=2)
    assert f"there is no device {device}: partition" in error and "the devices 0 to 6" in error


def test_resetting_one_device(attached):
    lease = _core.acquire(_core.runtime_directory(), [(3, 3, 1)])
    assert (
        run("gc_reset", "-d", "3") == f"device 3: 1 IPU(s) reset, in use by process {os.getpid()}\n"
    )
    with pytest.raises(_core.RecoverableError, match="IPU 3 was reset"):
        lease.check()
    attached(torch.ones(4, 3))


def test_what_is_wrong_is_one_line(monkeypatch):
    monkeypatch.setenv("TESSERA_IPUS", "many")
    error = run("gc_monitor", returncode=1)
    assert error.count("\n") == 1 and "TESSERA_IPUS must be a number" in error
    assert "say what to show" in run("gc_info", returncode=2)


def test_they_do_not_import_torch():
    code = """
import sys
from tessera_tools import gc_monitor
sys.argv = ["gc-monitor"]
gc_monitor.main()
assert "torch" not in sys.modules and "poptorch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_program_may_ask_for_itself(attached, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gc-monitor", "--json"])
    gc_monitor.main()
    assert len(json.loads(capsys.readouterr().out)["processes"]) == 2
    with pytest.raises(poptorch.Error, match="already attached"):
        attached.attachToDevice()


def test_every_command_is_an_entry_point():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == {"gc-info", "gc-monitor", "gc-reset", "tessera-cache"}
    for target in scripts.values():
        module, _, name = target.partition(":")
        assert callable(getattr(__import__(module, fromlist=[name]), name))


def test_the_clock_is_that_of_cycle_counts():
    assert CLOCK_MHZ * 1_000_000 == CLOCK_HZ
