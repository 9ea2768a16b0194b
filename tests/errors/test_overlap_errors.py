# SPDX-License-Identifier: Apache-2.0
"""Overlapped transfers and multi-convolutions that make no sense are refused when the model is
compiled, with the user's line; others are identities."""

import poptorch
import pytest
import torch
from function_model import Call
from torch import nn

NO, LOOP, DEVICE = poptorch.OverlapMode
X = torch.linspace(-1, 1, 8).reshape(4, 2)


def options(strategy=None, tiles=64, mode=poptorch.OutputMode.All):
    opts = poptorch.Options().showCompilationProgressBar(False).outputMode(mode)
    opts.setExecutionStrategy(strategy or poptorch.ShardedExecution())
    if tiles:
        opts.TensorLocations.numIOTiles(tiles)
    return opts


def on_input(x):
    return poptorch.set_overlap_for_input(x, LOOP) * 2


def on_output(x):
    return poptorch.set_overlap_for_output(x * 2, DEVICE)


def twice_used(x):
    return poptorch.set_overlap_for_input(x, LOOP) + x


def no_input(x):
    return poptorch.set_overlap_for_input(x * 2, NO)


def no_output(x):
    return poptorch.set_overlap_for_output(x * 2, NO) + 1


def twice_returned(x):
    y = poptorch.set_overlap_for_output(x * 2, LOOP)
    return y, y


def refused(function, opts, text):
    with pytest.raises(poptorch.Error, match=text) as caught:
        poptorch.inferenceModel(Call(function), opts)(X)
    assert __file__ in caught.value.location


@pytest.mark.parametrize(
    "function, text",
    [
        (twice_used, "set_overlap_for_input must be the only op applied to an input"),
        (no_input, "set_overlap_for_input applied on a node which is not a tensor input to the"),
        (no_output, "set_overlap_for_output applied on a node which is not a tensor output to the"),
        (twice_returned, "set_overlap_for_output cannot be used with a tensor that is returned tw"),
    ],
)
def test_tensors_that_cannot_overlap(function, text):
    refused(function, options(), text)


@pytest.mark.parametrize("function", (on_input, on_output))
def test_options_that_overlap_needs(function):
    pipelined = options(poptorch.PipelinedExecution())
    text = "Overlapped IO is not supported with poptorch.PipelinedExecution"
    refused(function, pipelined, text)
    refused(function, options(tiles=0), "No IO tiles allocated")
    for mode in (poptorch.OutputMode.Final, poptorch.OutputMode.EveryN):
        opts = options(mode=poptorch.OutputMode.All)
        opts.outputMode(mode, 1) if mode == poptorch.OutputMode.EveryN else opts.outputMode(mode)
        refused(function, opts, "Unsupported output mode for overlapped IO")
    for mode in (poptorch.OutputMode.All, poptorch.OutputMode.Sum):
        actual = poptorch.inferenceModel(Call(function), options(mode=mode))(X)
        torch.testing.assert_close(actual, X * 2)


def test_overlap_that_is_switched_off_needs_nothing():
    def off(x):
        return poptorch.set_overlap_for_output(poptorch.set_overlap_for_input(x, NO) * 2, NO)

    opts = poptorch.Options().showCompilationProgressBar(False)
    torch.testing.assert_close(poptorch.inferenceModel(Call(off), opts)(X), X * 2)


def test_overlap_in_training_keeps_the_loss():
    class Trained(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, batch):
            inputs = poptorch.set_overlap_for_input(batch, LOOP)
            out = self.layer(inputs["x"])
            loss = nn.functional.mse_loss(out, inputs["y"])
            return poptorch.set_overlap_for_output((out, loss), LOOP)

    torch.manual_seed(0)
    model = Trained()
    batch = {"x": X, "y": torch.ones(4, 1)}
    with torch.no_grad():
        expected = nn.functional.mse_loss(model.layer(X), batch["y"])
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options(), optimizer)
    _, loss = training(batch)
    torch.testing.assert_close(loss.reshape(()), expected)
    assert training(batch)[1] < loss


def test_a_multi_conv_has_convolutions():
    def empty(x):
        with poptorch.MultiConv():
            return x * 2

    with pytest.raises(poptorch.Error, match="Unexpected end_multi_conv, is the IR malformed?"):
        poptorch.inferenceModel(Call(empty), options())(X)
    torch.testing.assert_close(empty(X), X * 2)  # outside a capture
