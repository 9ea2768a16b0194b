# SPDX-License-Identifier: Apache-2.0
"""How our steps and torch's own ops disturb each other on the same cores (docs/adr/0005).

Medians over many runs of the tutorial CNN's training step and of `torch.mm` on 256 x 256 matrices,
alone and in turn.
usage: python -m bench.threads
"""

import statistics
import time

import torch
from torch import nn

from bench.harness import training_executor
from bench.models import TutorialCNN, WithLoss

ROUNDS = 2000


def clock(work):
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6


def main():
    model = WithLoss(TutorialCNN(), nn.NLLLoss())
    step = training_executor(model, torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9))
    images, labels = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
    matrix = torch.randn(256, 256)

    def ours():
        step(images, labels)

    def theirs():
        torch.mm(matrix, matrix)

    def show(title, samples):
        samples.sort()
        median, p90 = statistics.median(samples), samples[len(samples) * 9 // 10]
        print(f"{title:34} median {median:7.0f} us   90 % {p90:7.0f} us")

    for work in (ours, theirs):
        for _ in range(200):
            work()
    show("step alone", [clock(ours) for _ in range(ROUNDS)])
    show("torch.mm alone", [clock(theirs) for _ in range(ROUNDS)])
    turns = [(clock(ours), clock(theirs)) for _ in range(ROUNDS)]
    show("step after torch.mm", [a for a, _ in turns])
    show("torch.mm after step", [b for _, b in turns])


if __name__ == "__main__":
    main()
