# SPDX-License-Identifier: Apache-2.0
"""An encoder, a decoder and a vision transformer, two layers each: large matrix products, dropout,
AdamW."""

import functools

import torch
from torch import nn

from bench.harness import case
from bench.models import Logits, NextTokenLoss, WithLoss, bert, gpt2, vit

ADAMW = functools.partial(torch.optim.AdamW, lr=1e-4)
FUSED_ADAMW = functools.partial(torch.optim.AdamW, lr=1e-4, fused=True)


IMAGES = (4, 3, 224, 224)


def tokens(model, batch):
    return torch.randint(0, model.model.config.vocab_size, (batch, 128))


@case(
    "BERT-base 2 layers, train, 4 x 128, AdamW",
    eager=1.6,
    fused=1.25,
    compiled=1.6,
    same_result=False,
)
def bert_train(ctx):
    model = Logits(bert(layers=2))
    data = tokens(model, 4), torch.randint(0, 2, (4,))
    return ctx.training(WithLoss(model, nn.CrossEntropyLoss()), ADAMW, data, fused=FUSED_ADAMW)


@case("GPT-2 2 layers, train, 2 x 128, AdamW", eager=2, compiled=1.8, same_result=False)
def gpt2_train(ctx):
    model = Logits(gpt2(layers=2))
    ids = tokens(model, 2)
    return ctx.training(WithLoss(model, NextTokenLoss()), ADAMW, (ids, ids))


@case("BERT-base 2 layers, inference, 4 x 128", eager=1.1, compiled=1.1)
def bert_infer(ctx):
    model = Logits(bert(layers=2))
    return ctx.inference(model, (tokens(model, 4),))


@case("ViT-B/16 2 layers, train, 4 x 224 x 224", eager=1, compiled=1)
def vit_train(ctx):
    data = torch.randn(IMAGES), torch.randint(0, 1000, IMAGES[:1])
    model = WithLoss(Logits(vit(layers=2)), nn.CrossEntropyLoss())
    return ctx.training(model, ADAMW, data)


@case("ViT-B/16 2 layers, inference, 4 x 224 x 224", eager=1, compiled=1)
def vit_infer(ctx):
    return ctx.inference(Logits(vit(layers=2)), (torch.randn(IMAGES),))


CASES = [bert_train, gpt2_train, bert_infer, vit_train, vit_infer]
