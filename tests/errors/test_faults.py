# SPDX-License-Identifier: Apache-2.0
"""Failures of devices: what is raised, what is lost, and how a program goes on."""

import itertools
import os
import pathlib
import pickle
import subprocess
import sys

import poptorch
import pytest
import torch
from api_support import Regression
from poptorch import _core
from poptorch.running import faults

LR = 0.1


@pytest.fixture(autouse=True)
def from_the_first_call(monkeypatch):
    monkeypatch.setattr(faults, "_calls", itertools.count(1))


def reset_all():
    """As gc-reset, from a process of its own."""
    command = [sys.executable, "-m", "tessera_tools.gc_reset"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def trainer(regression, opts, optimizer=None):
    optimizer = optimizer or poptorch.optim.SGD(regression.parameters(), lr=LR, momentum=0.9)
    return poptorch.trainingModel(regression, opts, optimizer)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


# What is raised -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, cls, kind",
    [
        ("IPU_RESET", poptorch.RecoverableError, "poplar_recoverable_runtime_error"),
        ("LINK_RESET", poptorch.RecoverableError, "poplar_recoverable_runtime_error"),
        ("PARTITION_RESET", poptorch.RecoverableError, "poplar_recoverable_runtime_error"),
        ("FULL_RESET", poptorch.RecoverableError, "poplar_recoverable_runtime_error"),
        ("UNRECOVERABLE", poptorch.UnrecoverableError, "poplar_unrecoverable_runtime_error"),
        ("ERROR", poptorch.Error, "poptorch_cpp_error"),
    ],
)
def test_each_class_at_its_call(regression, batch, opts, monkeypatch, name, cls, kind):
    monkeypatch.setenv("TESSERA_FAULT", f"{name}@3")
    model = poptorch.inferenceModel(regression, opts)
    for _ in range(2):
        model(batch[0])
    with pytest.raises(poptorch.Error) as caught:
        model(batch[0])
    error = caught.value
    assert type(error) is cls and error.type == kind
    assert error.message == f"TESSERA_FAULT: {name} at call 3"
    assert getattr(error, "recovery_action", name) == name
    assert ("Recovery action required" in str(error)) == (cls is poptorch.RecoverableError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_calls_of_all_models_count_and_a_fault_happens_once(regression, batch, opts, monkeypatch):
    monkeypatch.setenv("TESSERA_FAULT", "IPU_RESET@2, ERROR@5")
    first, second = (poptorch.inferenceModel(regression, opts) for _ in range(2))
    first(batch[0])
    with pytest.raises(poptorch.RecoverableError):
        second(batch[0])
    first(batch[0])
    second.detachFromDevice()
    second(batch[0])
    with pytest.raises(poptorch.Error, match="ERROR at call 5"):
        first(batch[0])
    for _ in range(4):
        first(batch[0])
        second(batch[0])


@pytest.mark.parametrize(
    "text", ["IPU_RESET", "IPU_RESET@0", "IPU_RESET@-1", "ipu_reset@1", "HALT@1", "ERROR@1,", "@1"]
)
def test_faults_that_there_are_not(regression, batch, opts, monkeypatch, text):
    monkeypatch.setenv("TESSERA_FAULT", text)
    with pytest.raises(poptorch.Error, match="TESSERA_FAULT has .*, which is not class@call"):
        poptorch.inferenceModel(regression, opts)(batch[0])


def test_a_plain_error_leaves_the_model_as_it_was(regression, batch, opts, monkeypatch):
    monkeypatch.setenv("TESSERA_FAULT", "ERROR@2")
    model = poptorch.inferenceModel(regression, opts)
    expected = model(batch[0])
    with pytest.raises(poptorch.Error):
        model(batch[0])
    assert model.isAttachedToDevice() and torch.equal(model(batch[0]), expected)


# Going on -----------------------------------------------------------------------------------------


def test_a_failed_device_stays_failed_until_it_is_detached(regression, batch, opts, monkeypatch):
    monkeypatch.setenv("TESSERA_FAULT", "IPU_RESET@2")
    model = trainer(regression, opts)
    model(*batch)
    for _ in range(3):
        with pytest.raises(poptorch.RecoverableError, match="IPU_RESET at call 2"):
            model(*batch)
    with pytest.raises(poptorch.RecoverableError):
        model.copyWeightsToHost()
    assert model.isAttachedToDevice()
    with pytest.raises(poptorch.Error, match="Device is already attached"):
        model.attachToDevice()
    model.detachFromDevice()
    assert not model.isAttachedToDevice() and not _core.holders(_core.runtime_directory())
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        model.detachFromDevice()
    with pytest.raises(poptorch.RecoverableError):
        model.copyWeightsToHost()
    model(*batch)
    assert model.isAttachedToDevice()


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: poptorch.optim.SGD(p, lr=LR, momentum=0.9),
        lambda p: poptorch.optim.Adam(p, lr=LR),
        lambda p: poptorch.optim.RMSprop(p, lr=LR),
        lambda p: torch.optim.Rprop(p, lr=LR),
        lambda p: torch.optim.Adagrad(p, lr=LR, initial_accumulator_value=0.5),
    ],
    ids=["SGD", "Adam", "RMSprop", "Rprop", "Adagrad"],
)
def test_training_goes_on_from_the_weights_of_the_host(
    regression, batch, opts, monkeypatch, log, optimizer
):
    """And from a new state of the optimizer, if nobody has read it."""
    monkeypatch.setenv("TESSERA_FAULT", "IPU_RESET@4")
    model = trainer(regression, opts, optimizer(regression.parameters()))
    model(*batch)
    model(*batch)
    model.copyWeightsToHost()
    kept = weights(regression)
    model(*batch)
    with pytest.raises(poptorch.RecoverableError):
        model(*batch)
    assert equal(weights(regression), kept), "what was trained since is lost"
    assert log.text.count("The device has failed: what the model has learnt since") == 1
    model.detachFromDevice()
    model.attachToDevice()
    again = Regression()
    again.load_state_dict(kept)
    new = trainer(again, opts, optimizer(again.parameters()))
    for _ in range(3):
        assert torch.equal(model(*batch)[1], new(*batch)[1])
    assert equal(weights(regression), weights(again))


