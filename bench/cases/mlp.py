# SPDX-License-Identifier: Apache-2.0
"""Small matrix products, where the weight update is most of the work."""

import functools

import torch
from torch import nn

from bench.harness import case
from bench.models import MLP, WithLoss

SGD = functools.partial(torch.optim.SGD, lr=0.001, momentum=0.9)


def train(ctx, batch):
    data = torch.randn(batch, 784), torch.randint(0, 10, (batch,))
    return ctx.training(WithLoss(MLP(), nn.CrossEntropyLoss()), SGD, data)


@case("MLP 784-512-256-10, train, batch 16", eager=2, compiled=2)
def mlp_train_16(ctx):
    return train(ctx, 16)


@case("MLP 784-512-256-10, train, batch 64", eager=1.5, compiled=1.5)
def mlp_train_64(ctx):
    return train(ctx, 64)


CASES = [mlp_train_16, mlp_train_64]
