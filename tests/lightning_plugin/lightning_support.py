# SPDX-License-Identifier: Apache-2.0
"""Modules, data and trainers for the tests of Lightning on IPUs: each run has a twin on the CPU
that sees the same samples per update."""

import copy
import os
import subprocess
import sys

import lightning.pytorch as pl
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

ROOTS = ("lightning.pytorch", "pytorch_lightning")
QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Net(pl.LightningModule):
    """A small classifier; tests override its steps."""

    def __init__(self, optimizer=None, bn=False):
        super().__init__()
        layers = [torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)]
        if bn:
            layers.insert(1, torch.nn.BatchNorm1d(16))
        self.net = torch.nn.Sequential(*layers)
        self.make = optimizer or (lambda p: torch.optim.SGD(p, 0.1))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", F.cross_entropy(self(x), y))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return self.make(self.parameters())


def data(count=64, seed=0):
    """A dataset of random samples."""
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 12, generator=g), torch.randint(0, 4, (count,), generator=g)
    )


def loader(count=64, batch_size=4, **kwargs):
    return DataLoader(data(count), batch_size=batch_size, **kwargs)


def seeded(make, *args, **kwargs):
    """A module whose weights are always the same."""
    torch.manual_seed(1)
    return make(*args, **kwargs)


def trainer(accelerator="ipu", devices=1, **kwargs):
    return pl.Trainer(**{"accelerator": accelerator, "devices": devices, **QUIET, **kwargs})


def accelerator_of(trainer):
    """ "ipu" or "cpu"; not all versions of Lightning have names of accelerators."""
    return type(trainer.accelerator).__name__[:3].lower()


def twins(
    module, *, devices=1, count=64, batch_size=4, accumulate=1, val=False, epochs=2, **kwargs
):
    """Fits copies on IPUs and on the CPU with the same samples per update.

    Returns (module, trainer) of both.
    """
    result = []
    for accelerator in ("ipu", "cpu"):
        own = copy.deepcopy(module)
        on_ipu = accelerator == "ipu"
        size = batch_size if on_ipu else batch_size * devices * accumulate
        extra = {k: v() if callable(v) else v for k, v in kwargs.items()}
        if on_ipu:
            extra["accumulate_grad_batches"] = accumulate
        t = trainer(accelerator, devices if on_ipu else 1, max_epochs=epochs, **extra)
        t.fit(own, loader(count, size), loader(count, size) if val else None)
        result.append((own, t))
    return result


def assert_same_weights(left, right, rtol=1e-4, atol=1e-6):
    for (name, a), b in zip(left.state_dict().items(), right.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_metrics(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(
            value, right[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def run_python(code, **environment):
    """Runs code in a new interpreter; its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:lightning_ipu", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
