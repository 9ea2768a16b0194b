# SPDX-License-Identifier: Apache-2.0
"""The models of the spine, small enough to train here, each with a batch and an optimizer."""

from collections.abc import Callable
from dataclasses import dataclass

import models
import torch
from torch import nn


class LanguageModel(nn.Module):
    """Calls a transformers model by keyword and returns (logits, loss)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, labels, mask=None):
        out = self.model(input_ids=ids, attention_mask=mask, labels=labels)
        return out.logits, out.loss


@dataclass
class Case:
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple]
    optimizer: Callable
    steps: int = 20

    def model(self):
        torch.manual_seed(0)
        return self.build().train()

    def data(self):
        torch.manual_seed(1)
        return self.batch()


def _images(n, channels, size, classes):
    return torch.randn(n, channels, size, size), torch.randint(0, classes, (n,))


def _sgd(params):
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)


def _adamw(params):
    return torch.optim.AdamW(params, lr=1e-3)


def _adam(params):
    return torch.optim.Adam(params, lr=1e-3)


def _calm_resnet50():
    # A fresh ResNet-50 amplifies rounding until even eager float32 is 30 % away from float64 in
    # some gradients; blocks that start as the identity do not.
    model = models.resnet50(10)
    for block in (b for stage in model.stages for b in stage):
        nn.init.constant_(block.bn3.weight, 0.1)
    return models.WithLoss(model)


CASES = {
    "cnn_b16": Case(
        lambda: models.WithLoss(models.TutorialCNN(), nn.NLLLoss()),
        lambda: _images(16, 1, 28, 10),
        _sgd,
    ),
    "cnn_b5": Case(
        lambda: models.WithLoss(models.TutorialCNN(), nn.NLLLoss()),
        lambda: _images(5, 1, 28, 10),
        _sgd,
    ),
    "cnn_b48": Case(
        lambda: models.WithLoss(models.TutorialCNN(), nn.NLLLoss()),
        lambda: _images(48, 1, 28, 10),
        _sgd,
    ),
    "mlp_b16": Case(
        lambda: models.WithLoss(models.MLP()),
        lambda: (torch.randn(16, 784), torch.randint(0, 10, (16,))),
        _sgd,
    ),
    "mlp_b64_adam": Case(
        lambda: models.WithLoss(models.MLP()),
        lambda: (torch.randn(64, 784), torch.randint(0, 10, (64,))),
        _adam,
    ),
    "resnet18": Case(
        lambda: models.WithLoss(models.resnet18(10)), lambda: _images(4, 3, 64, 10), _sgd
    ),
    "resnet50": Case(
        _calm_resnet50,
        lambda: _images(4, 3, 64, 10),
        lambda params: torch.optim.SGD(params, lr=1e-4, momentum=0.9),
        steps=5,  # float64 is slow here
    ),
    "bert": Case(
        lambda: LanguageModel(models.tiny_bert()),
        lambda: (torch.randint(0, 100, (4, 24)), torch.randint(0, 2, (4,))),
        _adamw,
    ),
    "bert_masked": Case(
        lambda: LanguageModel(models.tiny_bert()),
        lambda: (
            torch.randint(0, 100, (4, 24)),
            torch.randint(0, 2, (4,)),
            (torch.arange(24)[None] < torch.tensor([24, 20, 9, 3])[:, None]).long(),
        ),
        _sgd,
    ),
    "gpt2": Case(
        lambda: LanguageModel(models.tiny_gpt2()),
        lambda: (ids := torch.randint(0, 100, (2, 24)), ids),
        _adamw,
    ),
    "gpt2_sgd": Case(
        lambda: LanguageModel(models.tiny_gpt2()),
        lambda: (ids := torch.randint(0, 100, (2, 24)), ids),
        _sgd,
    ),
}
