#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small convolutional network on Fashion-MNIST with Lightning on virtual IPUs. The data is
that of Debian's package dataset-fashion-mnist; --accelerator cpu runs the same without IPUs."""

import argparse
import gzip
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    """Two convolutions and two linear layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 5, 3), nn.ReLU(), nn.MaxPool2d(2, 2),
            nn.Conv2d(5, 12, 5), nn.ReLU(), nn.GroupNorm(3, 12), nn.Flatten(),
            nn.Linear(972, 100), nn.ReLU(), nn.Linear(100, 10),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def evaluate(self, batch, name):
        x, y = batch
        out = self(x)
        accuracy = (out.argmax(1) == y).float().mean()
        self.log_dict({f"{name}_loss": F.cross_entropy(out, y), f"{name}_accuracy": accuracy})

    def validation_step(self, batch, batch_idx):
        self.evaluate(batch, "val")

    def test_step(self, batch, batch_idx):
        self.evaluate(batch, "test")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def read_idx(path):
    """The array in a gzipped IDX file of bytes."""
    data = bytearray(gzip.decompress(path.read_bytes()))
    dims = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * len(dims)).view(dims)


def load(folder, part, count):
    """The first samples of a part: images in [-1, 1] and labels."""
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz")[:count].unsqueeze(1).float()
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")[:count].long()
    return TensorDataset((images / 255 - 0.5) / 0.5, labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerator", default="ipu")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--samples", type=int, default=None, help="use only so many")
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    arguments = parser.parse_args()

    pl.seed_everything(0)
    train = load(arguments.data, "train", arguments.samples)
    test = load(arguments.data, "t10k", arguments.samples)
    trainer = pl.Trainer(
        accelerator=arguments.accelerator,
        devices=arguments.devices,
        max_epochs=arguments.epochs,
        logger=False,
        enable_checkpointing=False,
    )
    model = Classifier()
    size = arguments.batch_size
    trainer.fit(model, DataLoader(train, size, shuffle=True), DataLoader(test, size))
    trainer.test(model, DataLoader(test, size))


if __name__ == "__main__":
    main()
