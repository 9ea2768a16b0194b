# SPDX-License-Identifier: Apache-2.0
"""Large convolutions and batch norm."""

import functools

import torch
from torch import nn

from bench.harness import case
from bench.models import WithLoss, resnet18, resnet50

SGD = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
IMAGES = (4, 3, 224, 224)
FEW_IMAGES = (2, 3, 224, 224)


@case("ResNet-18, 4 x 3 x 224 x 224, train", eager=1.25, compiled=1.2)
def resnet18_train(ctx):
    data = torch.randn(IMAGES), torch.randint(0, 1000, IMAGES[:1])
    return ctx.training(WithLoss(resnet18(), nn.CrossEntropyLoss()), SGD, data)


@case("ResNet-18, 4 x 3 x 224 x 224, inference", eager=1.25, compiled=1.1)
def resnet18_infer(ctx):
    return ctx.inference(resnet18(), (torch.randn(IMAGES),))


@case("ResNet-50, 2 x 3 x 224 x 224, train", eager=1, compiled=1)
def resnet50_train(ctx):
    data = torch.randn(FEW_IMAGES), torch.randint(0, 1000, FEW_IMAGES[:1])
    return ctx.training(WithLoss(resnet50(), nn.CrossEntropyLoss()), SGD, data)


@case("ResNet-50, 2 x 3 x 224 x 224, inference", eager=1, compiled=1)
def resnet50_infer(ctx):
    return ctx.inference(resnet50(), (torch.randn(FEW_IMAGES),))


CASES = [resnet18_train, resnet18_infer, resnet50_train, resnet50_infer]
