#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small convolutional network on Fashion-MNIST on a virtual IPU and prints its accuracy
and speed; with --compare also those of plain PyTorch on the same data in the same order. The data
is that of Debian's package dataset-fashion-mnist."""

import argparse
import copy
import gzip
import time
from pathlib import Path

import numpy as np
import poptorch
import torch
from torch import nn
from tqdm import tqdm

# Published for the same program on one IPU.
PUBLISHED = {"accuracy": 86.42, "speed": 376.0, "compile": 39.0}


class ClassificationModel(nn.Module):
    """Two convolutions and two linear layers."""

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


class ModelWithLoss(nn.Module):
    """Returns the loss beside the output when labels are given."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.criterion = nn.NLLLoss()

    def forward(self, x, labels=None):
        output = self.model(x)
        if labels is None:
            return output
        return output, self.criterion(output, labels)


def read_idx(path):
    """The array in a gzipped IDX file of bytes."""
    data = gzip.decompress(path.read_bytes())
    dims = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * len(dims))
    return torch.from_numpy(values.reshape(dims).copy())


def load(folder, part):
    """Images normalised to [-1, 1], and their labels."""
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz").unsqueeze(1).float()
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz").long()
    return torch.utils.data.TensorDataset((images / 255 - 0.5) / 0.5, labels)


def train(step, loader, epochs):
    """Runs the epochs; returns iterations per second of the best one."""
    best = 0.0
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        with tqdm(loader, desc=f"[Epoch {epoch:02}]") as bar:
            for count, (data, labels) in enumerate(bar, 1):
                loss = step(data, labels)
                if count % 100 == 0:
                    bar.set_postfix_str(f"Loss={loss.item():.3g}", refresh=False)
        best = max(best, count / (time.perf_counter() - start))
    return best


def evaluate(model, loader):
    """Share of right answers, in percent."""
    right = sum((model(data).argmax(1) == labels).sum().item() for data, labels in loader)
    return 100 * right / (len(loader) * loader.combinedBatchSize)


def run_ipu(model, opts, train_data, test_data, batch_size, epochs):
    """Trains and evaluates on a virtual IPU."""
    train_loader = poptorch.DataLoader(opts, train_data, batch_size=batch_size, shuffle=True)
    test_loader = poptorch.DataLoader(opts, test_data, batch_size=batch_size)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    model.train()
    training = poptorch.trainingModel(ModelWithLoss(model), opts, optimizer)
    training.compile(*(t[:batch_size] for t in train_data.tensors))
    speed = train(lambda data, labels: training(data, labels)[1], train_loader, epochs)
    seconds = training.compilationTime().total_seconds()
    model.eval()
    accuracy = evaluate(poptorch.inferenceModel(model, opts), test_loader)
    training.destroy()
    return {"accuracy": accuracy, "speed": speed, "compile": seconds}


def run_eager(model, opts, train_data, test_data, batch_size, epochs):
    """The same with plain PyTorch, fed by the same loader: the steps are what is compared."""
    train_loader = poptorch.DataLoader(opts, train_data, batch_size=batch_size, shuffle=True)
    test_loader = poptorch.DataLoader(opts, test_data, batch_size=batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    training = ModelWithLoss(model).train()

    def step(data, labels):
        optimizer.zero_grad()
        loss = training(data, labels)[1]
        loss.backward()
        optimizer.step()
        return loss

    speed = train(step, train_loader, epochs)
    model.eval()
    with torch.no_grad():
        return {"accuracy": evaluate(model, test_loader), "speed": speed, "compile": None}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--compare", action="store_true", help="train with plain PyTorch as well")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    models = {"virtual IPU": (run_ipu, ClassificationModel())}
    if args.compare:
        models["eager PyTorch"] = (run_eager, copy.deepcopy(models["virtual IPU"][1]))
    data = load(args.data, "train"), load(args.data, "t10k")
    rows = {}
    for name, (run, model) in models.items():
        print(f"{name}:")
        torch.manual_seed(args.seed)  # the order of the data
        rows[name] = run(model, poptorch.Options(), *data, args.batch_size, args.epochs)
        print(f"Eval accuracy: {rows[name]['accuracy']:.2f}%")

    print(f"\n{'':16}{'accuracy':>10}{'it/s':>10}{'compilation':>14}")
    for name, row in {**rows, "IPU, published": PUBLISHED}.items():
        seconds = "" if row["compile"] is None else f"{row['compile']:.2f} s"
        print(f"{name:16}{row['accuracy']:>9.2f}%{row['speed']:>10.0f}{seconds:>14}")


if __name__ == "__main__":
    main()
