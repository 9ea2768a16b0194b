# SPDX-License-Identifier: Apache-2.0
"""Floating point exceptions: what fails a run, what it says, and what passes."""

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from function_model import Call
from torch import nn


def checked(opts):
    opts.Precision.enableFloatingPointExceptions(True)
    return opts


@pytest.mark.parametrize(
    "function, op, what",
    [
        (lambda x: x / (x - x), "div", "not a number|division by zero"),
        (lambda x: torch.log(x - 2), "log", "not a number"),
        (lambda x: torch.sqrt(-x), "sqrt", "not a number"),
        (lambda x: torch.exp(x * 1000), "exp", "overflow"),
        (lambda x: (x * 30000).half() @ (x * 30000).half().t(), "mm", "overflow"),
        (lambda x: torch.reciprocal(x - x), "reciprocal", "division by zero"),
        (lambda x: torch.linalg.vector_norm(x * 3e38), "", "overflow"),
    ],
)
def test_a_run_that_makes_a_bad_number_fails(opts, function, op, what):
    model = poptorch.inferenceModel(Call(function), checked(opts))
    with pytest.raises(poptorch.Error, match=f"floating point exception.*({what})") as caught:
        model(torch.ones(4, 4))
    assert op in str(caught.value) and "test_float_exceptions.py" in str(caught.value)


def test_good_numbers_and_given_ones_pass(opts):
    class Masked(nn.Module):
        def forward(self, x, mask):
            return torch.softmax(x.masked_fill(mask, float("-inf")), -1), x * 2

    x = torch.randn(4, 4)
    mask = torch.eye(4, dtype=torch.bool)
    model = poptorch.inferenceModel(Masked(), checked(opts))
    torch.testing.assert_close(model(x, mask), Masked()(x, mask))
    x[0, 0] = torch.nan  # a NaN that was given is made by no op
    assert model(x, mask)[1].isnan().sum() == 1


def test_without_the_option_bad_numbers_are_results(opts):
    assert poptorch.inferenceModel(Call(torch.log), opts)(-torch.ones(2)).isnan().all()


def test_weights_stay_when_training_fails(opts):
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return poptorch.identity_loss(torch.log(x @ self.w), "sum")

    model = Loss()
    step = poptorch.trainingModel(model, checked(opts), poptorch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(poptorch.Error, match="floating point exception"):
        step(-torch.ones(4, 4))
    assert torch.equal(step.w.detach(), torch.ones(4, 4))


@pytest.mark.parametrize(
    "function, value, op, what",
    [
        (lambda x: x - x, torch.inf, "sub", "not a number"),
        (lambda x: x * 0, torch.inf, "mul", "not a number"),
        (lambda x: 2 / x, torch.inf, "", "division by infinity"),
        (lambda x: torch.ones(4) / x, torch.inf, "div", "division by infinity"),
        (lambda x: x > 0, torch.nan, "gt", "comparison"),
        (lambda x: x <= x, torch.nan, "le", "comparison"),
        (lambda x: x.acos(), 2.0, "acos", "not a number"),
        (lambda x: (x * 1e5).half(), 1.0, "_to_copy", "overflow"),
        # What is wrong in the middle counts, though the result is not.
        (lambda x: 1 / (1 + torch.exp(x)), 1000.0, "exp", "overflow"),
        (lambda x: torch.tanh(x * 1e30 * 1e30), 1.0, "mul", "overflow"),
        (lambda x: torch.relu(-(x @ x)), 1e30, "", "overflow"),
    ],
)
def test_the_op_that_made_it_is_named(opts, function, value, op, what):
    model = poptorch.inferenceModel(Call(function), checked(opts))
    with pytest.raises(poptorch.Error, match=rf"\[\w*{op}\w*\] floating point exception.*{what}"):
        model(torch.full((4,), value))


@pytest.mark.parametrize(
    "function",
    [
        torch.sigmoid,
        torch.tanh,
        F.gelu,
        lambda x: F.gelu(x, approximate="tanh"),
        F.silu,
        F.mish,
        F.softplus,
        F.logsigmoid,
        F.elu,
        F.selu,
        F.hardswish,
        torch.erf,
        lambda x: torch.softmax(x, 0),
        lambda x: torch.log_softmax(x, 0),
        lambda x: torch.logsumexp(x, 0),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
        lambda x: F.smooth_l1_loss(x, -x),
        lambda x: F.normalize(x, dim=0),
    ],
)
def test_functions_of_large_numbers_pass(opts, function):
    x = torch.tensor([-1000.0, -90.0, -1.0, 0.0, 1.0, 90.0, 1000.0])

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(x.clone())

        def forward(self):
            y = function(self.x)
            return y, poptorch.identity_loss(y, "sum")

    got = poptorch.trainingModel(Loss(), checked(opts))()[0]
    torch.testing.assert_close(got, function(x))


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB"])
def test_training_passes(opts, optimizer):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
            self.embed = nn.Embedding(10, 8, padding_idx=0)
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.rnn, self.fc = nn.LSTM(8, 8), nn.Linear(8, 3)

        def forward(self, x, ids, labels):
            x = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1)[:, :8]
            y = self.embed(ids) + x[:, None]
            y = self.encoder(y, src_key_padding_mask=ids == 0)
            y = self.fc(self.rnn(y)[0].mean(1))
            return F.cross_entropy(y, labels, label_smoothing=0.1)

    model = Net()
    made = getattr(poptorch.optim, optimizer)(model.parameters(), lr=0.01)
    step = poptorch.trainingModel(model, checked(opts), made)
    ids = torch.arange(12).reshape(4, 3)[:, torch.tensor([1, 2, 0])] % 10
    losses = [step(torch.randn(4, 1, 8, 8), ids, torch.tensor([0, 1, 2, 1])) for _ in range(3)]
    assert torch.stack(losses).isfinite().all()
