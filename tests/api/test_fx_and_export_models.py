# SPDX-License-Identifier: Apache-2.0
"""Models that torch has written (torch.fx, torch.export) and very deep ones, against eager."""

import copy
import sys

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

X, Y = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)), torch.ones(4, 3) / 2


class Model(nn.Module):
    def __init__(self, loss=F.mse_loss):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("shift", torch.ones(3))
        self.loss = loss

    def forward(self, x, y):
        z = self.norm(self.linear(x)).relu() + self.shift
        return z, self.loss(z, y)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x).relu()


def export(model, *args):
    return torch.export.export(model, args).module()


def symbolic(model, *args):
    return torch.fx.symbolic_trace(model)


def decomposed(model, *args):
    return torch.export.export(model, args).run_decompositions().module()


def unflattened(model, *args):
    return torch.export.unflatten(torch.export.export(model, args))


def assert_trains_as_eager(model, opts):
    eager = copy.deepcopy(model)
    theirs = torch.optim.SGD(eager.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        theirs.zero_grad()
        _, loss = eager(X, Y)
        loss.backward()
        theirs.step()
        torch.testing.assert_close(training(X, Y)[1], loss.detach())
    expected = eager.state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    return training


@pytest.mark.parametrize("write", [symbolic, export, decomposed, unflattened])
def test_inference(write, opts):
    model = write(Plain(), X)
    torch.testing.assert_close(poptorch.inferenceModel(model, opts)(X), model(X).detach())


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("write", [symbolic, export])
@pytest.mark.parametrize(
    "loss",
    [
        F.mse_loss,
        F.smooth_l1_loss,
        F.binary_cross_entropy_with_logits,
        lambda z, y: F.cross_entropy(z, y.argmax(1)),
        lambda z, y: poptorch.identity_loss(((z - y) ** 2).mean(), "none"),
        lambda z, y: poptorch.identity_loss(F.mse_loss(z, y) + F.l1_loss(z, y), "sum"),
    ],
)
def test_training(write, loss, opts):
    training = assert_trains_as_eager(write(Model(loss), X, Y), opts)
    assert isinstance(training.model, torch.fx.GraphModule)
    training.destroy()


def test_weights_go_on_in_an_inference_wrapper(opts):
    model = symbolic(Model())
    poptorch.trainingModel(model, opts)(X, Y)
    z, _ = poptorch.inferenceModel(model, opts)(X, Y)
    twin = Model()
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(z, twin(X, Y)[0].detach())


def test_a_part_of_a_model(opts):
    model = nn.Sequential(symbolic(Plain()), export(Plain(), X))
    torch.testing.assert_close(poptorch.inferenceModel(model, opts)(X), model(X).detach())


def test_an_error_names_the_line_of_the_written_code(opts):
    with pytest.raises(RuntimeError) as caught:
        poptorch.inferenceModel(symbolic(Plain()), opts)(torch.ones(4, 5))
    assert "linear = self.linear(x)" in caught.value.__notes__[0]


# Deep models -------------------------------------------------------------------------------------


def nested(depth):
    model = nn.Linear(3, 3)
    for _ in range(depth):
        model = nn.Sequential(model)
    return model


@pytest.mark.parametrize("depth", [150, 300, 400])
def test_deep_models(depth, opts):
    model = nested(depth)
    inner = next(m for m in model.modules() if isinstance(m, nn.Linear))
    limit = sys.getrecursionlimit()
    out = poptorch.inferenceModel(model, opts)(X)
    torch.testing.assert_close(out, inner(X).detach())
    assert sys.getrecursionlimit() == limit


def test_deep_models_train(opts):
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nested(300)

        def forward(self, x, y):
            z = self.inner(x)
            return z, F.mse_loss(z, y)

    limit = sys.getrecursionlimit()
    model = Deep()
    sys.setrecursionlimit(20_000)  # for eager's sake
    try:
        eager = copy.deepcopy(model)
        theirs = torch.optim.SGD(eager.parameters(), lr=0.1)
        eager(X, Y)[1].backward()
        theirs.step()
    finally:
        sys.setrecursionlimit(limit)
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    training(X, Y)
    for ours, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)


def test_a_model_that_calls_itself_is_an_error(opts):
    class Endless(nn.Module):
        def forward(self, x):
            return self(x + 1)

    with pytest.raises(RecursionError) as caught:
        poptorch.inferenceModel(Endless(), opts)(X)
    assert "return self(x + 1)" in caught.value.__notes__[0]
