# SPDX-License-Identifier: Apache-2.0
"""The tutorial's Fashion-MNIST CNN: the smallest and the most frequent first program."""

import functools

import torch
from torch import nn

from bench.harness import case
from bench.models import TutorialCNN, WithLoss

SGD = functools.partial(torch.optim.SGD, lr=0.001, momentum=0.9)


def images(batch):
    return torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))


def train(ctx, batch):
    return ctx.training(WithLoss(TutorialCNN(), nn.NLLLoss()), SGD, images(batch))


def infer(ctx, batch):
    return ctx.inference(TutorialCNN(), images(batch)[:1])


@case("tutorial CNN, train, batch 16", eager=5, compiled=8)
def cnn_train_16(ctx):
    return train(ctx, 16)


@case("tutorial CNN, train, batch 256", eager=3, compiled=4)
def cnn_train_256(ctx):
    return train(ctx, 256)


@case("tutorial CNN, inference, batch 16", eager=5, compiled=4)
def cnn_infer_16(ctx):
    return infer(ctx, 16)


@case("tutorial CNN, inference, batch 256", eager=3, compiled=2.5)
def cnn_infer_256(ctx):
    return infer(ctx, 256)


CASES = [cnn_train_16, cnn_train_256, cnn_infer_16, cnn_infer_256]
