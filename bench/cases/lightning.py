# SPDX-License-Identifier: Apache-2.0
"""Lightning: an epoch of a trainer on a virtual IPU beside one on the CPU, with the same weights at
its end; and what the hook adds to the import of Lightning."""

import copy
import logging
import subprocess
import sys
import time

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from bench.harness import EAGER, OURS, figure

BATCH, STEPS, EPOCHS = 16, 150, 4


def classifier():
    import lightning.pytorch as pl
    from torch import nn

    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                *(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Conv2d(5, 12, 5)),
                *(nn.ReLU(), nn.GroupNorm(3, 12), nn.Flatten(), nn.Linear(972, 100)),
                *(nn.ReLU(), nn.Linear(100, 10)),
            )

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = F.cross_entropy(self.layers(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.001, momentum=0.9)

    return Classifier()


def fitted(module, accelerator, dataset, epochs):
    """Trains a copy; returns it and the seconds per step of each epoch."""
    import lightning.pytorch as pl

    class Clock(pl.Callback):
        seconds = []

        def on_train_epoch_start(self, *args):
            self.start = time.perf_counter()

        def on_train_epoch_end(self, *args):
            self.seconds = [*self.seconds, (time.perf_counter() - self.start) / STEPS]

    clock, own = Clock(), copy.deepcopy(module)
    pl.Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=epochs,
        callbacks=[clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(own, DataLoader(dataset, BATCH))
    return own, clock.seconds


@figure("Lightning, Fashion-MNIST, batch 16, a step", "us", eager=0.5)
def lightning_step(ctx):
    logging.disable(logging.INFO)  # every trainer lists the devices there are
    dataset = TensorDataset(
        torch.randn(BATCH * STEPS, 1, 28, 28), torch.randint(0, 10, (BATCH * STEPS,))
    )
    module = classifier()
    runs = {name: fitted(module, name, dataset, 1)[0] for name in ("ipu", "cpu")}
    for ours, theirs in zip(runs["ipu"].parameters(), runs["cpu"].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * theirs.abs().max().item())
    times = {}
    for peer, name in ((OURS, "ipu"), (EAGER, "cpu")):
        if peer in ctx.peers:
            times[peer] = min(fitted(module, name, dataset, EPOCHS)[1]) * 1e6
    return times


# Prints the seconds that an import of Lightning spends in code of ours.
IMPORT = """
import importlib.util, time, typing, warnings  # which torch would load anyway

start = time.thread_time()
from lightning_ipu import _hook
spent, asked = time.thread_time() - start, 0
extend, find_spec = _hook._extend, _hook._Finder.find_spec
def clocked(*args):
    global spent
    start = time.thread_time()
    extend(*args)
    spent += time.thread_time() - start
def counted(*args):
    global asked
    asked += 1
    return find_spec(*args)
_hook._extend, _hook._Finder.find_spec = clocked, counted
import lightning.pytorch
assert hasattr(lightning.pytorch.strategies, "IPUStrategy")
_hook._Finder.find_spec = find_spec
finder = _hook._Finder()
start = time.thread_time()
for _ in range(asked):
    finder.find_spec("some.module")
print(spent + time.thread_time() - start)
"""


@figure("Lightning, what IPUs add to its import", "ms", at_most=20)
def lightning_import(ctx):
    runs = [subprocess.check_output([sys.executable, "-W", "ignore", "-c", IMPORT]) for _ in "123"]
    return {OURS: min(map(float, runs)) * 1e3}


CASES = [lightning_step, lightning_import]
