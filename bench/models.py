# SPDX-License-Identifier: Apache-2.0
"""The models that are measured; tests take small forms of them. Convolutional and recurrent ones
are plain PyTorch; transformers come from Hugging Face configurations with random weights and their
usual dropout, as users train them."""

import itertools

import torch
from torch import nn


class WithLoss(nn.Module):
    """A model and its criterion as one module: `(x, labels) -> (output, loss)`, `x -> output`."""

    def __init__(self, model, criterion=None):
        super().__init__()
        self.model = model
        self.criterion = criterion or nn.CrossEntropyLoss()

    def forward(self, x, labels=None):
        output = self.model(x)
        if labels is None:
            return output
        return output, self.criterion(output, labels)


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


# ResNet -----------------------------------------------------------------------------------------


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


# U-Net ------------------------------------------------------------------------------------------


class UNet(nn.Module):
    """Encoder and decoder with joins between equal sizes; `widths` from the finest to the coarsest.

    The decoder grows by transposed convolutions, or by `upsample` ("bilinear" or "nearest").
    """

    def __init__(self, channels=3, classes=2, widths=(64, 128, 256, 512, 1024), upsample=None):
        super().__init__()
        steps = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(_double(a, b) for a, b in [(channels, widths[0]), *steps])
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(_grow(b, a, upsample) for a, b in reversed(steps))
        self.join = nn.ModuleList(_double(2 * a, a) for a, _ in reversed(steps))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        kept = []
        for i, down in enumerate(self.down):
            x = down(self.pool(x) if i else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


def _double(inner, outer):
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(inplace=True),
        nn.Conv2d(outer, outer, 3, padding=1, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(inplace=True),
    )


def _grow(inner, outer, upsample):
    if upsample is None:
        return nn.ConvTranspose2d(inner, outer, 2, 2)
    align = True if upsample == "bilinear" else None
    return nn.Sequential(
        nn.Upsample(scale_factor=2, mode=upsample, align_corners=align),
        nn.Conv2d(inner, outer, 3, padding=1),
    )


# Recurrent --------------------------------------------------------------------------------------


class LstmClassifier(nn.Module):
    """Embedding, LSTM layers, and a linear layer on the last state."""

    def __init__(self, vocabulary=10000, width=256, layers=2, classes=10, dropout=0.0):
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.fc = nn.Linear(width, classes)

    def forward(self, ids):
        states, _ = self.lstm(self.embedding(ids))
        return self.fc(states[:, -1])


# Transformers -----------------------------------------------------------------------------------


def bert(layers=12, hidden=768, heads=12, vocab=30522, dropout=0.1, positions=512):
    """BERT that classifies sequences; call with input_ids, attention_mask, labels."""
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


def gpt2(layers=12, hidden=768, heads=12, vocab=50257, dropout=0.1, positions=1024):
    """GPT-2 that predicts the next token; call with input_ids and labels."""
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


def vit(layers=12, hidden=768, heads=12, image=224, patch=16, classes=1000, dropout=0.0):
    """ViT that classifies images, B/16 by default; call with pixel_values and labels."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        image_size=image,
        patch_size=patch,
        num_labels=classes,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return ViTForImageClassification(config)


class Logits(nn.Module):
    """A model of transformers as a function of one tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x, return_dict=False)[0]


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
