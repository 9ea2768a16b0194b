# SPDX-License-Identifier: Apache-2.0
"""The models that are measured. Convolutional ones are plain PyTorch; transformers come from
Hugging Face configurations with random weights and their usual dropout, as users train them."""

import torch
from torch import nn


class WithLoss(nn.Module):
    """A model and its criterion as one module: `(x, y) -> (output, loss)`."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, x, y):
        output = self.model(x)
        return output, self.criterion(output, y)


class TutorialCNN(nn.Module):
    """The Fashion-MNIST classifier of the PopTorch tutorial, log-softmax over dim 0 included."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 5, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(5, 12, 5)
        self.norm = nn.GroupNorm(3, 12)
        self.fc1 = nn.Linear(972, 100)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(100, 10)
        self.log_softmax = nn.LogSoftmax(dim=0)

    def forward(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.norm(self.relu(self.conv2(x)))
        x = torch.flatten(x, start_dim=1)
        x = self.relu(self.fc1(x))
        return self.log_softmax(self.fc2(x))


class MLP(nn.Sequential):
    """784-512-256-10 with ReLU."""

    def __init__(self):
        super().__init__(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
        )


def _conv_bn(inputs, outputs, kernel, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class _Block(nn.Module):
    """Residual block: `layers` in series beside a shortcut that fits their shape."""

    def __init__(self, layers, inputs, outputs, stride):
        super().__init__()
        self.layers = layers
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv_bn(inputs, outputs, 1, stride)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.layers(x) + self.shortcut(x))


def _basic(inputs, width, stride):
    layers = nn.Sequential(_conv_bn(inputs, width, 3, stride), nn.ReLU(), _conv_bn(width, width, 3))
    return _Block(layers, inputs, width, stride), width


def _bottleneck(inputs, width, stride):
    layers = nn.Sequential(
        _conv_bn(inputs, width, 1),
        nn.ReLU(),
        _conv_bn(width, width, 3, stride),
        nn.ReLU(),
        _conv_bn(width, 4 * width, 1),
    )
    return _Block(layers, inputs, 4 * width, stride), 4 * width


def _resnet(make_block, depths, classes):
    stages = [_conv_bn(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        for i in range(depth):
            stride = 2 if stage > 0 and i == 0 else 1
            block, channels = make_block(channels, 64 << stage, stride)
            stages.append(block)
    return nn.Sequential(
        *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


def resnet18(classes=1000):
    return _resnet(_basic, (2, 2, 2, 2), classes)


def resnet50(classes=1000):
    return _resnet(_bottleneck, (3, 4, 6, 3), classes)


class Bert(nn.Module):
    """BERT-base cut to a few layers, classifying sequences."""

    def __init__(self, layers=2):
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        self.bert = BertForSequenceClassification(BertConfig(num_hidden_layers=layers))
        self.vocabulary = self.bert.config.vocab_size

    def forward(self, ids):
        return self.bert(input_ids=ids, return_dict=False)[0]


class Gpt2(nn.Module):
    """GPT-2 cut to a few layers, predicting the next token."""

    def __init__(self, layers=2):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=layers, use_cache=False))
        self.vocabulary = self.gpt2.config.vocab_size

    def forward(self, ids):
        return self.gpt2(input_ids=ids, return_dict=False)[0]


class NextTokenLoss(nn.Module):
    """Cross-entropy of logits [batch, time, vocabulary] against token ids [batch, time]."""

    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()

    def forward(self, logits, ids):
        return self.loss(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class PointwiseChain(nn.Module):
    """What stands between two products of a transformer: bias, gelu, dropout mask, residual."""

    def __init__(self, columns=768, keep=0.9):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(columns))
        self.scale = 1 / keep

    def forward(self, x, mask, residual):
        return residual + mask * self.scale * nn.functional.gelu(x + self.bias)
