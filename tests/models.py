# SPDX-License-Identifier: Apache-2.0
"""Models that the tests and benchmarks share. Each has a loss inside: forward returns (output,
loss)."""

import torch
from torch import nn


class TutorialCNN(nn.Module):
    """The classifier of the Fashion-MNIST tutorial; its softmax is over the batch, as published."""

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


class MLP(nn.Module):
    """784-512-256-10."""

    def __init__(self, sizes=(784, 512, 256, 10)):
        super().__init__()
        layers = []
        for a, b in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.layers(x.flatten(1))


class WithLoss(nn.Module):
    """Adds a criterion to a model: forward(x, labels) gives (output, loss), forward(x) the
    output."""

    def __init__(self, model, criterion=None):
        super().__init__()
        self.model = model
        self.criterion = criterion or nn.CrossEntropyLoss()

    def forward(self, x, labels=None):
        output = self.model(x)
        if labels is None:
            return output
        return output, self.criterion(output, labels)


class _Basic(nn.Module):
    growth = 1

    def __init__(self, inner, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(inner, width, stride)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class _Bottleneck(nn.Module):
    growth = 4

    def __init__(self, inner, width, stride):
        super().__init__()
        outer = width * self.growth
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(inner, outer, stride)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.shortcut(x)
        return self.relu(out)


def _shortcut(inner, outer, stride):
    if stride == 1 and inner == outer:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))


class ResNet(nn.Module):
    """The residual network for 224 x 224 images; smaller images work too."""

    def __init__(self, block, depths, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        inner, stages = 64, []
        for i, depth in enumerate(depths):
            width = 64 * 2**i
            blocks = []
            for k in range(depth):
                blocks.append(block(inner, width, 2 if i and k == 0 else 1))
                inner = width * block.growth
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inner, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(self.head(self.stages(x)).flatten(1))


def resnet18(classes=1000):
    return ResNet(_Basic, (2, 2, 2, 2), classes)


def resnet50(classes=1000):
    return ResNet(_Bottleneck, (3, 4, 6, 3), classes)


def bert(layers=2, hidden=768, heads=12, vocab=30522, dropout=0.1, positions=512):
    """BERT for sequence classification from transformers; call with input_ids, attention_mask,
    labels."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        max_position_embeddings=positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=2,
    )
    return BertForSequenceClassification(config)


def gpt2(layers=2, hidden=768, heads=12, vocab=50257, dropout=0.1, positions=1024):
    """GPT-2 language model from transformers; call with input_ids and labels."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab,
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        n_positions=positions,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=vocab - 1,
        eos_token_id=vocab - 1,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def tiny_bert(dropout=0.0):
    return bert(layers=2, hidden=32, heads=2, vocab=100, dropout=dropout, positions=64)


def tiny_gpt2(dropout=0.0):
    return gpt2(layers=2, hidden=32, heads=2, vocab=100, dropout=dropout, positions=64)
