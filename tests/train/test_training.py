# SPDX-License-Identifier: Apache-2.0
"""Every promised model against eager: outputs, gradients, state after 20 steps."""

import copy

import poptorch
import pytest
import torch
from cases import CASES
from tolerances import assert_no_worse, assert_pass_close


def quiet():
    return poptorch.Options().showCompilationProgressBar(False)


def eager_step(model, optimizer, batch):
    optimizer.zero_grad()
    out, loss = model(*batch)
    loss.backward()
    optimizer.step()
    return out.detach(), loss.detach()


def summary(executor):
    return executor.getProgramSummary()


@pytest.mark.parametrize("name", CASES)
def test_forward_matches_eager(name):
    case = CASES[name]
    model, batch = case.model().eval(), case.data()
    expected = model(*batch)
    actual = poptorch.inferenceModel(copy.deepcopy(model), options=quiet())(*batch)
    assert_pass_close(actual[0], expected[0].detach(), "output")
    assert_pass_close(actual[1], expected[1].detach(), "loss")


def double(batch):
    return tuple(t.double() if t.is_floating_point() else t for t in batch)


@pytest.mark.parametrize("name", CASES)
def test_gradients_match_eager(name):
    # One step of SGD with rate 1 moves each weight by its gradient. Judged against float64, because
    # eager float32 itself is far from the truth where normalisation amplifies rounding.
    case = CASES[name]
    model, batch = case.model(), case.data()
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    executor = poptorch.trainingModel(model, options=quiet(), optimizer=optimizer)
    executor(*batch)
    executor.copyWeightsToHost()
    eager(*batch)[1].backward()
    exact(*double(batch))[1].backward()
    after, truth = dict(model.named_parameters()), dict(exact.named_parameters())
    for n, p in eager.named_parameters():
        if p.grad is None:
            assert torch.equal(before[n], after[n].detach()), n
            continue
        true = truth[n].grad
        ours = float((before[n].double() - after[n].detach().double() - true).abs().max())
        theirs = float((p.grad.double() - true).abs().max())
        # the subtraction of the update rounds to the weight's precision
        slack = float(before[n].abs().max()) * 2.4e-7
        scale = max(float(true.abs().max()), 1e-3)
        assert ours <= max(1e-4 * scale, 10 * theirs) + slack, n


@pytest.mark.parametrize("name", CASES)
def test_training_follows_eager(name):
    # Training feeds rounding back, in some models strongly: what float32 can promise is to stay as
    # close to float64 as eager float32 does.
    case = CASES[name]
    model, batch = case.model(), case.data()
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    executor = poptorch.trainingModel(
        model, options=quiet(), optimizer=case.optimizer(model.parameters())
    )
    optimizers = [case.optimizer(m.parameters()) for m in (eager, exact)]
    first = 1e-3
    for step in range(case.steps):
        loss = executor(*batch)[1].double()
        _, theirs = eager_step(eager, optimizers[0], batch)
        _, true = eager_step(exact, optimizers[1], double(batch))
        first = max(first, float(true))  # the loss may fall to nothing, its error does not
        assert_no_worse(loss, theirs.double(), true, f"loss of step {step}", at_least=first)
    executor.copyWeightsToHost()
    states = zip(
        *(m.state_dict().items() for m in (model, eager, exact)),
        strict=True,
    )
    for (n, ours), (_, theirs), (_, true) in states:
        assert_no_worse(ours.double(), theirs.double(), true.double(), n)


@pytest.mark.parametrize("name", CASES)
def test_no_host_calls(name):
    case = CASES[name]
    model, batch = case.model(), case.data()
    executor = poptorch.trainingModel(
        model, options=quiet(), optimizer=case.optimizer(model.parameters())
    )
    executor.compile(*batch)
    assert summary(executor)["host_calls"] == []


def test_a_batch_norm_far_from_zero_keeps_its_precision():
    # mean 1000, deviation 1: the plain difference of squares has no digit left
    torch.manual_seed(0)
    model = torch.nn.BatchNorm2d(4)
    x = torch.randn(8, 4, 6, 6) + 1000.0
    eager = copy.deepcopy(model)(x).detach()
    wrapped = poptorch.inferenceModel(model.train(), options=quiet())
    torch.testing.assert_close(wrapped(x), eager, rtol=0, atol=5e-3)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_part_trains():
    class Halves(torch.nn.Module):
        def __init__(self, first):
            super().__init__()
            self.first, self.second = first, torch.nn.Linear(4, 2)

        def forward(self, x, target):
            y = self.second(self.first(x))
            return y, torch.nn.functional.mse_loss(y, target)

    eager = Halves(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
    model = Halves(torch.jit.script(copy.deepcopy(eager.first)))
    model.second.load_state_dict(eager.second.state_dict())
    batch = torch.randn(3, 4), torch.randn(3, 2)
    eager_step(eager, torch.optim.SGD(eager.parameters(), lr=0.1), batch)
    training = poptorch.trainingModel(
        model, quiet(), poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    training(*batch)
    for name, value in eager.state_dict().items():
        assert_pass_close(model.state_dict()[name], value, name)
