# SPDX-License-Identifier: Apache-2.0
"""Custom ops in C++: builds ops.cpp, trains with it and compares with eager PyTorch."""

import argparse
import pathlib
import subprocess
import tempfile
import time

import poptorch
import torch
from torch import nn

SOURCE = pathlib.Path(__file__).resolve().parent / "ops.cpp"


def build(folder):
    """The library, built as poptorch says."""
    library = pathlib.Path(folder) / "libops.so"
    flags = [*poptorch.custom_op_cflags(), "-O2"]
    command = ["g++", *flags, SOURCE, *poptorch.custom_op_ldflags(), "-o", library]
    subprocess.run(command, check=True)
    return library


def custom(x, name, **attributes):
    """An op of the library; on the CPU, zeros."""
    found = poptorch.custom_op([x], name, "com.example", 1, [x], attributes)
    return found[0]


def normalized_swish(x):
    """The composition of the library op by op."""
    y = x * torch.sigmoid(x * 1.5)
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)


class Model(nn.Module):
    """Two layers and two activations, as custom ops or as eager PyTorch has them."""

    def __init__(self, custom_ops):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)
        self.custom_ops = custom_ops

    def forward(self, x, target):
        y = self.first(x)
        if self.custom_ops:
            y = custom(custom(y, "LeakyRelu", alpha=0.1), "NormalizedSwish", beta=1.5)
        else:
            y = normalized_swish(nn.functional.leaky_relu(y, 0.1))
        y = self.second(y)
        return y, nn.functional.mse_loss(y, target)


def train(steps):
    """Losses of training with custom ops and with eager PyTorch."""
    model, eager = Model(True), Model(False)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, eager)]
    trainer = poptorch.trainingModel(model, optimizer=optimizers[0])
    ours, theirs = [], []
    for _ in range(steps):
        x, target = torch.randn(16, 32), torch.randn(16, 8)
        ours.append(trainer(x, target)[1].item())
        optimizers[1].zero_grad()
        loss = eager(x, target)[1]
        loss.backward()
        optimizers[1].step()
        theirs.append(loss.item())
    return ours, theirs


def best_of(call, rounds=20):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


class Swish(nn.Module):
    """The composition alone."""

    def forward(self, x):
        return custom(x, "NormalizedSwish", beta=1.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = poptorch.load_custom_op_library(build(folder))
    print("loaded", ", ".join(names))
    ours, theirs = train(args.steps)
    print(f"loss after {args.steps} steps: {ours[-1]:.6f}, eager PyTorch {theirs[-1]:.6f}")
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-5)
    x = torch.randn(512, 1024)
    fused = poptorch.inferenceModel(Swish())
    torch.testing.assert_close(fused(x), normalized_swish(x), rtol=1e-4, atol=1e-5)
    ms = [1000 * best_of(lambda f=f: f(x)) for f in (fused, normalized_swish)]
    print(f"NormalizedSwish of 512 x 1024: {ms[0]:.3f} ms fused, {ms[1]:.3f} ms op by op")


if __name__ == "__main__":
    main()
