# SPDX-License-Identifier: Apache-2.0
"""Parameters that forward writes in place and that are trained: the update starts from what was
written, as in eager PyTorch, for every way to run."""

import copy

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Scaled(nn.Module):
    """Halves its weight in every call, before it is used."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x, target):
        with torch.no_grad():
            self.weight.mul_(0.5)
        out = x @ self.weight
        return out, F.mse_loss(out, target)


class ClampedAfterUse(Scaled):
    """Limits its weight after it was used; the gradient still needs the value before."""

    def forward(self, x, target):
        out = (x @ self.weight.exp()).tanh()
        loss = F.mse_loss(out, target)
        with torch.no_grad():
            self.weight.clamp_(-0.2, 0.2)
        return out, loss


class RowsThroughData(nn.Module):
    """Writes rows through ``.data``, in two layers, one of which is frozen."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)
        self.second.bias.requires_grad_(False)

    def forward(self, x, target):
        self.first.weight.data.clamp_(-0.2, 0.2)
        self.first.weight.data[0] = 0.1
        self.second.bias.data.add_(0.01)
        out = self.second(self.first(x).tanh())
        return out, F.mse_loss(out, target)


class NewData(nn.Module):
    """Gives a weight new data, and a bias what it computed."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, target):
        self.linear.weight.data = self.linear.weight.data.clamp(-0.3, 0.3)
        out = self.linear(x).tanh()
        loss = F.mse_loss(out, target)
        self.linear.bias.data = out.detach().mean(0)
        return out, loss


class Renormed(nn.Module):
    """An embedding that limits the norm of the rows it looks up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 3, max_norm=1.0)
        nn.init.normal_(self.table.weight, std=3)

    def forward(self, x, target):
        out = self.table(x.abs().sum(1).mul(3).long() % 6)
        return out, F.mse_loss(out, target)


class TwoStages(nn.Module):
    """Both stages write their weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Scaled(), Scaled()

    def forward(self, x, target):
        poptorch.Block.useAutoId()
        with poptorch.Block("A", ipu_id=0), torch.no_grad():
            self.first.weight.clamp_(-0.5, 0.5)
        with poptorch.Block("A", ipu_id=0):
            x = (x @ self.first.weight).tanh()
        with poptorch.Block("B", ipu_id=1):
            with torch.no_grad():
                self.second.weight.mul_(1 + 0.1 * x.mean())
            out = x @ self.second.weight
            return out, F.mse_loss(out, target)


MODELS = (Scaled, ClampedAfterUse, RowsThroughData, NewData, Renormed)
RULES = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.05),
}
WAYS = {
    "plain": {},
    "accumulation": {"accumulation": 3},
    "iterations": {"iterations": 2},
    "replicas": {"replicas": 2},
    "all": {"accumulation": 2, "iterations": 2, "replicas": 2},
}
BATCH = 4


def data(calls, micro, dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    shape = (calls, micro * BATCH, 3)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]


def eager(model, rule, inputs, accumulation=1, iterations=1, replicas=1):
    """Trains one model per replica as data parallel programs do; returns the first."""
    models = [copy.deepcopy(model) for _ in range(replicas)]
    optimizers = [rule([p for p in m.parameters() if p.requires_grad]) for m in models]
    micro = iter(zip(*(t.flatten(0, 1).split(BATCH) for t in inputs), strict=True))
    for _ in range(len(inputs[0]) * iterations):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for _ in range(accumulation):
            for each in models:
                each(*next(micro))[1].backward()
        for params in zip(*(m.parameters() for m in models), strict=True):
            if params[0].grad is not None:
                mean = sum(p.grad for p in params) / (accumulation * replicas)
                for p in params:
                    p.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    return models[0]


def compiled(model, optimizer, inputs, accumulation=1, iterations=1, replicas=1, strategy=None):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.deviceIterations(iterations).replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    if strategy is not None:
        options.setExecutionStrategy(strategy)
    training = poptorch.trainingModel(model, options, optimizer)
    for call in zip(*inputs, strict=True):
        training(*call)
    return training


def check(model, rule, way, **tolerance):
    counts = {k: v for k, v in way.items() if k != "strategy"}
    micro = 1
    for count in counts.values():
        micro *= count
    inputs = data(3, micro, next(model.parameters()).dtype)
    expected = eager(model, rule, inputs, **counts)
    trainable = [p for p in model.parameters() if p.requires_grad]
    compiled(model, rule(trainable), inputs, **way)
    torch.testing.assert_close(
        dict(model.state_dict()), dict(expected.state_dict()), **tolerance or {}
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("build", MODELS)
def test_the_update_starts_from_what_forward_wrote(build, rule, way):
    torch.manual_seed(0)
    check(build(), RULES[rule], WAYS[way])


@pytest.mark.parametrize("way", ("plain", "accumulation"))
@pytest.mark.parametrize("build", (Scaled, RowsThroughData))
def test_written_half_precision_weights_train(build, way):
    torch.manual_seed(0)
    check(build().half(), RULES["sgd"], WAYS[way], rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("replicas", (1, 2))
@pytest.mark.parametrize("strategy", (poptorch.PipelinedExecution, poptorch.ShardedExecution))
def test_stages_write_their_weights(strategy, replicas):
    torch.manual_seed(0)
    way = {"accumulation": 4, "iterations": 2, "replicas": replicas}
    check(TwoStages(), RULES["momentum"], {**way, "strategy": strategy("A", "B")})


def test_weights_that_accumulate_in_the_velocity_are_decayed_as_written():
    torch.manual_seed(0)
    model = Scaled()
    inputs = data(3, 3)
    expected = eager(model, RULES["momentum"], inputs, accumulation=3)
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, use_combined_accum=True
    )
    compiled(model, optimizer, inputs, accumulation=3)
    torch.testing.assert_close(dict(model.state_dict()), dict(expected.state_dict()))


def test_a_written_parameter_of_no_group_keeps_what_was_written():
    model = RowsThroughData()
    before = model.first.weight.detach().clone()
    inputs = data(1, 1)
    compiled(model, torch.optim.SGD([model.second.weight], lr=0.1), inputs)
    before.clamp_(-0.2, 0.2)
    before[0] = 0.1
    torch.testing.assert_close(model.first.weight.detach(), before)


def test_data_of_another_shape_is_refused():
    class Grows(Scaled):
        def forward(self, x, target):
            self.weight.data = torch.ones(3, 4)
            return super().forward(x, target)

    with pytest.raises(poptorch.Error, match=r"shape \[3, 3\] is set to one of .*\[3, 4\]"):
        compiled(Grows(), None, data(1, 1))
