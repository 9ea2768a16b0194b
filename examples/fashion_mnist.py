#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small convolutional network on Fashion-MNIST on a virtual IPU and prints its accuracy
and speed; with --compare also those of plain PyTorch on the same data in the same order. The data
is that of Debian's package dataset-fashion-mnist."""

import argparse
import copy
import gzip
from pathlib import Path

import poptorch
import torch
from torch import nn
from tqdm import tqdm

# Accuracy, iterations per second and seconds to compile, as published for one IPU, five epochs.
PUBLISHED = 86.42, 376.0, 39.0


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
        return output if labels is None else (output, self.criterion(output, labels))


def read_idx(path):
    """The array in a gzipped IDX file of bytes."""
    data = bytearray(gzip.decompress(path.read_bytes()))
    dims = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * len(dims)).view(dims)


def load(folder, part):
    """Images normalised to [-1, 1], and their labels."""
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz").unsqueeze(1).float()
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz").long()
    return torch.utils.data.TensorDataset((images / 255 - 0.5) / 0.5, labels)


def train(step, loader, epochs):
    """Runs the epochs; returns iterations per second of the best one."""
    speeds = []
    for epoch in range(1, epochs + 1):
        with tqdm(loader, desc=f"[Epoch {epoch:02}]", mininterval=0.2) as bar:
            for count, (data, labels) in enumerate(bar, 1):
                loss = step(data, labels)
                if count % 100 == 0:
                    bar.set_postfix_str(f"Loss={loss.item():.3g}", refresh=False)
        speeds.append(len(loader) / bar.format_dict["elapsed"])
    return max(speeds)


def evaluate(model, loader):
    """Share of right answers, in percent."""
    right = sum((model(data).argmax(1) == labels).sum().item() for data, labels in loader)
    return 100 * right / (len(loader) * loader.combinedBatchSize)


def run_ipu(model, train_loader, test_loader, epochs):
    """Trains and evaluates on a virtual IPU."""
    opts = train_loader.options
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    training = poptorch.trainingModel(ModelWithLoss(model), opts, optimizer)
    training.compile(*train_loader.dataset[: train_loader.combinedBatchSize])
    speed = train(lambda data, labels: training(data, labels)[1], train_loader, epochs)
    accuracy = evaluate(poptorch.inferenceModel(model.eval(), opts), test_loader)
    return accuracy, speed, training.compilationTime().total_seconds()


def run_eager(model, train_loader, test_loader, epochs):
    """The same with plain PyTorch, fed by the same loader: the steps are what is compared."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    training = ModelWithLoss(model)

    def step(data, labels):
        optimizer.zero_grad()
        loss = training(data, labels)[1]
        loss.backward()
        optimizer.step()
        return loss

    speed = train(step, train_loader, epochs)
    with torch.no_grad():
        return evaluate(model.eval(), test_loader), speed, None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5, choices=range(1, 1000), metavar="N")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--compare", action="store_true", help="train with plain PyTorch as well")
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    args = parser.parse_args()
    if not args.data.is_dir():
        parser.error(f"no data in {args.data}: install dataset-fashion-mnist, or give --data")

    torch.manual_seed(0)
    runs = {"virtual IPU": (run_ipu, ClassificationModel())}
    if args.compare:
        runs["eager PyTorch"] = (run_eager, copy.deepcopy(runs["virtual IPU"][1]))
    opts, train_data = poptorch.Options(), load(args.data, "train")
    train_loader = poptorch.DataLoader(opts, train_data, args.batch_size, shuffle=True)
    # The model's softmax runs over the batch: accuracy is 4 points higher with 32 than with 16.
    test_loader = poptorch.DataLoader(opts, load(args.data, "t10k"), batch_size=32)
    rows = {}
    for name, (run, model) in runs.items():
        print(f"{name}:")
        torch.manual_seed(0)  # the order of the data
        rows[name] = run(model.train(), train_loader, test_loader, args.epochs)
        print(f"Eval accuracy: {rows[name][0]:.2f}%")

    print(f"\n{'':16}{'accuracy':>10}{'it/s':>10}{'compilation':>14}")
    for name, (accuracy, speed, seconds) in {**rows, "IPU, published": PUBLISHED}.items():
        compilation = "-" if seconds is None else f"{seconds:.2f} s"
        print(f"{name:16}{accuracy:>9.2f}%{speed:>10.0f}{compilation:>14}")


if __name__ == "__main__":
    main()
