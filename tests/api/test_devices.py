# SPDX-License-Identifier: Apache-2.0
"""Virtual IPUs are taken and given back: within a process, between processes, and when one is
killed."""

import contextlib
import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import poptorch
import pytest
import torch
from poptorch import _core

# A process that takes a device as it is told to, line by line.
OTHER = """
import sys
from poptorch import _core
held = []
print("ready", flush=True)
for line in sys.stdin:
    word, count = line.split()
    if word == "take":
        wanted = [d for d in _core.devices(_core.number_of_ipus()) if d[2] == int(count)]
        lease = _core.acquire(_core.runtime_directory(), wanted)
        held.append(lease)
        print(None if lease is None else lease.first, flush=True)
"""


@pytest.fixture(autouse=True)
def four_ipus(monkeypatch):
    monkeypatch.setenv("TESSERA_IPUS", "4")


def used():
    """IPU -> process."""
    return {ipu: pid for ipu, pid, *_ in _core.holders(_core.runtime_directory())}


class Other:
    """Another process, which takes devices."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "ready\n"

    def take(self, count):
        self.process.stdin.write(f"take {count}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def other():
    made = Other()
    yield made
    made.kill()


def infer(opts, **settings):
    opts = opts.clone()
    for name, value in settings.items():
        getattr(opts, name)(value)
    return poptorch.inferenceModel(torch.nn.Linear(3, 2), opts)


X = torch.ones(4, 3)


# One process --------------------------------------------------------------------------------------


def test_a_model_holds_its_ipus_from_compiling_until_it_is_detached(opts):
    model = infer(opts, replicationFactor=2)
    assert used() == {}
    model.compile(X)
    assert used() == {0: os.getpid(), 1: os.getpid()} and model.isAttachedToDevice()
    model.detachFromDevice()
    assert used() == {} and not model.isAttachedToDevice()
    model.attachToDevice()
    assert len(used()) == 2
    model.destroy()
    assert used() == {}
    model(X)
    assert len(used()) == 2


def test_a_call_attaches_again(opts):
    model = infer(opts)
    first = model(X)
    model.detachFromDevice()
    assert torch.equal(model(X), first) and len(used()) == 1


@pytest.mark.parametrize("kind", ["Always", "OnDemand", "Never"])
def test_when_a_connection_is_made(opts, kind):
    model = infer(opts, connectionType=poptorch.ConnectionType[kind])
    while_compiling, before = [], _core.compile

    def spy(*args):
        while_compiling.append(len(used()))
        return before(*args)

    _core.compile = spy
    try:
        model.compile(X)
    finally:
        _core.compile = before
    assert while_compiling == [int(kind == "Always")]
    assert len(used()) == int(kind != "Never")
    assert model.isAttachedToDevice() == (kind != "Never")


def test_the_ipu_model_needs_no_device(opts):
    held = [infer(opts, useIpuModel=True) for _ in range(6)]
    for model in held:
        model(X)
    assert used() == {} and held[0].isAttachedToDevice()


def test_no_free_device_is_an_error_that_says_who_has_them(opts):
    training = [infer(opts, replicationFactor=2) for _ in range(2)]
    for model in training:
        model(X)
    third = infer(opts)
    text = (
        r"Failed to acquire 1 IPU\(s\): of 4 IPU\(s\) 4 are attached: 4 by this process. Detach a "
        "model .* POPTORCH_WAIT_FOR_IPU=1"
    )
    with pytest.raises(poptorch.Error, match=text) as caught:
        third(X)
    assert caught.value.type == "poptorch_cpp_error" and not third.isCompiled()
    training[0].detachFromDevice()
    assert third(X).shape == (4, 2)
    with pytest.raises(poptorch.Error, match=r"Failed to acquire 2 IPU\(s\)"):
        training[0].attachToDevice()
    assert not training[0].isAttachedToDevice()
    third.destroy()
    training[0].attachToDevice()


def test_a_failed_compilation_keeps_no_ipu(opts):
    with pytest.raises(poptorch.Error) as caught:
        infer(opts, connectionType=poptorch.ConnectionType.Always).compile(X.to("meta"))
    assert used() == {}
    before, _core.compile = _core.compile, failing
    try:
        with pytest.raises(poptorch.Error, match="on purpose") as caught:
            infer(opts).compile(X)
    finally:
        _core.compile = before
    assert used() == {}, f"while {caught} holds a traceback"


def failing(*args):
    raise _core.Error("on purpose")


def test_what_nobody_uses_any_more_is_free(opts):
    gc.disable()
    try:
        for _ in range(9):  # more than there are IPUs
            model = infer(opts)
            model(X)
            model.itself = model  # only the garbage collector finds it
            del model
    finally:
        gc.enable()


def test_a_device_is_a_group_of_neighbours(opts):
    models = [infer(opts) for _ in range(4)]
    for model in models:
        model(X)
    models[0].detachFromDevice()
    models[2].detachFromDevice()
    with pytest.raises(poptorch.Error, match=r"2 IPU\(s\): of 4 IPU\(s\) 2 are attached"):
        infer(opts, replicationFactor=2)(X)
    models[3].detachFromDevice()
    pair = infer(opts, replicationFactor=2)
    pair(X)
    assert set(used()) == {1, 2, 3}


def test_a_device_by_its_number(opts, log):
    assert _core.devices(4) == [
        *((i, i, 1) for i in range(4)),
        (4, 0, 2),
        (5, 2, 2),
        (6, 0, 4),
    ]
    model = infer(opts, useIpuId=3)
    model(X)
    assert set(used()) == {3}
    pair = infer(opts, useIpuId=4)
    pair(X)
    assert set(used()) == {0, 1, 3} and "Device 4 has 2 IPUs, and the model uses 1" in log.text
    with pytest.raises(poptorch.Error, match="Failed to acquire the device with the id 5"):
        infer(opts, useIpuId=5)(X)
    text = r"Expected at least replication factor \* used IPUs \(2\), but the device with the id 2"
    with pytest.raises(poptorch.Error, match=text):
        infer(opts, useIpuId=2, replicationFactor=2)(X)
    with pytest.raises(poptorch.Error, match="no device with the id 7: .* devices 0 to 6"):
        infer(opts, useIpuId=7)(X)


def test_threads_never_share_an_ipu():
    taken, barrier = [], threading.Barrier(8)

    def run():
        barrier.wait()
        for _ in range(300):
            lease = _core.acquire(_core.runtime_directory(), _core.devices(4))
            if lease is None:
                continue
            ipus = set(range(lease.first, lease.first + lease.count))
            assert not any(ipus & held for held in taken), "one is held twice"
            taken.append(ipus)
            time.sleep(0)
            taken.remove(ipus)
            lease.release()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert used() == {}


# Several processes --------------------------------------------------------------------------------


def test_a_busy_partition_names_the_other_process(opts, other):
    assert other.take(4) == "0"
    with pytest.raises(poptorch.Error) as caught:
        infer(opts)(X)
    assert f"4 by process {other.process.pid} (" in str(caught.value)
    assert " -c " in str(caught.value), "its command"
    other.kill()
    assert infer(opts)(X).shape == (4, 2)


def test_an_ipu_of_a_killed_process_is_free_at_once(other):
    for _ in range(3):
        assert other.take(1) != "None"
    os.kill(other.process.pid, signal.SIGKILL)
    other.process.wait()
    assert used() == {}


@pytest.mark.parametrize("ended_by", ["kill", "exit"])
def test_waiting_until_another_process_ends(opts, other, monkeypatch, log, ended_by):
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    assert other.take(4) == "0"
    done = []
    waiting = threading.Thread(target=lambda: done.append(infer(opts)(X)))
    waiting.start()
    while "Waiting for 1 IPU(s)" not in log.text:
        time.sleep(0.01)
    waiting.join(0.3)
    assert waiting.is_alive() and not done
    if ended_by == "kill":
        other.kill()
    else:
        other.process.stdin.close()
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


def test_waiting_is_interrupted(monkeypatch, other):
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    assert other.take(1) == "0"
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


# Where the locks are ------------------------------------------------------------------------------


def test_partitions_of_other_directories_are_others(opts, other, tmp_path, monkeypatch):
    assert other.take(4) == "0"
    monkeypatch.setenv("TESSERA_RUNTIME_DIR", str(tmp_path / "mine"))
    assert infer(opts)(X).shape == (4, 2)


@pytest.mark.parametrize("place", ["file", "file/ipus", "/proc/nothing"])
def test_a_directory_that_cannot_be_used(opts, tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("")
    directory = place if place[0] == "/" else str(tmp_path / place)
    monkeypatch.setenv("TESSERA_RUNTIME_DIR", directory)
    with pytest.raises(poptorch.Error, match="TESSERA_RUNTIME_DIR") as caught:
        infer(opts)(X)
    assert directory in str(caught.value) and "internal" not in str(caught.value)


def test_the_number_of_ipus(monkeypatch):
    for number in (0, 1, 3, 6, 1024):
        monkeypatch.setenv("TESSERA_IPUS", str(number))
        devices = _core.devices(_core.number_of_ipus())
        assert [d[0] for d in devices] == list(range(len(devices)))
        assert all(first % count == 0 and first + count <= number for _, first, count in devices)
        assert sum(d[2] == 1 for d in devices) == number
    for bad in ("-1", "2.0", "4 ", "1e3", "99999999999999999999", "1025"):
        monkeypatch.setenv("TESSERA_IPUS", bad)
        with pytest.raises(poptorch.Error, match="environment variable TESSERA_IPUS"):
            poptorch.ipuHardwareIsAvailable()


def test_ipus_that_there_are_not_are_refused():
    for device in ((0, -1, 1), (0, 0, 0), (0, 1024, 1), (0, 1, 1024), (0, 2**31 - 1, 2**31 - 1)):
        with pytest.raises(_core.Error, match="there are no IPUs"):
            _core.acquire(_core.runtime_directory(), [device])
        with pytest.raises(_core.Error, match="there are no IPUs"):
            _core.reset_device(_core.runtime_directory(), device)


def test_directories_that_are_not_used_any_more_are_closed(opts, tmp_path, monkeypatch):
    model = infer(opts)
    model(X)
    first = os.environ["TESSERA_RUNTIME_DIR"]
    opened = []
    for number in range(50):
        monkeypatch.setenv("TESSERA_RUNTIME_DIR", str(tmp_path / str(number)))
        assert used() == {}
        opened.append(len(os.listdir("/proc/self/fd")))
    assert opened[-1] == opened[1]
    monkeypatch.setenv("TESSERA_RUNTIME_DIR", first)
    assert used() == {0: os.getpid()}
    done = subprocess.run(
        [sys.executable, "-c", OTHER], input="take 4\n", capture_output=True, text=True
    )
    assert done.stdout == "ready\nNone\n", "it is still locked"


def test_a_damaged_lock_file_is_used_all_the_same(opts):
    path = pathlib.Path(_core.runtime_directory()) / "ipus.lock"
    path.write_bytes(os.urandom(5000))
    model = infer(opts)
    assert model(X).shape == (4, 2) and used() == {0: os.getpid()}
