# SPDX-License-Identifier: Apache-2.0
"""Bad input to a trainer on IPUs: each a clear error. A run that failed leaves nothing behind."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import IPUStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning_support import Net, assert_same_weights, data, loader, seeded, trainer
from torch.utils.data import DataLoader


@pytest.mark.parametrize(
    "devices,message",
    [
        (3, "power of 2"),
        (0, "not a valid input"),
        ("0", "not a valid input"),
        (-2, "power of 2"),
        ("foo", "no number of IPUs"),
        ("3", "power of 2"),
        ("0,1,2", "power of 2"),
        ("1,x", "no number of IPUs"),
        ([0, 1, 2], "power of 2"),
        ([1, 1], "different integers"),
        (2.0, "must be an int"),
    ],
)
def test_wrong_devices(devices, message):
    with pytest.raises((ValueError, TypeError, MisconfigurationException), match=message):
        trainer(devices=devices)


def test_all_devices_means_the_automatic_count(monkeypatch):
    with pytest.warns(UserWarning, match="virtual ones are made as they are needed"):
        assert trainer(devices=-1).num_devices == 4
    monkeypatch.setenv("TESSERA_AUTO_DEVICES", "2")
    assert trainer(devices="auto").num_devices == 2
    monkeypatch.setenv("TESSERA_AUTO_DEVICES", "many")
    with pytest.raises(ValueError, match="TESSERA_AUTO_DEVICES='many'"):
        trainer(devices="auto")


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true", "bf16-true", "transformer-engine"])
def test_unsupported_precisions(precision):
    with pytest.raises(
        ValueError, match=f"accelerator='ipu', precision='{precision}'.* is not sup"
    ):
        trainer(precision=precision)


def test_foreign_strategies():
    with pytest.raises(MisconfigurationException, match="can only be used with an IPU strategy"):
        trainer(strategy="ddp")
    with pytest.raises(MisconfigurationException, match="can only be used with an IPU accelerator"):
        trainer("cpu", strategy=IPUStrategy())


@pytest.mark.parametrize("iterations", [0, -1])
def test_device_iterations(iterations):
    with pytest.raises(ValueError, match="device_iterations must be at least 1"):
        IPUStrategy(device_iterations=iterations)


class TwoOptimizers(Net):
    def configure_optimizers(self):
        return [torch.optim.SGD(m.parameters(), 0.1) for m in (self.net[0], self.net[2])]


class Manual(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class TwoManual(TwoOptimizers):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class NoLoss(Net):
    def training_step(self, batch, batch_idx):
        return None


class DictWithoutLoss(Net):
    def training_step(self, batch, batch_idx):
        return {"other": self(batch[0])}


class Clips(Net):
    def configure_gradient_clipping(self, *args, **kwargs):
        pass


class Transfers(Net):
    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch


class AfterTransfer(Net):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] * 2, batch[1]]


class Lbfgs(Net):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


@pytest.mark.parametrize(
    "kind,message",
    [
        (TwoOptimizers, "multiple optimizers is only supported with manual optimization"),
        (TwoManual, "IPUs currently only support one optimizer"),
        (Manual, "do not support manual optimization"),
        (NoLoss, "`training_step` returned None"),
        (DictWithoutLoss, "must return a loss"),
        (Clips, "Overriding `configure_gradient_clipping` is not supported"),
        (Transfers, "Overriding `transfer_batch_to_device` is not supported with IPUs"),
        (AfterTransfer, "Overriding `on_after_batch_transfer` is not supported with IPUs"),
        (Lbfgs, "LBFGS"),
    ],
)
def test_modules_that_cannot_be_trained(kind, message):
    module = seeded(kind)
    with pytest.raises(Exception, match=message):
        trainer(max_epochs=1).fit(module, loader())
    # The trainer's marks are gone: an ordinary module can be trained after it.
    assert "optimizer_zero_grad" not in module.__dict__
    assert all(type(p) is torch.nn.Parameter for p in module.parameters())


def test_gradients_are_not_on_the_host():
    class Looks(Net):
        def on_after_backward(self):
            assert all(p.grad is None for p in self.parameters())

    with pytest.warns(UserWarning, match="`on_after_backward` is called, but gradients stay"):
        trainer(max_epochs=1).fit(seeded(Looks), loader())


def test_hooks_of_a_datamodule():
    class Data(pl.LightningDataModule):
        def train_dataloader(self):
            return loader()

        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return batch

    with pytest.raises(MisconfigurationException, match="Overriding `transfer_batch_to_device`"):
        trainer(max_epochs=1).fit(seeded(Net), Data())


def test_transfer_hooks_if_allowed():
    modules = []
    for accelerator in ("ipu", "cpu"):
        strategy = {"strategy": IPUStrategy(allow_batch_transfer_hooks=True)}
        module = seeded(AfterTransfer)
        extra = strategy if accelerator == "ipu" else {}
        trainer(accelerator, max_epochs=1, **extra).fit(module, loader())
        modules.append(module)
    assert_same_weights(*modules)


def test_the_hook_before_transfer_needs_no_permission():
    class Before(Net):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return [batch[0] * 3, batch[1]]

    modules = []
    for accelerator in ("ipu", "cpu"):
        module = seeded(Before)
        trainer(accelerator, max_epochs=1).fit(module, loader())
        modules.append(module)
    assert_same_weights(*modules)


@pytest.mark.parametrize("settings", [{"num_nodes": 2}, {"sync_batchnorm": True}])
def test_settings_of_several_processes(settings):
    with pytest.raises(MisconfigurationException, match=next(iter(settings))):
        trainer(max_epochs=1, **settings).fit(seeded(Net), loader())


def test_changing_accumulation():
    schedule = GradientAccumulationScheduler({0: 1, 1: 2})
    with pytest.raises(MisconfigurationException, match="GradientAccumulationScheduler"):
        trainer(max_epochs=1, callbacks=[schedule]).fit(seeded(Net), loader())


def test_a_last_batch_of_another_size():
    class Sizes:
        def __iter__(self):
            return iter([list(range(8)), list(range(8, 16)), list(range(16, 20))])

        def __len__(self):
            return 3

    with pytest.raises(Exception, match="batch of 4 samples, but .* compiled for 8"):
        trainer(max_epochs=1).fit(seeded(Net), DataLoader(data(), batch_sampler=Sizes()))


def test_a_tensor_is_branched_on(caplog):
    class Branch(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss if loss > 1 else loss * 2

    trainer(max_epochs=1).fit(seeded(Branch), loader())
    assert "Python reads the value of a tensor in forward: True" in caplog.text
    assert __file__ in caplog.text


@pytest.mark.parametrize("where", ["step", "callback"])
def test_a_failed_run_leaves_nothing(where):
    class Fails(Net):
        broken = where == "step"

        def training_step(self, batch, batch_idx):
            if self.broken:
                raise RuntimeError("on purpose")
            return super().training_step(batch, batch_idx)

    class Stop(pl.Callback):
        broken = where == "callback"

        def on_train_batch_end(self, *args):
            if self.broken:
                raise RuntimeError("on purpose")

    module, stop = seeded(Fails), Stop()
    t = trainer(max_epochs=1, accumulate_grad_batches=2, callbacks=[stop])
    with pytest.raises(Exception, match="on purpose"):
        t.fit(module, loader())
    assert t.accumulate_grad_batches == 2
    assert "_prepare_dataloader" not in t._data_connector.__dict__
    assert "optimizer_zero_grad" not in module.__dict__ and type(module) is Fails
    assert all(type(p) is torch.nn.Parameter for p in module.parameters())
    module.broken = stop.broken = False
    fresh = seeded(Fails)
    fresh.broken = False
    t.fit(fresh, loader())
    other = seeded(Net)
    trainer("cpu", max_epochs=1).fit(other, loader(batch_size=8))
    assert_same_weights(fresh, other)


def test_all_entry_points_of_one_trainer():
    module, t = seeded(Net), trainer(devices=2, max_epochs=1)
    t.fit(module, loader())
    t.validate(module, loader(), verbose=False)
    first = t.callback_metrics["val_loss"]
    t.test(module, loader(), verbose=False)
    torch.testing.assert_close(t.callback_metrics["test_loss"], first)
    out = torch.cat(t.predict(module, loader()))
    torch.testing.assert_close(out, module(data().tensors[0]).detach(), rtol=1e-4, atol=1e-5)
    t.fit_loop.max_epochs = 2
    t.accumulate_grad_batches = 2
    t.fit(module, loader())
    assert t.strategy.training_opts.Training.gradient_accumulation == 2
    assert t.global_step == 8 + 4
