# SPDX-License-Identifier: Apache-2.0
"""Models as users write them, trained for some steps beside eager."""

import models
import pytest
import torch
from against_eager import check_inference, check_steps, summary
from harness import captured
from torch import nn


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def adam(params):
    return torch.optim.Adam(params, lr=1e-3)


class Hf(nn.Module):
    """A model of transformers, which makes its loss itself."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        out = self.model(x, labels=labels)
        return out.logits, out.loss


class BothWays(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(32, 4)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, ids, labels):
        states, (hidden, _) = self.lstm(self.embedding(ids))
        out = self.fc(torch.cat([hidden[-2], hidden[-1]], dim=1) + states.mean(1))
        return out, self.loss(out, labels)


class InvertedResidual(nn.Module):
    def __init__(self, channels, outer, stride):
        super().__init__()
        wide = channels * 4
        self.same = stride == 1 and channels == outer
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(inplace=True),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(inplace=True),
            nn.Conv2d(wide, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        )

    def forward(self, x):
        return x + self.body(x) if self.same else self.body(x)


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.Hardswish(),
            InvertedResidual(8, 8, 1),
            InvertedResidual(8, 12, 2),
            InvertedResidual(12, 12, 1),
        )
        self.classifier = nn.Linear(12, 5)

    def forward(self, x, labels):
        out = self.classifier(self.features(x).mean([2, 3]))
        return out, nn.functional.cross_entropy(out, labels)


class Encoder(nn.Module):
    def __init__(self, norm_first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            24, 3, 48, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first
        )
        self.embedding = nn.Embedding(40, 24)
        self.position = nn.Parameter(torch.randn(1, 10, 24) * 0.1)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(24, 40)

    def forward(self, ids, labels):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.embedding(ids) + self.position
        out = self.head(self.encoder(x, mask=mask, is_causal=True))
        return out, nn.functional.cross_entropy(out.flatten(0, 1), labels.flatten())


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(8, 16, 4, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(16, 32, 4, 2, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(32, 1, 4, 1, 0, bias=False),
        )
        self.loss = nn.BCEWithLogitsLoss()

    def forward(self, x, labels):
        out = self.main(x).view(-1)
        return out.sigmoid(), self.loss(out, labels)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ELU(), nn.Flatten(), nn.Linear(8 * 49, 10), nn.Tanh()
        )
        self.decoder = nn.Sequential(
            nn.Linear(10, 8 * 49),
            nn.ELU(),
            nn.Unflatten(1, (8, 7, 7)),
            nn.ConvTranspose2d(8, 1, 3, 2, 1, output_padding=1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        out = self.decoder(self.encoder(x))
        return out, nn.functional.mse_loss(out, x)


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 16, padding_idx=0)
        self.fc = nn.Linear(16, 3)

    def forward(self, ids, labels):
        mask = (ids != 0).unsqueeze(-1)
        mean = (self.embedding(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        out = torch.log_softmax(self.fc(mean), -1)
        return out, nn.functional.nll_loss(out, labels)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(10, 16, 4, 1, 0, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise, target):
        out = self.main(noise)
        return out, nn.functional.smooth_l1_loss(out, target)


class Vae(nn.Module):
    """Two losses added, and noise from outside so that eager can be followed."""

    def __init__(self):
        super().__init__()
        self.encode, self.mu, self.logvar = nn.Linear(20, 12), nn.Linear(12, 4), nn.Linear(12, 4)
        self.decode = nn.Sequential(nn.Linear(4, 12), nn.SiLU(), nn.Linear(12, 20))

    def forward(self, x, noise):
        h = self.encode(x).relu()
        mu, logvar = self.mu(h), self.logvar(h)
        out = self.decode(mu + noise * torch.exp(0.5 * logvar))
        bce = nn.functional.binary_cross_entropy_with_logits(out, x, reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        from poptorch import identity_loss

        return out, identity_loss((bce + kld) / x.shape[0], reduction="none")


class Gru(nn.Module):
    """A recurrent net written as a loop over a cell."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(6, 10), nn.Linear(10, 6)

    def forward(self, x):
        h, outs = x.new_zeros(x.shape[0], 10), []
        for t in range(x.shape[1] - 1):
            h = self.cell(x[:, t], h)
            outs.append(self.out(h))
        out = torch.stack(outs, 1)
        return out, nn.functional.l1_loss(out, x[:, 1:])


def images(n, channels, size, classes):
    return torch.randn(n, channels, size, size), torch.randint(0, classes, (n,))


def segmentation():
    return torch.randn(2, 1, 24, 24), torch.randint(0, 3, (2, 24, 24))


