# SPDX-License-Identifier: Apache-2.0
"""Mistyped names: the message says which one was probably meant."""

import copy
import pickle

import poptorch
import pytest
import torch
from torch import nn

MODEL = nn.Linear(3, 3)


def options():
    return poptorch.Options().showCompilationProgressBar(False)


@pytest.mark.parametrize(
    "use, kind, meant",
    [
        (lambda: options().deviceIteration(4), AttributeError, "deviceIterations"),
        (
            lambda: options().gradientAccumulation(4),
            AttributeError,
            "Training.gradientAccumulation",
        ),
        (lambda: options().Training.gradientAcumulation(4), AttributeError, "gradientAccumulation"),
        (lambda: options().Precision.setPartialType(1), AttributeError, "setPartialsType"),
        (lambda: setattr(options(), "deviceIteration", 4), AssertionError, "deviceIterations"),
        (lambda: options().set(deviceIteration=4), AssertionError, "deviceIterations"),
        (lambda: options().outputMode("all"), AssertionError, "poptorch.OutputMode.All"),
        (lambda: poptorch.OutputMode.all, AttributeError, "All"),
        (lambda: poptorch.DataLoaderMode.Asynch, AttributeError, "Async"),
        (lambda: poptorch.trainingmodel, AttributeError, "trainingModel"),
        (lambda: poptorch.DataLoder, AttributeError, "DataLoader"),
        (
            lambda: poptorch.inferenceModel(MODEL).copyWeightToHost(),
            AttributeError,
            "copyWeightsToHost",
        ),
        (lambda: poptorch.inferenceModel(MODEL).wieght, AttributeError, "weight"),
        (lambda: poptorch.optim.SGD(MODEL.parameters(), learning_rate=1.0), TypeError, "lr"),
        (
            lambda: poptorch.optim.AdamW(MODEL.parameters(), weightdecay=1.0),
            TypeError,
            "weight_decay",
        ),
        (
            lambda: poptorch.optim.LAMB(MODEL.parameters(), max_weight_nrm=1.0),
            TypeError,
            "max_weight_norm",
        ),
    ],
)
def test_the_name_that_was_meant(use, kind, meant):
    with pytest.raises(kind) as caught:
        use()
    assert str(caught.value).endswith(f"Did you mean {meant}?")


def test_what_is_like_nothing_gets_no_suggestion():
    for use in (lambda: options().xyzzy, lambda: poptorch.xyzzy, lambda: poptorch.OutputMode.xyzzy):
        with pytest.raises(AttributeError) as caught:
            use()
        assert "Did you mean" not in str(caught.value)
    assert not hasattr(options(), "__no_such__") and not hasattr(poptorch, "no_such")


def test_an_error_in_a_property_of_the_model_stays():
    class Model(nn.Linear):
        @property
        def size(self):
            return self.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing|size"):
        _ = poptorch.inferenceModel(Model(3, 3)).size


def test_copies_and_pickles():
    optimizer = poptorch.optim.AdamW(MODEL.parameters(), lr=0.5)
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert twin.param_groups[0]["lr"] == 0.5
    mode = poptorch.OutputMode.All
    assert pickle.loads(pickle.dumps(mode)) is mode is copy.deepcopy(mode)
    assert poptorch.OutputMode(2) is poptorch.OutputMode["All"] is mode

    class Mine(poptorch.optim.SGD):
        def __init__(self, params, rate):
            super().__init__(params, lr=rate)

    assert Mine(MODEL.parameters(), rate=0.25).param_groups[0]["lr"] == 0.25


def test_an_optimizer_in_the_place_of_the_options():
    with pytest.raises(poptorch.Error, match="'options' is of type .*SGD.*optimizer="):
        poptorch.trainingModel(MODEL, torch.optim.SGD(MODEL.parameters(), lr=0.1))
