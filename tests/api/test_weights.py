# SPDX-License-Identifier: Apache-2.0
"""Weights on host and device: who has the newest, and when they move."""

import copy
import io
import pickle
import subprocess
import sys

import poptorch
import pytest
import torch
from api_support import Regression, eager_step


@pytest.fixture
def trained(regression, batch, opts):
    """A training executor after one call, and an eager twin after one step."""
    twin = copy.deepcopy(regression)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    training = poptorch.trainingModel(
        regression, opts, torch.optim.SGD(regression.parameters(), lr=0.1)
    )
    training(*batch)
    eager_step(twin, optimizer, *batch)
    return training, regression, twin


READS = {
    "attribute": lambda m, e: m.linear.weight.data,
    "arithmetic": lambda m, e: m.linear.weight * 1,
    "parameters": lambda m, e: next(iter(m.parameters())).detach(),
    "named_parameters": lambda m, e: dict(m.named_parameters())["linear.weight"].detach(),
    "state_dict": lambda m, e: m.state_dict()["linear.weight"],
    "state_dict of a child": lambda m, e: m.linear.state_dict()["weight"],
    "executor": lambda m, e: e.linear.weight.detach(),
    "executor state_dict": lambda m, e: e.state_dict()["linear.weight"],
    "numpy": lambda m, e: torch.from_numpy(m.linear.weight.detach().numpy().copy()),
    "keyword of a function": lambda m, e: torch.add(torch.zeros(2, 3), other=m.linear.weight),
    "list": lambda m, e: torch.stack([m.linear.weight])[0],
    "functional": lambda m, e: torch.nn.functional.linear(torch.eye(3), m.linear.weight).t(),
    "deepcopy": lambda m, e: copy.deepcopy(m).linear.weight,
    "pickle": lambda m, e: pickle.loads(pickle.dumps(m)).linear.weight,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reading_weights_after_training_gives_the_newest(trained, read):
    training, model, twin = trained
    value = read(model, training)
    with torch.no_grad():
        torch.testing.assert_close(torch.Tensor(value), twin.linear.weight.detach())


def test_calling_the_users_model_uses_the_newest_weights(trained, batch):
    _, model, twin = trained
    torch.testing.assert_close(model(batch[0]), twin(batch[0]))


def test_looking_at_shapes_fetches_nothing(trained):
    training, model, _ = trained
    assert model.linear.weight.shape == (2, 3)
    assert model.linear.weight.requires_grad and model.linear.weight.dtype == torch.float32
    assert training._sync.stale
    assert training.copyWeightsToHostIfNeeded() is True
    assert training.copyWeightsToHostIfNeeded() is False


def test_weights_of_the_host_are_sent_unless_the_device_has_newer_ones(trained, batch):
    training, model, twin = trained
    assert training.copyWeightsToDeviceIfNeeded() is False
    with torch.no_grad():
        torch.testing.assert_close(model.linear.weight, twin.linear.weight)  # what was trained
        model.linear.weight.fill_(0.5)
        twin.linear.weight.fill_(0.5)
    assert training.copyWeightsToDeviceIfNeeded() is True
    torch.testing.assert_close(training(*batch)[0], twin(batch[0]))


def test_classes_change_while_wrapped_and_come_back(trained):
    training, model, _ = trained
    weight = model.linear.weight
    assert type(model).__name__ == "PoptorchRegression" and isinstance(model, Regression)
    assert isinstance(weight, torch.nn.Parameter) and type(weight) is not torch.nn.Parameter
    assert [name for name, _ in model.named_parameters()] == ["linear.weight", "linear.bias"]
    training.destroy()
    assert type(model) is Regression
    assert type(weight) is torch.nn.Parameter and model.linear.weight is weight


def test_printing_a_weight_looks_like_torch(trained):
    _, model, twin = trained
    assert "Parameter containing" in repr(model.linear.weight)
    assert "Poptorch" not in repr(model.linear.weight)


def test_never_compiled_wrap_can_be_undone(regression):
    training = poptorch.trainingModel(regression)
    with pytest.raises(RuntimeError, match="Model has already been wrapped in"):
        poptorch.trainingModel(regression)
    with pytest.raises(RuntimeError, match="Model has already been wrapped in"):
        poptorch.trainingModel(training)
    training.destroy()
    poptorch.trainingModel(regression).destroy()


def test_state_dict_is_a_plain_copy(trained):
    training, model, _ = trained
    state = model.state_dict()
    assert all(type(value) is torch.Tensor for value in state.values())
    state["linear.weight"].zero_()
    assert model.linear.weight.abs().sum() > 0
    kept = model.state_dict()["linear.weight"].clone()
    model.state_dict()
    torch.testing.assert_close(kept, model.state_dict()["linear.weight"])


def test_saved_model_loads_without_the_package(trained, tmp_path):
    _, model, twin = trained
    torch.save(model.linear.state_dict(), tmp_path / "weights.pt")
    program = (
        "import sys, torch; state = torch.load(sys.argv[1]);"
        "assert not any('poptorch' in m for m in sys.modules); print(state['weight'].sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "weights.pt")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) == pytest.approx(twin.linear.weight.sum().item(), rel=1e-5)


def test_whole_model_can_be_saved(trained):
    _, model, twin = trained
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is Regression and type(loaded.linear.weight) is torch.nn.Parameter
    torch.testing.assert_close(loaded.linear.weight, twin.linear.weight)


def test_inference_follows_training(trained, batch, opts):
    training, model, twin = trained
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    inference = poptorch.inferenceModel(model, opts)
    for _ in range(3):
        torch.testing.assert_close(inference(batch[0]), twin(batch[0]).detach())
        training(*batch)
        eager_step(twin, optimizer, *batch)


def test_inference_of_a_part_follows_training(trained, batch, opts):
    training, model, twin = trained
    inference = poptorch.inferenceModel(model.linear, opts)
    torch.testing.assert_close(inference(batch[0]), twin.linear(batch[0]).detach())
    training(*batch)
    torch.testing.assert_close(inference(batch[0]), model.linear(batch[0]).detach())


def test_inference_goes_on_after_training_is_destroyed(trained, batch, opts):
    training, model, twin = trained
    inference = poptorch.inferenceModel(model, opts)
    inference(batch[0])
    training(*batch)
    training.destroy()
    torch.testing.assert_close(inference(batch[0]), model(batch[0]).detach())


def test_host_changes_need_an_upload(trained, batch):
    training, model, _ = trained
    with torch.no_grad():
        model.linear.weight.zero_()
        model.linear.bias.zero_()
    training.copyWeightsToDevice()
    out, _ = training(*batch)
    assert torch.equal(out, torch.zeros(4, 2))


def test_upload_discards_what_was_not_fetched(regression, batch, opts):
    before = regression.linear.weight.detach().clone()
    training = poptorch.trainingModel(regression, opts)
    training(*batch)
    training.copyWeightsToDevice()
    assert torch.equal(regression.linear.weight, before)


def test_load_state_dict_of_an_executor_uploads(trained, batch):
    training, model, _ = trained
    zeros = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    result = training.load_state_dict(zeros)
    assert result.missing_keys == [] and result.unexpected_keys == []
    out, _ = training(*batch)
    assert torch.equal(out, torch.zeros(4, 2))


def test_inference_buffers_are_only_fetched_on_request(opts):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(1)
            return x + self.count

    model = Counter()
    inference = poptorch.inferenceModel(model, opts)
    for step in (1, 2, 3):
        assert inference(torch.zeros(1)).item() == step
    assert model.count.item() == 0
    inference.copyWeightsToHost()
    assert model.count.item() == 3


def test_training_buffers_follow(opts, batch):
    model = torch.nn.Module()

    class Normed(Regression):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)

        def forward(self, x, target=None):
            return super().forward(self.norm(x), target)

    model = Normed()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        training(*batch)
        eager_step(twin, optimizer, *batch)
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    assert model.norm.num_batches_tracked.item() == 3


def test_tied_parameters_stay_tied(opts, batch):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(3, 3)
            self.b = torch.nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return poptorch.identity_loss(self.b(self.a(x)), reduction="mean")

    model = Tied()
    twin = copy.deepcopy(model)
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        training(batch[0])
        optimizer.zero_grad()
        twin(batch[0]).backward()
        optimizer.step()
    assert model.a.weight is model.b.weight
    torch.testing.assert_close(model.a.weight.detach(), twin.a.weight.detach())
    state = model.state_dict()
    assert state["a.weight"] is state["b.weight"]


def test_frozen_and_unlisted_parameters_do_not_move(regression, batch, opts):
    regression.linear.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in regression.state_dict().items()}
    poptorch.trainingModel(regression, opts)(*batch)
    after = regression.state_dict()
    assert torch.equal(before["linear.weight"], after["linear.weight"])
    assert not torch.equal(before["linear.bias"], after["linear.bias"])


