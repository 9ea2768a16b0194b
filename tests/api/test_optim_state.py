# SPDX-License-Identifier: Apache-2.0
"""State of optimizers: its names, files and new processes, loading before and after compilation."""

import copy
import pickle
import subprocess
import sys

import poptorch
import pytest
import torch
from api_support import Regression
from poptorch import optim

HALF = torch.float16
#: Values of every optimizer that has state, by name: run in this process and in another.
KINDS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "sgd combined": lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, use_combined_accum=True, velocity_scaling=4.0
    ),
    "sgd half": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, velocity_accum_type=HALF),
    "adam": lambda p: optim.Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.1, first_order_momentum_accum_type=HALF),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "rmsprop tf": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, use_tf_variant=True),
    "lamb": lambda p: optim.LAMB(p, lr=0.1),
    "scaled": lambda p: optim.Adam(p, lr=0.1, loss_scaling=64.0, max_grad_norm=0.5),
}
STEPS = 5


def fixed_batch():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)


def start(name, seed=5):
    """(model, optimizer, executor) with two accumulated micro-batches per call."""
    torch.manual_seed(seed)
    model = Regression()
    optimizer = KINDS[name](model.parameters())
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.Training.gradientAccumulation(2)
    return model, optimizer, poptorch.trainingModel(model, opts, optimizer)


def continue_from(path):
    """In a new process: loads every kind from `path`, trains on, and saves the weights there."""
    saved = torch.load(path)
    results = {}
    for name in KINDS:
        model, optimizer, executor = start(name, seed=99)
        model.load_state_dict(saved[name]["model"])
        optimizer.load_state_dict(saved[name]["optimizer"])
        for _ in range(STEPS):
            executor(*fixed_batch())
        results[name] = dict(model.state_dict())
    torch.save(results, path)


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """name -> (weights of an uninterrupted run, of one that went on in another process)."""
    folder = tmp_path_factory.mktemp("state")
    path = folder / "checkpoint.pt"
    saved, uninterrupted = {}, {}
    for name in KINDS:
        model, optimizer, executor = start(name)
        for step in range(2 * STEPS):
            if step == STEPS:
                saved[name] = copy.deepcopy(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                )
            executor(*fixed_batch())
        uninterrupted[name] = dict(model.state_dict())
    torch.save(saved, path)
    script = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        f"import torch; torch.set_num_threads({torch.get_num_threads()})\n"
        f"import test_optim_state; test_optim_state.continue_from({str(path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return uninterrupted, torch.load(path)


@pytest.mark.parametrize("name", KINDS)
def test_a_file_continues_in_a_new_process_to_the_same_bits(continued, name):
    for key, want in continued[0][name].items():
        assert torch.equal(continued[1][name][key], want), key


