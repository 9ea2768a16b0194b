# SPDX-License-Identifier: Apache-2.0
"""What users and callbacks change while a trainer runs: weights that come and go, sizes of batches,
learning rates, and steps that decide for themselves whether to update."""

import warnings

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import BaseFinetuning, ModelPruning
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning_support import (
    Net,
    assert_same_metrics,
    assert_same_weights,
    loader,
    seeded,
    trainer,
    twins,
)


class Unfreeze(BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.net[0])

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[0], optimizer, lr=0.05)


class Trained(Net):
    def configure_optimizers(self):
        return self.make([p for p in self.parameters() if p.requires_grad])


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, 0.02)


@pytest.mark.parametrize("make", [momentum, adam])
def test_layers_that_are_unfrozen_later(make):
    (ours, _), (theirs, _) = twins(
        seeded(Trained, make), epochs=3, val=True, callbacks=lambda: [Unfreeze()]
    )
    assert_same_weights(ours, theirs)


def test_freezing_between_epochs():
    class Freeze(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            pl_module.net[0].requires_grad_(trainer.current_epoch != 1)

    (ours, _), (theirs, _) = twins(seeded(Net), epochs=3, callbacks=lambda: [Freeze()])
    assert_same_weights(ours, theirs)


def test_a_layer_that_goes_into_its_other_mode():
    class Eval(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            pl_module.net[1].train(trainer.current_epoch == 0)

    (ours, _), (theirs, _) = twins(seeded(Net, bn=True), epochs=2, callbacks=lambda: [Eval()])
    assert_same_weights(ours, theirs)


def test_pruning():
    def callbacks():
        return [ModelPruning("l1_unstructured", parameter_names=["weight"], amount=0.5)]

    (ours, t), (theirs, u) = twins(seeded(Net), epochs=2, val=True, callbacks=callbacks)
    assert_same_weights(ours, theirs)
    torch.testing.assert_close(t.callback_metrics["val_loss"], u.callback_metrics["val_loss"])


def test_tuners():
    class Tuned(Net):
        def __init__(self):
            super().__init__()
            self.lr, self.batch_size = 0.1, 2

        def train_dataloader(self):
            return loader(64, self.batch_size)

        val_dataloader = train_dataloader

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), self.lr)

    found = {}
    for accelerator in ("ipu", "cpu"):
        module = seeded(Tuned)
        tuner = Tuner(trainer(accelerator, max_epochs=1))
        tuner.scale_batch_size(module, max_trials=2, steps_per_trial=2)
        rates = tuner.lr_find(module, num_training=8)
        found[accelerator] = module.batch_size, torch.tensor(rates.results["loss"]), module
    assert found["ipu"][0] == found["cpu"][0] > 2
    torch.testing.assert_close(found["ipu"][1], found["cpu"][1], rtol=1e-3, atol=1e-4)
    assert_same_weights(found["ipu"][2], found["cpu"][2])


def test_loaders_that_are_made_anew_with_larger_batches():
    class Grows(Net):
        def train_dataloader(self):
            return loader(64, 4 * (1 + self.trainer.current_epoch))

        def val_dataloader(self):
            return loader(30, 4 * (1 + self.trainer.current_epoch))

    metrics, modules = [], []
    for accelerator in ("ipu", "cpu"):
        module = seeded(Grows)
        t = trainer(accelerator, max_epochs=2, reload_dataloaders_every_n_epochs=1)
        t.fit(module)
        modules.append(module)
        metrics.append(t.callback_metrics)
    assert_same_weights(*modules)
    assert_same_metrics(*metrics)


def test_a_rate_set_by_an_optimizer_step_of_the_users():
    class Warm(Net):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            for group in optimizer.param_groups:
                group["lr"] = 0.02 * (1 + batch_idx)
            optimizer.step(closure=optimizer_closure)

    (ours, t), (theirs, u) = twins(seeded(Warm))
    assert_same_weights(ours, theirs)
    assert t.global_step == u.global_step


def test_a_step_without_its_update():
    class Half(Net):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            optimizer_closure()

    with pytest.raises(MisconfigurationException, match="part of the step"):
        trainer(max_epochs=1).fit(seeded(Half), loader())


def test_steps_that_read_the_loader():
    class Reads(Net):
        def training_step(self, dataloader_iter):
            batch, batch_idx, _ = next(dataloader_iter)
            return super().training_step(batch, batch_idx)

    with pytest.raises(MisconfigurationException, match="training_step\\(batch, batch_idx\\)"):
        trainer(max_epochs=1).fit(seeded(Reads), loader())


def test_anomalies():
    (ours, _), (theirs, _) = twins(seeded(Net), detect_anomaly=True)
    assert_same_weights(ours, theirs)

    class Nan(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * batch[0].sum() / 0

    with pytest.raises(RuntimeError, match="(?i)detect_anomaly"):
        trainer(max_epochs=1, detect_anomaly=True).fit(seeded(Nan), loader())


def test_values_of_the_trainer_and_the_optimizer_are_warned_about():
    class Reads(Net):
        def training_step(self, batch, batch_idx):
            self.log("lr", self.optimizers().param_groups[0]["lr"])
            scale = 1.0 if self.trainer.global_step < 100 else 2.0
            return super().training_step(batch, batch_idx) * scale

    module = seeded(Reads)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        t = trainer(max_epochs=1)
        t.fit(module, loader())
    for text in ("`self.optimizers()`", "`global_step`"):
        lines = [w for w in caught if text in str(w.message)]
        assert len(lines) == 1 and lines[0].filename == __file__, text
    assert type(t) is pl.Trainer and type(module) is Reads
