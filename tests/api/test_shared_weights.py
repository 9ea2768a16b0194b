# SPDX-License-Identifier: Apache-2.0
"""Wrappers that share weights see the newest ones whatever the order in which they were made, and
tensors that were replaced after wrapping are taken over or refused."""

import copy
import gc

import poptorch
import pytest
import torch
from api_support import Regression, eager_step
from torch import nn


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def expect_newest(inference, model, x):
    out = inference(x)
    torch.testing.assert_close(out, model(x).detach())
    return out


# Order --------------------------------------------------------------------------------------------


def test_inference_that_ran_before_training_was_wrapped_follows_it(regression, batch, opts):
    inference = poptorch.inferenceModel(regression, opts)
    before = inference(batch[0])
    training = poptorch.trainingModel(regression, opts, sgd(regression))
    torch.testing.assert_close(inference(batch[0]), before)
    for _ in range(3):
        training(*batch)
        out = expect_newest(inference, regression, batch[0])
    assert not torch.equal(out, before)


def test_inference_of_a_part_that_ran_before_follows(regression, batch, opts):
    inference = poptorch.inferenceModel(regression.linear, opts)
    inference(batch[0])
    training = poptorch.trainingModel(regression, opts, sgd(regression))
    training(*batch)
    torch.testing.assert_close(inference(batch[0]), regression.linear(batch[0]).detach())


def test_inference_follows_one_training_wrapper_after_the_other(regression, batch, opts):
    training = poptorch.trainingModel(regression, opts, sgd(regression))
    inference = poptorch.inferenceModel(training, opts)
    training(*batch)
    inference(batch[0])
    for _ in range(3):
        training.destroy()
        training = poptorch.trainingModel(regression, opts, sgd(regression))
        training(*batch)
        expect_newest(inference, regression, batch[0])
    assert len(inference._links) == 1


def test_training_that_came_and_went_between_two_calls(regression, batch, opts):
    inference = poptorch.inferenceModel(regression, opts)
    before = inference(batch[0])
    for _ in range(2):
        training = poptorch.trainingModel(regression, opts, sgd(regression))
        training(*batch)
        training.destroy()
        del training
        gc.collect()
    assert not torch.equal(expect_newest(inference, regression, batch[0]), before)
    assert not inference._links


def test_training_that_is_compiled_again(regression, batch, opts):
    training = poptorch.trainingModel(regression, opts, sgd(regression))
    training(*batch)
    inference = poptorch.inferenceModel(regression, opts)
    for _ in range(2):
        expect_newest(inference, regression, batch[0])
        training.destroy()
        training(*batch)
    expect_newest(inference, regression, batch[0])


def test_wrappers_of_other_models_are_not_linked(regression, batch, opts):
    inference = poptorch.inferenceModel(regression, opts)
    inference(batch[0])
    other = Regression()
    poptorch.trainingModel(other, opts)(*batch)
    assert not inference._links


class Through(nn.Module):
    """A head of its own on layers that another model has too."""

    def __init__(self, shared):
        super().__init__()
        self.shared, self.head = shared, nn.Linear(2, 2)

    def forward(self, x, target):
        out = self.head(self.shared(x))
        return out, nn.functional.mse_loss(out, target)


@pytest.mark.parametrize("read", (False, True))
def test_two_training_models_share_layers(read, batch, opts):
    torch.manual_seed(0)
    shared = nn.Linear(3, 2)
    models = [Through(shared), Through(shared)]
    twins = copy.deepcopy(models)
    executors = [poptorch.trainingModel(m, opts, sgd(m)) for m in models]
    optimizers = [sgd(t) for t in twins]
    for which in (0, 1, 1, 0, 1, 0, 0):
        _, loss = executors[which](*batch)
        expected = eager_step(twins[which], optimizers[which], *batch)
        torch.testing.assert_close(loss, expected)
        if read:
            torch.testing.assert_close(shared.weight.detach(), twins[0].shared.weight.detach())
    for model, twin in zip(models, twins, strict=True):
        torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


