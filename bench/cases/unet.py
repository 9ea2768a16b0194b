# SPDX-License-Identifier: Apache-2.0
"""Encoder and decoder on images: joins, transposed convolutions or upsampling."""

import functools

import torch
from torch import nn

from bench.harness import case
from bench.models import UNet, WithLoss

SGD = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
WIDTHS = (32, 64, 128, 256)
IMAGES = (2, 3, 128, 128)


def train(ctx, upsample):
    data = torch.randn(IMAGES), torch.randint(0, 2, (IMAGES[0], *IMAGES[2:]))
    model = UNet(widths=WIDTHS, upsample=upsample)
    return ctx.training(WithLoss(model, nn.CrossEntropyLoss()), SGD, data)


@case("U-Net, 2 x 3 x 128 x 128, train", eager=1, compiled=1)
def unet_train(ctx):
    return train(ctx, None)


@case("U-Net, 2 x 3 x 128 x 128, inference", eager=1, compiled=1)
def unet_infer(ctx):
    return ctx.inference(UNet(widths=WIDTHS), (torch.randn(IMAGES),))


@case("U-Net, bilinear, 2 x 3 x 128 x 128, train", eager=1, compiled=1)
def unet_bilinear_train(ctx):
    return train(ctx, "bilinear")


@case("U-Net, bilinear, 2 x 3 x 128 x 128, inference", eager=1, compiled=1)
def unet_bilinear_infer(ctx):
    return ctx.inference(UNet(widths=WIDTHS, upsample="bilinear"), (torch.randn(IMAGES),))


CASES = [unet_train, unet_infer, unet_bilinear_train, unet_bilinear_infer]
