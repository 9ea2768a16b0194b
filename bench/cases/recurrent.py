# SPDX-License-Identifier: Apache-2.0
"""A recurrent classifier: many small products, one after another."""

import functools

import torch
from torch import nn

from bench.harness import case
from bench.models import LstmClassifier, WithLoss

SGD = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
TEXT = (16, 64)


def tokens(model):
    return torch.randint(0, model.vocabulary, TEXT)


@case("LSTM 2 layers of 256, train, 16 x 64", eager=1, compiled=1)
def lstm_train(ctx):
    model = LstmClassifier()
    data = tokens(model), torch.randint(0, 10, TEXT[:1])
    return ctx.training(WithLoss(model, nn.CrossEntropyLoss()), SGD, data)


@case("LSTM 2 layers of 256, inference, 16 x 64", eager=1, compiled=1)
def lstm_infer(ctx):
    model = LstmClassifier()
    return ctx.inference(model, (tokens(model),))


CASES = [lstm_train, lstm_infer]