NAMES = {
    "sgd": {"Accl___", "Accum___"},
    "sgd combined": {"Accl___"},
    "adam": {"Accl1___", "Accl2___", "Accl3___", "Accum___", "Step___"},
    "adamw": {"Accl1___", "Accl2___", "Accum___", "Step___"},
    "rmsprop": {"Accl1___", "Accl2___", "Accl3___", "Accum___"},
    "rmsprop tf": {"Accl1___", "Accl2___", "Accum___"},
    "lamb": {"Accl1___", "Accl2___", "Accum___", "Step___"},
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_state(name):
    _, optimizer, executor = start(name)
    before = optimizer.state_dict()
    assert before["ipu_state"] is None and before["ipu_param"] is None
    executor(*fixed_batch())
    after = optimizer.state_dict()
    expected = {prefix + p for prefix in NAMES[name] for p in ("linear.weight", "linear.bias")}
    assert set(after["ipu_state"]) == expected
    assert after["ipu_param"]["learningRate___default___FLOAT"] == torch.tensor(
        optimizer.param_groups[0]["lr"]
    )
    assert after["ipu_param"]["lossScaling_FLOAT"] == 1.0
    assert after.keys() == {"state", "param_groups", "ipu_state", "ipu_param"}


def test_the_state_holds_what_torch_holds():
    model, optimizer, executor = start("adamw")
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    executor.setOptimizer(optimizer)
    twin = copy.deepcopy(model)
    reference = torch.optim.AdamW(twin.parameters(), lr=0.1)
    for _ in range(3):
        executor(*fixed_batch())
        reference.zero_grad()
        for x, target in zip(*(t.split(4) for t in fixed_batch()), strict=True):
            (twin(x, target)[1] / 2).backward()
        reference.step()
    ours = optimizer.state_dict()["ipu_state"]
    theirs = reference.state[twin.linear.weight]
    torch.testing.assert_close(ours["Accl1___linear.weight"], theirs["exp_avg"])
    torch.testing.assert_close(ours["Accl2___linear.weight"], theirs["exp_avg_sq"])
    assert ours["Step___linear.weight"] == 3
    assert ours["Accum___linear.weight"].abs().max() == 0  # cleared by the update


def test_reading_twice_asks_the_device_once(monkeypatch):
    _, optimizer, executor = start("adam")
    executor(*fixed_batch())
    reads = []
    device = executor._device_optimizer
    original = device.read
    monkeypatch.setattr(device, "read", lambda: reads.append(1) or original())
    first, second = optimizer.state_dict(), optimizer.state_dict()
    assert first["ipu_state"] is second["ipu_state"] and len(reads) == 1
    executor(*fixed_batch())
    optimizer.state_dict()
    assert len(reads) == 2


def test_state_loaded_after_compilation():
    model, optimizer, executor = start("sgd")
    executor(*fixed_batch())
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    executor(*fixed_batch())
    expected = model.linear.weight.detach().clone()
    executor.load_state_dict(weights)
    optimizer.load_state_dict(state)
    executor(*fixed_batch())
    assert torch.equal(model.linear.weight.detach(), expected)


def test_state_loaded_after_compilation_brings_its_values():
    _, optimizer, executor = start("sgd")
    executor(*fixed_batch())
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["lr"] = 0.0
    optimizer.load_state_dict(state)
    before = executor.model.linear.weight.detach().clone()
    executor(*fixed_batch())
    assert torch.equal(executor.model.linear.weight.detach(), before)


def test_loaded_state_goes_out_with_set_optimizer():
    _, optimizer, executor = start("sgd")
    executor(*fixed_batch())
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.host_state_is_dirty
    executor.setOptimizer(optimizer)
    assert not optimizer.host_state_is_dirty


def test_sending_state_sends_the_weights_too():
    model, optimizer, executor = start("sgd")
    executor(*fixed_batch())
    state = copy.deepcopy(optimizer.state_dict())
    executor(*fixed_batch())
    trained = model.linear.weight.detach().clone()  # fetched: what follows changes the host's
    model.linear.weight.data.zero_()
    optimizer.load_state_dict(state)
    executor.setOptimizer(optimizer)
    executor.copyWeightsToHost()
    assert model.linear.weight.detach().abs().max() == 0
    assert trained.abs().max() > 0


def test_missing_entries_are_skipped_with_a_warning(log):
    _, optimizer, executor = start("adam")
    executor(*fixed_batch())
    state = copy.deepcopy(optimizer.state_dict())
    kept = state["ipu_state"]["Accl2___linear.weight"]
    del state["ipu_state"]["Accl1___linear.weight"]
    del state["ipu_param"]["learningRate___default___FLOAT"]
    state["ipu_state"]["Accl2___linear.weight"] = kept * 2
    optimizer.load_state_dict(state)
    executor.setOptimizer(optimizer)
    assert "writeOptimizerState: ignoring missing state Accl1___linear.weight" in log.text
    assert "writeOptimizerState: ignoring missing parameter learningRate___default" in log.text
    optimizer.ipu_state_is_dirty = True
    after = optimizer.state_dict()["ipu_state"]
    assert torch.equal(after["Accl2___linear.weight"], kept * 2)
    assert after["Accl1___linear.weight"].abs().max() > 0


def test_state_of_another_shape_is_refused():
    _, optimizer, executor = start("adam")
    executor(*fixed_batch())
    state = copy.deepcopy(optimizer.state_dict())
    state["ipu_state"]["Accl1___linear.weight"] = torch.zeros(1)
    optimizer.load_state_dict(state)
    with pytest.raises(poptorch.Error, match="optimizer state Accl1___linear.weight has shape"):
        executor(*fixed_batch())


def test_only_states_of_the_device_can_be_loaded():
    model = Regression()
    ours = optim.SGD(model.parameters(), lr=0.1)
    theirs = torch.optim.SGD(model.parameters(), lr=0.5).state_dict()
    with pytest.raises(RuntimeError, match="Only IPU optimizer states can be loaded onto the IPU."):
        ours.load_state_dict(theirs)
    assert ours.param_groups[0]["lr"] == 0.5  # torch's part is loaded before
    with pytest.raises(
        RuntimeError, match="Cannot load optimizer state dictionary because it is empty."
    ):
        ours.set_state_dict({})


def test_torch_optimizers_carry_no_state_of_the_device():
    model = Regression()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    opts = poptorch.Options().showCompilationProgressBar(False)
    poptorch.trainingModel(model, opts, optimizer)(*fixed_batch())
    assert optimizer.state_dict().keys() == {"state", "param_groups"}
    assert optimizer.state_dict()["state"] == {}


def test_the_raw_getter_asks_nobody():
    _, optimizer, executor = start("sgd")
    assert not optimizer.has_state()
    executor(*fixed_batch())
    assert optimizer.get_state_dict()["ipu_state"] is None and optimizer.ipu_state_is_dirty
    optimizer.state_dict()
    assert optimizer.has_state() and not optimizer.ipu_state_is_dirty


def test_optimizers_can_be_pickled_with_their_state():
    model, optimizer, executor = start("adam")
    executor(*fixed_batch())
    loaded = pickle.loads(pickle.dumps(optimizer))
    torch.testing.assert_close(
        loaded.get_state_dict()["ipu_state"], optimizer.state_dict()["ipu_state"]
    )
    assert loaded.host_state_is_dirty
    assert not loaded.variable_attrs.isConstant("lr") and loaded.variable_attrs.isConstant("eps")


def test_state_survives_destroy_and_detach():
    model, optimizer, executor = start("adam")
    twin, _, uninterrupted = start("adam")
    for step in range(4):
        uninterrupted(*fixed_batch())
        executor(*fixed_batch())
        if step == 1:
            executor.destroy()
        elif step == 2:
            executor.detachFromDevice()
    assert torch.equal(model.linear.weight.detach(), twin.linear.weight.detach())
    assert optimizer.state_dict()["ipu_state"]["Step___linear.bias"] == 4