# Modes of autograd --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", (torch.inference_mode, torch.no_grad))
def test_training_that_is_compiled_in_a_mode_without_gradients_trains(
    mode, regression, batch, opts
):
    twin = copy.deepcopy(regression)
    training = poptorch.trainingModel(regression, opts, sgd(regression))
    optimizer = sgd(twin)
    with mode():
        losses = [training(*batch)[1].clone() for _ in range(3)]
    for loss in losses:
        torch.testing.assert_close(loss, eager_step(twin, optimizer, *batch))
    torch.testing.assert_close(regression.linear.weight, twin.linear.weight)


def test_weights_made_in_inference_mode_are_trained(batch, opts):
    with torch.inference_mode():
        model = Regression()
        model.linear.weight.data = model.linear.weight.data.t().contiguous().t()
    twin = Regression()
    twin.load_state_dict(model.state_dict())
    training = poptorch.trainingModel(model, opts, sgd(model))
    training(*batch)
    eager_step(twin, sgd(twin), *batch)
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


# Replaced tensors ---------------------------------------------------------------------------------


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("shift", torch.zeros(2))

    def forward(self, x, target=None):
        out = self.linear(x) + self.shift
        return out if target is None else (out, nn.functional.mse_loss(out, target))


def replace_parameter(model):
    model.linear.weight = nn.Parameter(torch.randn(2, 3))


def replace_buffer(model):
    model.shift = torch.randn(2)


def replace_submodule(model):
    model.linear = nn.Linear(3, 2)


def assign_state(model):
    model.load_state_dict(Shift().state_dict(), assign=True)


REPLACEMENTS = (replace_parameter, replace_buffer, replace_submodule, assign_state)


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_inference_takes_over_what_was_replaced(replace, batch, opts):
    model = Shift()
    inference = poptorch.inferenceModel(model, opts)
    before = inference(batch[0])
    for _ in range(2):
        replace(model)
        torch.testing.assert_close(inference(batch[0]), before)  # as PopTorch: not by itself
        inference.copyWeightsToDevice()
        before = expect_newest(inference, model, batch[0])


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_inference_takes_it_over_when_it_is_attached_again(replace, batch, opts):
    model = Shift()
    inference = poptorch.inferenceModel(model, opts)
    inference(batch[0])
    inference.detachFromDevice()
    replace(model)
    expect_newest(inference, model, batch[0])


@pytest.mark.parametrize("replace", (replace_parameter, replace_submodule, assign_state))
def test_training_refuses_other_parameters_than_its_optimizer_has(replace, batch, opts):
    model = Shift()
    training = poptorch.trainingModel(model, opts, sgd(model))
    training(*batch)
    replace(model)
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(poptorch.Error, match=r"linear\.\w+ is another parameter than the one that"):
        training.copyWeightsToDevice()
    # The way out that the message names keeps the new values.
    training.destroy()
    torch.testing.assert_close(dict(model.state_dict()), wanted)
    twin = copy.deepcopy(model)
    again = poptorch.trainingModel(model, opts, sgd(model))
    torch.testing.assert_close(again(*batch)[1], eager_step(twin, sgd(twin), *batch))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


def test_training_takes_over_buffers_and_frozen_parameters(batch, opts):
    model = Shift()
    model.linear.bias.requires_grad_(False)
    training = poptorch.trainingModel(model, opts, torch.optim.SGD([model.linear.weight], lr=0.1))
    training(*batch)
    model.shift = torch.randn(2)
    model.linear.bias = nn.Parameter(torch.randn(2), requires_grad=False)
    training.copyWeightsToDevice()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD([twin.linear.weight], lr=0.1)
    for _ in range(2):
        torch.testing.assert_close(training(*batch)[1], eager_step(twin, optimizer, *batch))
    assert type(model.shift).__name__ == "PoptorchBuffer"  # looked after like the one before