def test_a_parameter_in_no_group_is_not_trained(regression, batch, opts):
    # As in PyTorch; PopTorch trained it with the optimizer's defaults.
    before = {name: value.clone() for name, value in regression.state_dict().items()}
    optimizer = torch.optim.SGD([regression.linear.bias], lr=0.1)
    poptorch.trainingModel(regression, opts, optimizer)(*batch)
    after = regression.state_dict()
    assert torch.equal(before["linear.weight"], after["linear.weight"])
    assert not torch.equal(before["linear.bias"], after["linear.bias"])


def test_buffers_listed_as_updatable_can_be_sent_alone(opts):
    class Shift(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.zeros(1))
            self.register_buffer("other", torch.zeros(1))

        def forward(self, x):
            return x + self.shift + self.other

    model = Shift()
    inference = poptorch.inferenceModel(model, opts.clone().updatableNamedBuffers(["shift"]))
    inference(torch.zeros(1))
    model.shift.fill_(1)
    model.other.fill_(10)
    inference.copyNamedBuffersToDevice()
    assert inference(torch.zeros(1)).item() == 1
    plain = poptorch.inferenceModel(model, opts)
    plain(torch.zeros(1))
    with pytest.raises(poptorch.Error, match="No named buffers marked as updatable"):
        plain.copyNamedBuffersToDevice()


