# SPDX-License-Identifier: Apache-2.0
"""Weights, buffers and optimizer state without CPU memory: an error with the name, no crash."""

import copy

import poptorch
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x, target=None):
        out = self.linear(x) + self.shift
        return out if target is None else (out, nn.functional.mse_loss(out, target))


def wrapped(model, training, opts):
    return poptorch.trainingModel(model, opts) if training else poptorch.inferenceModel(model, opts)


def call(executor, training, batch):
    return executor(*batch) if training else executor(batch[0])


@pytest.fixture(params=(False, True), ids=("inference", "training"))
def training(request):
    return request.param


def test_a_model_on_the_meta_device(training, opts, batch):
    with torch.device("meta"):
        model = Shifted()
    executor = wrapped(model, training, opts)
    with pytest.raises(poptorch.Error, match=r"linear.weight is on the meta device and has no val"):
        call(executor, training, batch)
    executor.destroy()
    model.to_empty(device="cpu")
    nn.init.zeros_(model.linear.weight)
    nn.init.zeros_(model.linear.bias)
    nn.init.ones_(model.shift)
    result = call(wrapped(model, training, opts), training, batch)
    assert torch.equal(result[0] if training else result, torch.ones(4, 2))


def test_a_buffer_on_the_meta_device(training, opts, batch):
    model = Shifted()
    model.shift = torch.ones(2, device="meta")
    with pytest.raises(poptorch.Error, match="shift is on the meta device"):
        call(wrapped(model, training, opts), training, batch)


def test_meta_tensors_that_the_program_does_not_use_do_no_harm(training, opts, batch):
    model = Shifted()
    model.register_buffer("unused", torch.ones(2, device="meta"))
    expected = model(batch[0]).detach()
    result = call(wrapped(model, training, opts), training, batch)
    torch.testing.assert_close(result[0] if training else result, expected)
    assert model.unused.is_meta


def test_a_model_made_without_values(training, opts, batch):
    with FakeTensorMode():
        model = Shifted()
    with pytest.raises(poptorch.Error, match=r"(linear.weight|shift) has no memory") as error:
        call(wrapped(model, training, opts), training, batch)
    assert "FakeTensor" not in str(error.value)


@pytest.mark.parametrize("left", (0, 8))
@pytest.mark.parametrize("name", ("linear.weight", "shift"))
@pytest.mark.parametrize("when", ("compile", "upload", "download"))
def test_storages_that_were_freed_or_shrunk(when, name, left, training, opts, batch):
    model = Shifted()
    model.shift = torch.ones(16)[2:4]
    tensor = dict([*model.named_parameters(), *model.named_buffers()])[name]
    executor = wrapped(model, training, opts)
    if when != "compile":
        call(executor, training, batch)
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    storage.resize_(left)
    problem = "has no memory" if left == 0 else "its storage has 8"
    with pytest.raises(poptorch.Error, match=f"{name} .*{problem}"):
        if when == "compile":
            call(executor, training, batch)
        elif when == "upload":
            executor.copyWeightsToDevice()
        else:
            executor.copyWeightsToHost()
    storage.resize_(size)
    call(executor, training, batch)


def test_a_model_moved_to_the_meta_device_after_it_was_compiled(opts, batch):
    model = Shifted()
    inference = poptorch.inferenceModel(model, opts)
    inference(batch[0])
    model.to("meta")
    with pytest.raises(poptorch.Error, match=r"is on the meta device"):
        inference.copyWeightsToDevice()


@pytest.mark.parametrize("damage", (lambda t: t.to("meta"), lambda t: freed(t)))
def test_optimizer_state_without_memory(damage, opts, batch):
    model = Shifted()
    optimizer = poptorch.optim.Adam(model.parameters())
    training = poptorch.trainingModel(model, opts, optimizer)
    training(*batch)
    state = copy.deepcopy(optimizer.state_dict())
    state["ipu_state"] = {name: damage(value) for name, value in state["ipu_state"].items()}
    optimizer.load_state_dict(state)
    with pytest.raises(poptorch.Error, match="exp_avg:linear.weight"):
        training(*batch)


def freed(tensor):
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def test_constants_without_memory(opts, batch):
    class Outside(nn.Module):
        def forward(self, x):
            return x + shift

    shift = freed(torch.ones(3))
    with pytest.raises(poptorch.Error, match="A tensor that forward uses.* has no memory"):
        poptorch.inferenceModel(Outside(), opts)(batch[0])


def test_weights_of_other_layouts_are_refused(opts, batch):
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.eye(3).to_sparse())

        def forward(self, x):
            return x @ self.weight

    with pytest.raises(poptorch.Error, match=r"weight is of layout torch.sparse_coo"):
        poptorch.inferenceModel(Sparse(), opts)(batch[0])


def test_the_callers_default_device_changes_nothing(training, opts, batch):
    torch.manual_seed(0)
    model = Shifted()
    twin = copy.deepcopy(model)
    with torch.device("meta"):
        executor = wrapped(model, training, opts)
        for _ in range(2):
            result = call(executor, training, batch)
        executor.copyWeightsToHost()
        executor.copyWeightsToDevice()
        state = model.state_dict()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.01)
    for _ in range(2):
        expected = call(twin, training, batch)
        if training:
            optimizer.zero_grad()
            expected[1].backward()
            optimizer.step()
    out, wanted = (result[0], expected[0]) if training else (result, expected)
    torch.testing.assert_close(out, wanted.detach())
    torch.testing.assert_close(dict(state), dict(twin.state_dict()))


def test_values_behind_the_bits_of_a_view_are_sent(opts, batch):
    model = Shifted()
    model.shift = torch.complex(torch.zeros(2), torch.tensor([1.0, 2.0])).conj().imag
    assert model.shift.is_neg()
    expected = model(batch[0]).detach()
    torch.testing.assert_close(poptorch.inferenceModel(model, opts)(batch[0]), expected)
