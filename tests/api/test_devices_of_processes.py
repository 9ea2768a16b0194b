# SPDX-License-Identifier: Apache-2.0
"""Virtual IPUs between processes: busy, waited for, and free when one is killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import poptorch
import pytest
import torch
from device_support import X, infer, used

pytestmark = pytest.mark.usefixtures("four_ipus")


def test_a_busy_partition_names_the_other_process(opts, other_process):
    assert other_process.take(4) == "0"
    with pytest.raises(poptorch.Error) as caught:
        infer(opts)(X)
    assert f"4 by process {other_process.process.pid} (" in str(caught.value)
    assert " -c " in str(caught.value), "its command"
    other_process.kill()
    assert infer(opts)(X).shape == (4, 2)


def test_an_ipu_of_a_killed_process_is_free_at_once(other_process):
    for _ in range(3):
        assert other_process.take(1) != "None"
    os.kill(other_process.process.pid, signal.SIGKILL)
    other_process.process.wait()
    assert used() == {}


@pytest.mark.parametrize("ended_by", ["kill", "exit"])
def test_waiting_until_another_process_ends(opts, other_process, monkeypatch, log, ended_by):
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    assert other_process.take(4) == "0"
    done = []
    waiting = threading.Thread(target=lambda: done.append(infer(opts)(X)))
    waiting.start()
    while "Waiting for 1 IPU(s)" not in log.text:
        time.sleep(0.01)
    waiting.join(0.3)
    assert waiting.is_alive() and not done
    if ended_by == "kill":
        other_process.kill()
    else:
        other_process.process.stdin.close()
    waiting.join(60)
    assert done[0].shape == (4, 2)


def test_nobody_waits_for_what_there_is_not(opts, monkeypatch):
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    with pytest.raises(poptorch.Error, match="the partition has 4. Set .* TESSERA_IPUS=8"):
        infer(opts, replicationFactor=8)(torch.ones(8, 3))
    with pytest.raises(poptorch.Error, match="no device with the id 99"):
        infer(opts, useIpuId=99)(X)


def test_one_thread_waits_while_another_trains(opts, monkeypatch, log):
    """No lock is held by the one who waits."""
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    model = infer(opts, replicationFactor=4)
    model(X)
    done = []
    waiting = threading.Thread(target=lambda: done.append(infer(opts)(X)))
    waiting.start()
    while "Waiting for 1 IPU(s)" not in log.text:
        time.sleep(0.01)
    model(X)
    assert not done
    model.detachFromDevice()
    waiting.join(60)
    assert len(done) == 1


RACER = """
import json, os, random, sys, time
from poptorch import _core
random.seed(os.getpid())
directory, devices = _core.runtime_directory(), _core.devices(_core.number_of_ipus())
end, wins = time.time() + float(sys.argv[2]), 0
while time.time() < end:
    random.shuffle(devices)
    lease = _core.acquire(directory, devices)
    if lease is None:
        continue
    wins += 1
    for ipu in range(lease.first, lease.first + lease.count):
        # Fails if another process is between these two lines with the same IPU.
        file = os.open(f"{sys.argv[1]}/{ipu}", os.O_CREAT | os.O_EXCL)
        os.close(file)
        os.unlink(f"{sys.argv[1]}/{ipu}")
    lease.release()
assert wins
"""


def test_racing_processes_never_share_an_ipu(tmp_path):
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, tmp_path, "3"], stderr=subprocess.PIPE)
        for _ in range(6)
    ]
    for racer in racers:
        _, error = racer.communicate()
        assert racer.returncode == 0, error.decode()
    assert used() == {}


TRAINING = """
import sys, torch, poptorch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(6)])

    def forward(self, x):
        return poptorch.identity_loss(self.layers(x), "mean")

print("begun", flush=True)
while True:
    model = poptorch.trainingModel(Model(), poptorch.Options().replicationFactor(2))
    for _ in range(20):
        model(torch.ones(4, 8))
    model.destroy()
"""


WAITING = """
import os, sys, poptorch, torch
alone = os.path.join(sys.argv[1], "alone")
for _ in range(3):
    model = poptorch.inferenceModel(torch.nn.Linear(3, 2), poptorch.Options().replicationFactor(4))
    model(torch.ones(4, 3))
    os.close(os.open(alone, os.O_CREAT | os.O_EXCL))
    model(torch.ones(4, 3))
    os.unlink(alone)
    model.destroy()
"""


def test_programs_that_wait_for_each_other_all_end(tmp_path, monkeypatch):
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    programs = [
        subprocess.Popen([sys.executable, "-c", WAITING, tmp_path], stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    for program in programs:
        _, error = program.communicate()
        assert program.returncode == 0, error.decode()


def test_waiting_is_interrupted(monkeypatch, other_process):
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    assert other_process.take(1) == "0"
    program = subprocess.Popen(
        [sys.executable, "-c", WAITING, "."], stderr=subprocess.PIPE, text=True
    )
    while "Waiting for 4 IPU(s)" not in program.stderr.readline():
        assert program.poll() is None
    program.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in program.communicate()[1]
    assert set(used()) == {0}


# A child that is forked while the parent is attached, and lives on.
CHILD = """    if __import__("os").fork() == 0:
        __import__("time").sleep(600)
"""


@pytest.mark.parametrize("fork", [False, True], ids=["alone", "with a forked child"])
def test_a_program_killed_at_any_moment_leaves_no_ipu_reserved(fork):
    """While it compiles, attaches, runs or detaches."""
    code = (
        TRAINING.replace("    model.destroy()", CHILD + "    model.destroy()") if fork else TRAINING
    )
    seen = set()
    for attempt in range(2, 5) if fork else range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            assert process.stdout.readline() == b"begun\n"
            while attempt >= 2 and not used():
                time.sleep(0.01)
            time.sleep(0.1 * (attempt % 3))
            seen.add(len(used()))
            process.kill()
            process.wait()
            assert used() == {}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the children
            process.stdout.close()
    assert 2 in seen, "it was never attached"


def test_a_forked_child_takes_a_device_of_its_own(opts):
    model = infer(opts)
    expected = model(X)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            before = model.isAttachedToDevice()
            same = torch.equal(model(X), expected)
            text = json.dumps([before, same, sorted(used().items())])
        except BaseException as error:
            text = json.dumps(str(error))
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert json.loads(os.read(read, 10_000)) == [False, True, [[0, os.getpid()], [1, child]]]
    assert used() == {0: os.getpid()}, "the child's end does not take the parent's"
    assert torch.equal(model(X), expected)


def test_a_child_keeps_what_its_parent_has_trained(opts):
    model = poptorch.trainingModel(Loss(), opts)
    model(X)
    weight = model.model.layer.weight.clone()
    model(X)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            model(X)
            text = str(model.model.layer.weight.sum().item())
        except BaseException as error:
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    model(X)
    assert float(os.read(read, 1000)) == pytest.approx(model.model.layer.weight.sum().item())
    assert not torch.equal(weight, model.model.layer.weight)


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return poptorch.identity_loss(self.layer(x).square(), "mean")
