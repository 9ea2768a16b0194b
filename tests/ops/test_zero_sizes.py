# SPDX-License-Identifier: Apache-2.0
"""Tensors without elements inside a model: as in eager, forward and backward."""

import copy

import poptorch
import pytest
import torch
from torch import nn
from torch.nn import functional as F

NONE = torch.zeros(0, dtype=torch.int64)

STEPS = {
    "slice": lambda m, x: x[:0],
    "join": lambda m, x: torch.cat([x[:0], x]),
    "empty parameter": lambda m, x: torch.cat([m.empty, x]),
    "empty buffer": lambda m, x: torch.cat([m.none, x[:3]], 1),
    "sum": lambda m, x: x[:0].sum(0),
    "mean": lambda m, x: x[:0].mean(),
    "largest": lambda m, x: x[:, :0].amax(0),
    "inner product": lambda m, x: x[:, :0] @ x.t()[:0],
    "no rows": lambda m, x: m.linear(x[:0]),
    "no columns": lambda m, x: F.linear(x[:, :0], torch.zeros(5, 0), m.linear.bias),
    "layer norm": lambda m, x: F.layer_norm(x[:0], (6,)),
    "group norm": lambda m, x: F.group_norm(x[:0], 2),
    "softmax": lambda m, x: x[:, :0].softmax(-1),
    "convolution": lambda m, x: m.conv(x[None][:0]),
    "pool": lambda m, x: F.max_pool1d(x[None][:0], 2),
    "sort": lambda m, x: x[:, :0].sort(1)[0],
    "gather": lambda m, x: x[NONE],
    "embedding": lambda m, x: F.embedding(NONE, m.weight),
    "scatter": lambda m, x: x.index_add(0, NONE, torch.zeros(0, 6)),
    "no queries": lambda m, x: F.scaled_dot_product_attention(
        x[None, None, :0], *[x[None, None]] * 2
    ),
    "no keys": lambda m, x: F.scaled_dot_product_attention(x[None, None], *[x[None, None, :0]] * 2),
    "pad": lambda m, x: F.pad(x[:, :0], (1, 2)),
    "in place": lambda m, x: x[:0].add_(1),
    "running sum": lambda m, x: x[:0].cumsum(0),
}
LOSSES = [
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy_with_logits,
    F.soft_margin_loss,
    lambda x, _, reduction: F.cross_entropy(x, NONE, reduction=reduction),
]


class Model(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.step = step
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.empty = nn.Parameter(torch.zeros(0, 6))
        self.linear = nn.Linear(6, 5)
        self.conv = nn.Conv1d(4, 3, 1)
        self.register_buffer("none", torch.zeros(3, 0))

    def forward(self, x):
        y = self.step(self, x * self.weight)
        return y, poptorch.identity_loss(y.sum() + (self.weight * x).sum(), "none")


def check(step):
    torch.manual_seed(0)
    ours = Model(step)
    eager, x = copy.deepcopy(ours), torch.randn(4, 6)
    options = poptorch.Options().showCompilationProgressBar(False)
    expected, loss = eager(x)
    loss.backward()
    executor = poptorch.trainingModel(ours, options, poptorch.optim.SGD(ours.parameters(), lr=1.0))
    before = {name: p.detach().clone() for name, p in eager.named_parameters()}
    got, _ = executor(x)
    torch.testing.assert_close(got, expected.detach(), equal_nan=True, rtol=1e-4, atol=1e-5)
    for name, p in eager.named_parameters():
        wanted = before[name] - (0 if p.grad is None else p.grad)
        after = dict(ours.named_parameters())[name].detach()
        torch.testing.assert_close(after, wanted, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", STEPS)
def test_steps_without_elements(name):
    check(STEPS[name])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_without_elements(loss, reduction):
    check(lambda m, x: loss(x[:0], x.detach()[:0], reduction=reduction))


def test_group_norm_without_channels():
    """Its gradient is one that torch itself divides by zero for."""

    class Norm(nn.Module):
        def forward(self, x):
            return torch.native_group_norm(x[:, :0], None, None, 4, 0, 1, 1, 1e-5)[1:]

    x = torch.zeros(4, 3)
    for ours, eager in zip(poptorch.inferenceModel(Norm())(x), Norm()(x), strict=True):
        torch.testing.assert_close(ours, eager, equal_nan=True)
