# SPDX-License-Identifier: Apache-2.0
"""Names of PopTorch's private modules that public programs import."""

import copy
import pickle
from collections import namedtuple

import poptorch
import pytest
import torch
from poptorch._impl import (
    createPoptorchError,
    isRunningOnIpu,
    isWrapped,
    rewrapModelIfNecessary,
    unwrapModelIfNecessary,
)
from poptorch._poplar_executor import PoplarExecutor, _OverwriteContextManager
from poptorch._utils import (
    combine_batch_tensors_gen,
    flattenTensorStructure,
    reconstructTensorStructure,
)

BASE = torch.nn.Linear


class Model(BASE):
    def __init__(self):
        torch.manual_seed(3)
        super().__init__(2, 2)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, y):
        out = super().forward(x)
        return out, torch.nn.functional.mse_loss(out, y)


@pytest.fixture
def trained(opts):
    model = Model()
    executor = poptorch.trainingModel(model, opts)
    data = torch.ones(2, 2), torch.zeros(2, 2)
    executor(*data)
    return model, executor, data


def expected(steps):
    model = Model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        sgd.zero_grad()
        model(torch.ones(2, 2), torch.zeros(2, 2))[1].backward()
        sgd.step()
    return model.weight.detach()


def test_a_model_is_plain_between_unwrap_and_rewrap(trained):
    model, executor, data = trained
    assert isWrapped(model) and isWrapped(model.weight) and isWrapped(model.seen)
    unwrapModelIfNecessary(model)
    assert type(model) is Model and not isWrapped(model)
    assert type(model.weight) is torch.nn.Parameter and type(model.seen) is torch.Tensor
    torch.testing.assert_close(model.weight.detach(), expected(1))
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    torch.testing.assert_close(twin.weight, model.weight)
    executor(*data)  # goes on training
    rewrapModelIfNecessary(model)
    assert isWrapped(model) and type(model).__name__ == "PoptorchModel" and isWrapped(model.bias)
    torch.testing.assert_close(model.weight.detach(), expected(2))
    torch.testing.assert_close(twin.weight.detach(), expected(1))


def test_unwrapping_and_rewrapping_what_is_not_wrapped_changes_nothing(trained):
    plain = Model()
    for change in (unwrapModelIfNecessary, rewrapModelIfNecessary, unwrapModelIfNecessary):
        assert change(plain) is None and type(plain) is Model
    model, executor, _ = trained
    rewrapModelIfNecessary(model)
    assert isWrapped(model)
    unwrapModelIfNecessary(model)
    unwrapModelIfNecessary(model)
    rewrapModelIfNecessary(model)
    assert isWrapped(model) and isWrapped(model.weight)
    executor.destroy()
    assert not isWrapped(model) and not isWrapped(model.weight)


def test_a_model_that_was_destroyed_while_unwrapped_stays_plain(trained, opts):
    model, executor, data = trained
    unwrapModelIfNecessary(model)
    executor.destroy()
    rewrapModelIfNecessary(model)
    assert type(model) is Model and type(model.weight) is torch.nn.Parameter
    again = poptorch.trainingModel(model, opts)
    again(*data)
    torch.testing.assert_close(model.weight.detach(), expected(2))


def test_an_unwrapped_model_can_be_wrapped_for_inference(trained, opts):
    model, executor, data = trained
    unwrapModelIfNecessary(model)
    inference = poptorch.inferenceModel(model, opts)
    found = inference(*data)[0]
    torch.testing.assert_close(found, data[0] @ expected(1).T + model.bias.detach())
    rewrapModelIfNecessary(model)
    assert isinstance(executor, PoplarExecutor) and isWrapped(model)


def test_a_wrapper_that_was_never_compiled_is_rewrapped(opts):
    model = Model()
    poptorch.trainingModel(model, opts)
    unwrapModelIfNecessary(model)
    rewrapModelIfNecessary(model)
    assert isWrapped(model) and isWrapped(model.weight)


def test_the_other_names_of_impl():
    assert not isRunningOnIpu() and isRunningOnIpu is poptorch.isRunningOnIpu
    assert isinstance(createPoptorchError("text"), poptorch.Error)


def test_structures_are_flattened_and_made_again():
    Point = namedtuple("Point", "x y")
    a, b, c, d = (torch.full((2,), float(i)) for i in range(4))
    value = {"p": Point(a, [b, "text"]), "q": (c, {"r": d}), "n": 3}
    flat = flattenTensorStructure(value)
    assert [int(t[0]) for t in flat] == [0, 1, 2, 3]
    made = reconstructTensorStructure(value, [t + 1 for t in flat])
    assert torch.equal(made["q"][1]["r"], d + 1) and made["p"].y[1] == "text" and made["n"] == 3
    assert isinstance(made["p"], Point)
    other = {"q": (c, {"r": d}), "n": 3, "p": Point(a, [b, "text"])}
    assert [int(t[0]) for t in flattenTensorStructure(other, value)] == [0, 1, 2, 3]
    some = reconstructTensorStructure([a, b, c], [d], filter_fn=lambda t: t is b)
    assert some[0] is a and some[1] is d and some[2] is c
    assert poptorch.flattenTensorStructure is flattenTensorStructure
    assert poptorch.reconstructTensorStructure is reconstructTensorStructure


def test_tensors_of_batches_are_joined_one_by_one():
    batches = [[torch.ones(1, 2), torch.zeros(1)], [torch.zeros(2, 2), torch.ones(2)]]
    first, second = combine_batch_tensors_gen(batches)
    assert first.tolist() == [[1, 1], [0, 0], [0, 0]] and second.tolist() == [0, 1, 1]


def test_substitution_managers_replace_during_capture_only(opts, monkeypatch):
    calls = []

    class Manager:
        def replace(self):
            calls.append("replace")
            self.before, torch.sin = torch.sin, torch.cos

        def restore(self):
            calls.append("restore")
            torch.sin = self.before

    class Sine(torch.nn.Module):
        def forward(self, x):
            return torch.sin(x)

    monkeypatch.setattr(_OverwriteContextManager, "_types", [])
    _OverwriteContextManager.registerSubsitutionManager(Manager)
    x, sin = torch.ones(2), torch.sin
    executor = poptorch.inferenceModel(Sine(), opts)
    torch.testing.assert_close(executor(x), torch.cos(x))
    executor(x)
    assert calls == ["replace", "restore"] and torch.sin is sin

    class Wrong(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("forward fails")

    with pytest.raises(Exception, match="forward fails"):
        poptorch.inferenceModel(Wrong(), opts)(x)
    assert calls == ["replace", "restore"] * 2 and torch.sin is sin