def test_a_state_of_the_optimizer_that_was_read_is_kept(regression, batch, opts, monkeypatch):
    monkeypatch.setenv("TESSERA_FAULT", "IPU_RESET@4")
    model = trainer(regression, opts)
    model(*batch)
    model(*batch)
    kept, state = weights(regression), model._optimizer.state_dict()
    model(*batch)
    with pytest.raises(poptorch.RecoverableError):
        model(*batch)
    model.detachFromDevice()
    model.attachToDevice()
    again = Regression()
    again.load_state_dict(kept)
    new = trainer(again, opts)
    new._optimizer.load_state_dict(state)
    for _ in range(3):
        assert torch.equal(model(*batch)[1], new(*batch)[1])


def test_random_numbers_start_again(batch, opts, monkeypatch):
    monkeypatch.setenv("TESSERA_FAULT", "IPU_RESET@3")
    model = poptorch.inferenceModel(torch.nn.Dropout(), opts.clone().randomSeed(7))
    x = torch.ones(64)
    first, second = model(x), model(x)
    with pytest.raises(poptorch.RecoverableError):
        model(x)
    model.detachFromDevice()
    assert torch.equal(model(x), first) and torch.equal(model(x), second)


def test_half_of_an_accumulation_is_forgotten(regression, batch, opts, monkeypatch):
    monkeypatch.setenv("TESSERA_FAULT", "IPU_RESET@1")
    accumulating = opts.clone()
    accumulating.Training.gradientAccumulation(2)
    before = weights(regression)
    model = trainer(regression, accumulating)
    with pytest.raises(poptorch.RecoverableError):
        model(*batch)
    model.detachFromDevice()
    loss = model(*batch)[1]
    again = Regression()
    again.load_state_dict(before)
    assert torch.equal(trainer(again, accumulating)(*batch)[1], loss)
    assert equal(weights(regression), weights(again))


