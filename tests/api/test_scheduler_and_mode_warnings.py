# SPDX-License-Identifier: Apache-2.0
"""What a compiled program does not follow is said once: a scheduler's steps, ``train()`` and
``eval()``; and a loader that has nothing to give."""

import logging

import poptorch
import pytest
import torch
from api_support import Regression
from torch import nn

X = torch.arange(12.0).reshape(4, 3) / 12
Y = torch.zeros(4, 2)
RATE = "but the program goes on with the old values"
LEFT = "The model is trained in eval mode"
LATE = "was called on the model after it was wrapped"
TOO_LATE = "after it was compiled: the program does not follow"
WORDS = (RATE, LEFT, LATE, TOO_LATE)


@pytest.fixture
def said(caplog):
    """The reminders that were logged."""
    caplog.set_level(logging.WARNING, "poptorch::python")

    def texts(*words):
        found = [r.getMessage() for r in caplog.records]
        return [text for text in found if any(w in text for w in words or WORDS)]

    return texts


def quiet():
    return poptorch.Options().showCompilationProgressBar(False)


# Schedulers --------------------------------------------------------------------------------------

OPTIMIZERS = {
    "poptorch": lambda p: poptorch.optim.SGD(p, lr=0.1),
    "torch": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "groups": lambda p: torch.optim.SGD([{"params": [q], "lr": 0.1} for q in p], lr=0.2),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_scheduler_without_set_optimizer(make, said):
    model = Regression()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make(list(model.parameters()))
    executor = poptorch.trainingModel(model, quiet(), optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.0)
    executor(X, Y)
    assert said() == []
    for _ in range(3):
        scheduler.step()
        executor(X, Y)
    (text,) = said()
    assert "lr of group 0 from 0.1 to 0.0" in text and "setOptimizer" in text
    # What it says is what happens: the rate is still the first.
    trained = {name: p.detach().clone() for name, p in model.named_parameters()}
    executor.setOptimizer(optimizer)
    executor(X, Y)
    assert all(not torch.equal(before[name], trained[name]) for name in before)
    assert all(torch.equal(trained[n], p) for n, p in model.named_parameters())


def test_a_scheduler_with_set_optimizer(said):
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, quiet(), optimizer)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    for _ in range(5):
        executor(X, Y)
        scheduler.step()
        executor.setOptimizer(optimizer)
    assert said() == []


def test_a_scheduler_stepped_before_compiling_is_in_time(said):
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, quiet(), optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5).step()
    executor(X, Y)
    executor.detachFromDevice()
    optimizer.param_groups[0]["lr"] = 0.025
    executor(X, Y)  # attaches, with the optimizer as it is now
    assert said() == []


def test_rates_that_are_equal_but_other_objects(said):
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    executor = poptorch.trainingModel(model, quiet(), optimizer)
    for step in range(3):
        optimizer.param_groups[0]["lr"] = 1.0 / (2 + 0 * step)
        executor(X, Y)
    assert said() == []


def test_a_momentum_that_a_scheduler_cycles_is_named(said):
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    executor = poptorch.trainingModel(model, quiet(), optimizer)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=10)
    executor(X, Y)
    scheduler.step()
    executor(X, Y)
    (text,) = said()
    assert "lr of group 0" in text and "momentum of group 0" in text


def test_values_that_no_scheduler_changes(said):
    model = Regression()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, loss_scaling=2.0)
    executor = poptorch.trainingModel(model, quiet(), optimizer)
    executor(X, Y)
    optimizer.param_groups[0]["momentum"] = 0.5
    optimizer.loss_scaling = 4.0
    for _ in range(20):  # one value is looked at in each call
        executor(X, Y)
    (text,) = said()
    assert "momentum of group 0 from 0.9 to 0.5" in text
    assert "loss_scaling from 2.0 to 4.0" in text


def test_a_state_that_was_loaded_makes_other_groups(said):
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, quiet(), optimizer)
    executor(X, Y)
    optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(20):
        executor(X, Y)
    assert said() == [], "nothing has changed"
    optimizer.param_groups[0]["lr"] = 0.2
    executor(X, Y)
    assert len(said()) == 1


# train() and eval() ------------------------------------------------------------------------------


class Dropped(nn.Module):
    """A layer that follows the mode, and a model that may do so itself."""

    def __init__(self, itself=False):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5)
        self.itself = itself

    def forward(self, x):
        return poptorch.identity_loss(self.drop(self.linear(x)) ** 2, "sum")


class Itself(Dropped):
    def forward(self, x):
        out = super().forward(x)
        return out * 2 if self.training else out


def test_training_a_model_left_in_eval(said):
    executor = poptorch.trainingModel(Dropped().eval(), quiet())
    executor(X)
    executor(X)
    (text,) = said()
    assert text.startswith(LEFT) and "drop behave" in text and "train()" in text


def test_training_after_eval_of_a_wrapped_model(said):
    model = Dropped()
    executor = poptorch.trainingModel(model, quiet())
    model.eval()
    executor(X)
    assert len(said()) == 1 and said()[0].startswith(LEFT)


@pytest.mark.parametrize(
    "model",
    [
        Regression(),
        nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.0)),
        nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)),
        nn.TransformerEncoderLayer(2, 1, 4, dropout=0.0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_model_that_has_no_modes(model, said):
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return poptorch.identity_loss(self.inner(x).sum(), "none")

    x = X[:, :2] if isinstance(model, nn.TransformerEncoderLayer) else X
    loss = Loss().eval()
    executor = poptorch.trainingModel(loss, quiet())
    executor(x)
    loss.train()
    executor(x)
    assert said() == []


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.Dropout(0.1), nn.RReLU()])
def test_layers_that_follow_the_mode_are_named(layer, said):
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3), layer)

        def forward(self, x):
            return poptorch.identity_loss(self.inner(x).sum(), "none")

    poptorch.trainingModel(Loss().eval(), quiet())(X)
    (text,) = said()
    assert "inner.1" in text


