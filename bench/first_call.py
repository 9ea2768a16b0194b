# SPDX-License-Identifier: Apache-2.0
"""Times the first training step of the tutorial CNN in a process of its own and prints seconds.

usage: first_call.py PEER warm|new. `new` starts the clock after `import torch` and so pays for
importing and starting the compiler; `warm` first compiles and runs the MLP.
"""

import sys
import time

import torch
from torch import nn

from bench import harness
from bench.cases import cnn, mlp
from bench.models import MLP, TutorialCNN, WithLoss


def first_step(peer, model, sgd, batch):
    step = harness.Context([peer], torch.get_num_threads()).training(model, sgd, batch)[peer]
    _, loss = step()
    return loss.sum().item()


def main():
    peer, state = sys.argv[1:]
    torch.manual_seed(0)
    if state == "warm":
        data = torch.randn(16, 784), torch.randint(0, 10, (16,))
        first_step(peer, WithLoss(MLP(), nn.CrossEntropyLoss()), mlp.SGD, data)
    model, batch = WithLoss(TutorialCNN(), nn.NLLLoss()), cnn.images(16)
    start = time.perf_counter()
    first_step(peer, model, cnn.SGD, batch)
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
