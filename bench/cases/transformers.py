# SPDX-License-Identifier: Apache-2.0
"""An encoder and a decoder, two layers each: large matrix products, dropout, AdamW."""

import functools

import torch
from torch import nn

from bench.harness import case
from bench.models import Bert, Gpt2, NextTokenLoss, WithLoss

ADAMW = functools.partial(torch.optim.AdamW, lr=1e-4)
FUSED_ADAMW = functools.partial(torch.optim.AdamW, lr=1e-4, fused=True)


def tokens(model, batch):
    return torch.randint(0, model.vocabulary, (batch, 128))


@case(
    "BERT-base 2 layers, train, 4 x 128, AdamW",
    eager=1.6,
    fused=1.25,
    compiled=1.6,
    same_result=False,
)
def bert_train(ctx):
    model = Bert()
    data = tokens(model, 4), torch.randint(0, 2, (4,))
    return ctx.training(WithLoss(model, nn.CrossEntropyLoss()), ADAMW, data, fused=FUSED_ADAMW)


@case("GPT-2 2 layers, train, 2 x 128, AdamW", eager=2, compiled=1.8, same_result=False)
def gpt2_train(ctx):
    model = Gpt2()
    ids = tokens(model, 2)
    return ctx.training(WithLoss(model, NextTokenLoss()), ADAMW, (ids, ids))


@case("BERT-base 2 layers, inference, 4 x 128", eager=1.1, compiled=1.1)
def bert_infer(ctx):
    model = Bert()
    return ctx.inference(model, (tokens(model, 4),))


CASES = [bert_train, gpt2_train, bert_infer]
