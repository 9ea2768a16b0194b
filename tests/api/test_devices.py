# SPDX-License-Identifier: Apache-2.0
"""Virtual IPUs are taken and given back by the models of a process."""

import gc
import os
import pathlib
import subprocess
import sys
import threading
import time

import poptorch
import pytest
import torch
from device_support import OTHER, X, infer, used
from poptorch import _core

pytestmark = pytest.mark.usefixtures("four_ipus")


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


# Where the locks are ------------------------------------------------------------------------------


def test_partitions_of_other_directories_are_others(opts, other_process, tmp_path, monkeypatch):
    assert other_process.take(4) == "0"
    monkeypatch.setenv("TESSERA_RUNTIME_DIR", str(tmp_path / "mine"))
    assert infer(opts)(X).shape == (4, 2)


def test_workers_of_a_test_runner_have_ipus_of_their_own(monkeypatch):
    monkeypatch.delenv("TESSERA_RUNTIME_DIR")
    places = []
    for worker in ("", "gw9998", "gw9999", "../elsewhere"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        places.append(_core.runtime_directory())
    common = places[0]
    assert places == [common, f"{common}/gw9998", f"{common}/gw9999", common]
    for place in places[1:3]:
        os.rmdir(place)


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