def test_training_goes_on_from_uploaded_weights_with_the_same_momentum(regression, batch, opts):
    eager = copy.deepcopy(regression)
    ours = torch.optim.SGD(regression.parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(eager.parameters(), lr=0.1, momentum=0.9)
    training = poptorch.trainingModel(regression, opts, ours)
    for _ in range(3):
        for _ in range(3):
            torch.testing.assert_close(training(*batch)[1], eager_step(eager, theirs, *batch))
        for model in (regression, eager):
            with torch.no_grad():
                model.linear.weight.mul_(0.5)
        training.copyWeightsToDevice()
    torch.testing.assert_close(regression.linear.weight, eager.linear.weight)


def test_inference_after_new_weights_uses_them_in_library_convolutions(opts):
    # the packed form of a filter is kept between calls, and must follow the weights
    torch.manual_seed(0)
    model = torch.nn.Conv2d(32, 32, 3, padding=1).eval()
    executor = poptorch.inferenceModel(model, options=opts)
    x = torch.randn(2, 32, 8, 8)
    torch.testing.assert_close(executor(x), model(x).detach(), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        model.weight.mul_(-2.0)
    executor.copyWeightsToDevice()
    torch.testing.assert_close(executor(x), model(x).detach(), rtol=1e-4, atol=1e-4)