def test_a_model_that_shares_the_weights_goes_on_too(regression, batch, opts, monkeypatch):
    monkeypatch.setenv("TESSERA_FAULT", "IPU_RESET@3")
    training = trainer(regression, opts)
    inference = poptorch.inferenceModel(training, opts)
    training(*batch)
    expected = inference(batch[0])
    with pytest.raises(poptorch.RecoverableError):
        training(*batch)
    assert torch.equal(inference(batch[0]), expected), "of the weights that it took over"
    training.detachFromDevice()
    training(*batch)
    assert not torch.equal(inference(batch[0]), expected)


def test_after_an_unrecoverable_error_only_destroy_is_left(regression, batch, opts, monkeypatch):
    monkeypatch.setenv("TESSERA_FAULT", "UNRECOVERABLE@2")
    model = trainer(regression, opts)
    model(*batch)
    kept = weights(regression)
    for _ in range(2):
        with pytest.raises(poptorch.UnrecoverableError):
            model(*batch)
    model.detachFromDevice()
    with pytest.raises(poptorch.UnrecoverableError):
        model.attachToDevice()
    with pytest.raises(poptorch.UnrecoverableError):
        model(*batch)
    model.destroy()
    assert equal(weights(regression), kept)
    model(*batch)


def test_a_failed_model_can_be_destroyed_or_pickled(regression, batch, opts, monkeypatch):
    monkeypatch.setenv("TESSERA_FAULT", "IPU_RESET@2")
    model = trainer(regression, opts)
    model(*batch)
    kept = weights(regression)
    with pytest.raises(poptorch.RecoverableError):
        model(*batch)
    twin = pickle.loads(pickle.dumps(model))
    assert equal(weights(twin.model), kept)
    model.destroy()
    assert equal(weights(regression), kept) and not model.isCompiled()
    assert not _core.holders(_core.runtime_directory())
    assert torch.equal(model(*batch)[1], twin(*batch)[1])


# Devices that are really gone ---------------------------------------------------------------------


def test_an_ipu_that_another_process_resets(regression, batch, opts):
    model = trainer(regression, opts)
    model(*batch)
    kept = weights(regression)
    model(*batch)
    assert f"in use by process {os.getpid()}" in reset_all()
    with pytest.raises(poptorch.RecoverableError, match="IPU 0 was reset by process") as caught:
        model(*batch)
    assert caught.value.recovery_action == "IPU_RESET"
    assert caught.value.type == "poplar_recoverable_runtime_error"
    assert equal(weights(regression), kept)
    model.detachFromDevice()
    model.attachToDevice()
    model(*batch)
    assert not equal(weights(regression), kept)


THIEF = """
from poptorch import _core
lease = _core.acquire(_core.runtime_directory(), [(0, 0, 1)])
print(lease is not None, flush=True)
input()
"""


def test_an_ipu_that_is_lost_to_another_process(regression, batch, opts):
    model = poptorch.inferenceModel(regression, opts)
    expected = model(batch[0])
    # What drops the locks of a process: it closes the file somewhere else.
    (pathlib.Path(_core.runtime_directory()) / "ipus.lock").open().close()
    thief = subprocess.Popen(
        [sys.executable, "-c", THIEF], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert thief.stdout.readline() == "True\n"
        with pytest.raises(poptorch.RecoverableError, match="lost to process") as caught:
            model(batch[0])
        assert str(thief.pid) in str(caught.value)
        model.detachFromDevice()
        assert torch.equal(model(batch[0]), expected)
        held = {ipu: pid for ipu, pid, *_ in _core.holders(_core.runtime_directory())}
        assert held == {0: thief.pid, 1: os.getpid()}
    finally:
        thief.communicate("\n")