def test_frozen_layers_of_a_model_in_training(said):
    model = Dropped()
    model.drop.eval()
    poptorch.trainingModel(model, quiet())(X)
    assert said() == []


def test_inference_whose_own_flag_is_old(said):
    model = Itself()
    executor = poptorch.inferenceModel(model, quiet())
    model.eval()
    got = executor(X)
    (text,) = said()
    assert text.startswith("eval() " + LATE) and "training=True" in text
    assert torch.allclose(got, model(X) * 2), "the layers follow, the flag does not"


def test_a_flag_that_nobody_reads(said):
    model = Dropped()
    executor = poptorch.inferenceModel(model, quiet())
    model.eval()
    assert torch.allclose(executor(X), model(X))
    assert said() == []


def test_the_modes_of_a_compiled_inference_model(said):
    model = Dropped().eval()
    executor = poptorch.inferenceModel(model, quiet())
    first = executor(X)
    executor.train()
    assert torch.equal(executor(X), first), "dropout is still off"
    executor(X)
    (text,) = said()
    assert (
        text.startswith("train() was called on model " + TOO_LATE)
        and "goes on in eval mode" in text
    )


def test_the_modes_of_a_compiled_training_model(said):
    model = Dropped()
    executor = poptorch.trainingModel(
        model, quiet(), poptorch.optim.SGD(model.parameters(), lr=0.0)
    )
    executor(X)
    model.eval()
    assert not torch.equal(executor(X), executor(X)), "dropout is still on"
    (text,) = said()
    assert (
        text.startswith("eval() was called on model " + TOO_LATE)
        and "goes on in train mode" in text
    )


def test_a_layer_that_is_frozen_after_compiling(said):
    model = Dropped()
    model.norm = nn.BatchNorm1d(3)
    executor = poptorch.trainingModel(model, quiet())
    executor(X)
    model.norm.eval()
    for _ in range(20):  # one layer is looked at in each call
        executor(X)
    (text,) = said()
    assert text.startswith("eval() was called on 'norm' after it was compiled")


def test_each_reminder_is_given_once(said):
    model = Dropped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, quiet(), optimizer)
    executor(X)
    for step in range(6):
        model.train(step % 2 == 0)
        optimizer.param_groups[0]["lr"] /= 2
        executor(X)
    assert len(said(TOO_LATE)) == 1 and len(said(RATE)) == 1


def test_modes_that_change_between_calls_as_in_torch(said):
    model = Dropped()
    training = poptorch.trainingModel(model, quiet())
    training(X)
    model.eval()
    inference = poptorch.inferenceModel(model, quiet())
    inference(X)
    for _ in range(3):
        model.train()
        training(X)
        model.eval()
        inference(X)
    assert said() == []


# Loaders -----------------------------------------------------------------------------------------

EMPTY = "The loader has no batch to give"


def loader(dataset, iterations=4, **kwargs):
    return poptorch.DataLoader(quiet().deviceIterations(iterations), dataset, **kwargs)


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, count, known=True):
        self.count = count
        self.known = known

    def __iter__(self):
        return iter(torch.ones(self.count, 2))

    def __len__(self):
        if not self.known:
            raise TypeError("nobody knows")
        return self.count


def rows(count):
    return torch.utils.data.TensorDataset(torch.ones(count, 2))


def pairs(count):
    return torch.utils.data.BatchSampler(range(count), 2, False)


FEW = {
    "rows": lambda: loader(rows(7), batch_size=2),
    "stream": lambda: loader(Stream(7), batch_size=2),
    "subset": lambda: loader(rows(64), batch_size=2, sampler=range(7)),
    "batch sampler": lambda: loader(rows(6), batch_sampler=pairs(6)),
    "nothing": lambda: loader(rows(0)),
    "nothing, kept": lambda: loader(rows(0), drop_last=False),
    "empty stream": lambda: loader(Stream(0), drop_last=False),
    "unbatched": lambda: loader(rows(0), batch_size=None),
}


@pytest.mark.parametrize("make", FEW.values(), ids=FEW)
def test_a_dataset_smaller_than_a_combined_batch(make, said):
    made = make()
    assert list(made) == []
    (text,) = said(EMPTY)
    assert "drop_last" in text


def test_a_small_dataset_in_a_worker(said):
    with pytest.raises(poptorch.Error, match="worker thread failed to start"):
        loader(rows(7), batch_size=2, mode=poptorch.DataLoaderMode.Async)
    assert len(said(EMPTY)) == 1


def test_a_small_dataset_that_a_worker_rebatches(said):
    made = loader(rows(7), batch_size=2, mode=poptorch.DataLoaderMode.AsyncRebatched)
    assert list(made) == [] and len(said(EMPTY)) == 1
    made.terminate()


def test_what_is_known_of_it_is_said(said):
    loader(rows(7), batch_size=2)
    (text,) = said(EMPTY)
    assert "7 elements" in text and "8" in text


ENOUGH = {
    "exactly": lambda: loader(rows(8), batch_size=2),
    "kept": lambda: loader(rows(7), batch_size=2, drop_last=False),
    "unknown stream": lambda: loader(Stream(7, known=False), batch_size=2),
    "batch sampler": lambda: loader(rows(8), batch_sampler=pairs(8)),
    "incomplete group": lambda: loader(rows(6), batch_sampler=pairs(6), drop_last=False),
}


@pytest.mark.parametrize("make", ENOUGH.values(), ids=ENOUGH)
def test_a_dataset_that_is_large_enough(make, said):
    make()
    assert said(EMPTY) == []