def unet(upsample):
    return models.WithLoss(models.UNet(1, 3, (8, 16, 32), upsample))


# What tests/train has not: BERT, GPT-2 and the ResNets are there.
# name: (model, batch, optimizer, whether weights can be compared: Adam divides rounding by rounding
# where a gradient is zero)
MODELS = {
    "unet": (lambda: unet(None), segmentation, sgd, 1),
    "unet_bilinear": (lambda: unet("bilinear"), segmentation, sgd, 1),
    "unet_nearest": (lambda: unet("nearest"), segmentation, sgd, 1),
    "lstm": (
        lambda: models.WithLoss(models.LstmClassifier(50, 16, classes=4)),
        lambda: (torch.randint(0, 50, (6, 7)), torch.randint(0, 4, (6,))),
        sgd,
        1,
    ),
    "lstm_both_ways": (
        BothWays,
        lambda: (torch.randint(0, 50, (6, 7)), torch.randint(0, 4, (6,))),
        sgd,
        1,
    ),
    "vit": (lambda: Hf(models.tiny_vit()), lambda: images(4, 3, 32, 10), sgd, 1),
    "mobilenet": (MobileNet, lambda: images(8, 3, 32, 5), sgd, 1),
    "encoder_post_norm": (
        lambda: Encoder(False),
        lambda: (torch.randint(0, 40, (3, 10)), torch.randint(0, 40, (3, 10))),
        adam,
        0,
    ),
    "encoder_pre_norm": (
        lambda: Encoder(True),
        lambda: (torch.randint(0, 40, (3, 10)), torch.randint(0, 40, (3, 10))),
        sgd,
        1,
    ),
    "discriminator": (
        Discriminator,
        lambda: (torch.randn(8, 3, 32, 32), torch.randint(0, 2, (8,)).float()),
        sgd,
        1,
    ),
    "generator": (
        Generator,
        lambda: (torch.randn(4, 10, 1, 1), torch.rand(4, 3, 16, 16) * 2 - 1),
        adam,
        0,
    ),
    "autoencoder": (AutoEncoder, lambda: (torch.rand(5, 1, 14, 14),), adam, 0),
    "autoencoder_sgd": (AutoEncoder, lambda: (torch.rand(5, 1, 14, 14),), sgd, 1),
    "vae": (Vae, lambda: (torch.rand(6, 20), torch.randn(6, 4)), adam, 0),
    "bag_of_words": (
        BagOfWords,
        lambda: (torch.randint(0, 100, (8, 9)), torch.randint(0, 3, (8,))),
        sgd,
        1,
    ),
    "gru_loop": (Gru, lambda: (torch.randn(3, 6, 6),), sgd, 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_training(name):
    build, data, optimizer, exact_weights = MODELS[name]
    torch.manual_seed(0)
    model, batch = build(), data()
    executor = check_steps(model, batch, optimizer, exact_weights=bool(exact_weights))
    assert summary(executor)["host_calls"] == []


@pytest.mark.parametrize("name", MODELS)
def test_inference(name):
    build, data, _, _ = MODELS[name]
    torch.manual_seed(0)
    executor = check_inference(build().eval(), data(), calls=1)
    assert summary(executor)["host_calls"] == []


def text(vocab):
    return torch.randint(0, vocab, (1, 64))


IMAGE = torch.zeros(1, 3, 224, 224)
FULL_SIZE = {
    "bert_base": (lambda: Hf(models.bert()), lambda: (text(30522), torch.tensor([1]))),
    "gpt2": (lambda: Hf(models.gpt2()), lambda: (text(50257), text(50257))),
    "vit_b_16": (lambda: Hf(models.vit()), lambda: (IMAGE, torch.tensor([1]))),
    "resnet50": (
        lambda: models.WithLoss(models.resnet50()),
        lambda: (IMAGE, torch.tensor([1])),
    ),
    "lstm": (
        lambda: models.WithLoss(models.LstmClassifier(dropout=0.1)),
        lambda: (text(10000), torch.tensor([1])),
    ),
    "unet": (lambda: models.WithLoss(models.UNet()), lambda: (IMAGE, IMAGE[:, 0].long())),
    "unet_bilinear": (
        lambda: models.WithLoss(models.UNet(upsample="bilinear")),
        lambda: (IMAGE, IMAGE[:, 0].long()),
    ),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", FULL_SIZE)
def test_every_op_of_the_full_size_has_a_kernel(name, training):
    build, data = FULL_SIZE[name]
    with torch.device("meta"):  # no weights: the ops are what is looked at
        model = build().train(training)
    assert captured(model, data(), training=training).host_ops == []