class WithScale(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.scale = nn.Parameter(torch.ones(1))


def test_tensors_that_are_just_added_do_no_harm(batch, opts):
    model = Shift()
    training = poptorch.trainingModel(model, opts, sgd(model))
    inference = poptorch.inferenceModel(model, opts)
    for index in range(3):
        training(*batch)
        expect_newest(inference, model, batch[0])
        model.register_buffer(f"more{index}", torch.ones(1))
        model.linear.register_buffer(f"more{index}", torch.ones(1))
        model.add_module(f"layer{index}", nn.Linear(1, 1))
        training.copyWeightsToDevice()


def test_a_part_that_is_wrapped_is_not_a_part_that_is_replaced(batch, opts):
    model = nn.Sequential(Shift())
    inference = poptorch.inferenceModel(model, opts)
    inference(batch[0])
    poptorch.trainingModel(model[0], opts, sgd(model))(*batch)
    model[0].linear.bias = nn.Parameter(torch.randn(2))
    expect_newest(inference, model, batch[0])


@pytest.mark.parametrize(
    ("change", "words"),
    (
        (lambda m: m.linear.register_parameter("bias", None), r"got or lost .*linear\.bias"),
        (lambda m: setattr(m, "linear", WithScale(3, 2)), r"got or lost .*linear\.scale"),
        (
            lambda m: setattr(m, "linear", nn.Linear(3, 4)),
            r"compiled as f32\[2, 3\] but is now f32",
        ),
        (lambda m: setattr(m, "linear", nn.LazyLinear(2)), r"linear was a Linear .*LazyLinear"),
    ),
)
def test_what_the_program_does_not_fit_is_refused(change, words, batch, opts):
    model = Shift()
    inference = poptorch.inferenceModel(model, opts)
    inference(batch[0])
    change(model)
    with pytest.raises(poptorch.Error, match=words):
        inference.copyWeightsToDevice()


def test_parameters_that_were_tied_must_stay_so(opts, batch):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    inference = poptorch.inferenceModel(model, opts)
    inference(batch[0])
    model[0].weight = model[1].weight = nn.Parameter(torch.randn(3, 3))
    inference.copyWeightsToDevice()
    torch.testing.assert_close(inference(batch[0]), model(batch[0]).detach())
    model[0].weight = nn.Parameter(torch.randn(3, 3))
    with pytest.raises(poptorch.Error, match=r"0\.weight and 1\.weight were one tensor"):
        inference.copyWeightsToDevice()


def test_a_refused_upload_loses_nothing(batch, opts):
    model = Shift()
    twin = copy.deepcopy(model)
    training = poptorch.trainingModel(model, opts, sgd(model))
    training(*batch)
    eager_step(twin, sgd(twin), *batch)
    model.linear.register_parameter("bias", None)
    with pytest.raises(poptorch.Error, match="got or lost"):
        training.copyWeightsToDevice()
    torch.testing.assert_close(model.linear.weight.detach(), twin.linear.weight.detach())


def test_tied_and_unknown_names_of_updatable_buffers(opts):
    model = Shift()
    model.register_buffer("other", model.shift)
    for names in (["shift"], ["other"]):
        inference = poptorch.inferenceModel(model, opts.clone().updatableNamedBuffers(names))
        inference(torch.zeros(4, 3))
        model.shift.add_(1)
        inference.copyNamedBuffersToDevice()
        torch.testing.assert_close(inference(torch.zeros(4, 3)), model(torch.zeros(4, 3)).detach())
    wrong = poptorch.inferenceModel(model, opts.clone().updatableNamedBuffers(["nothing"]))
    wrong(torch.zeros(4, 3))
    with pytest.raises(poptorch.Error, match="nothing is no parameter or buffer"):
        wrong.copyNamedBuffersToDevice()
