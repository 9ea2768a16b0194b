# SPDX-License-Identifier: Apache-2.0
"""Models as users write them, trained for some steps beside eager."""

import pytest
import torch
from against_eager import check_steps, summary
from torch import nn


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def adam(params):
    return torch.optim.Adam(params, lr=1e-3)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = self.block(1, 8), self.block(8, 16)
        self.bottom = self.block(16, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.join2, self.join1 = self.block(32, 16), self.block(16, 8)
        self.head = nn.Conv2d(8, 3, 1)
        self.pool = nn.MaxPool2d(2)

    @staticmethod
    def block(inner, outer):
        return nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, padding=1),
            nn.ReLU(inplace=True),
        )

    def forward(self, x, labels):
        a = self.down1(x)
        b = self.down2(self.pool(a))
        c = self.bottom(self.pool(b))
        b = self.join2(torch.cat([self.up2(c), b], 1))
        a = self.join1(torch.cat([self.up1(b), a], 1))
        out = self.head(a)
        return out, nn.functional.cross_entropy(out, labels)


class LstmClassifier(nn.Module):
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


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import ViTConfig, ViTForImageClassification

        self.vit = ViTForImageClassification(
            ViTConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                image_size=32,
                patch_size=8,
                num_labels=10,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )

    def forward(self, x, labels):
        out = self.vit(pixel_values=x, labels=labels)
        return out.logits, out.loss


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


# name: (model, batch, optimizer, whether weights can be compared: Adam divides rounding by rounding
# where a gradient is zero)
MODELS = {
    "unet": (UNet, lambda: (torch.randn(2, 1, 24, 24), torch.randint(0, 3, (2, 24, 24))), sgd, 1),
    "lstm": (
        LstmClassifier,
        lambda: (torch.randint(0, 50, (6, 7)), torch.randint(0, 4, (6,))),
        sgd,
        1,
    ),
    "vit": (Vit, lambda: images(4, 3, 32, 10), sgd, 1),
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
