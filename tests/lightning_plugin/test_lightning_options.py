# SPDX-License-Identifier: Apache-2.0
"""Precision, options and reports of a trainer on IPUs."""

import json

import lightning.pytorch as pl
import poptorch
import pytest
import torch
from lightning.pytorch.strategies import IPUStrategy
from lightning_support import Net, assert_same_weights, data, loader, seeded, trainer
from torch.nn import functional as F


class Types(Net):
    def training_step(self, batch, batch_idx):
        x, y = batch
        self.seen = x.dtype, y.dtype, self.net[0].weight.dtype
        return F.cross_entropy(self(x).float(), y)


def test_true_half_precision():
    module = seeded(Types)
    t = trainer(max_epochs=2, precision="16-true")
    t.fit(module, loader())
    assert module.seen == (torch.float16, torch.int64, torch.float16)
    full = seeded(Net)
    trainer("cpu", max_epochs=2).fit(full, loader())
    for ours, theirs in zip(module.parameters(), full.parameters(), strict=True):
        assert ours.dtype == torch.float16
        torch.testing.assert_close(ours.float(), theirs, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("precision", [16, "16-mixed"])
def test_a_halved_model_with_mixed_precision(precision):
    module = seeded(Types).half()
    trainer(max_epochs=1, precision=precision).fit(module, loader())
    assert module.seen == (torch.float16, torch.int64, torch.float16)
    assert module.net[0].weight.dtype == torch.float16


@pytest.mark.parametrize("settings", [{}, {"gradient_clip_val": 0.1}, {"devices": 2}])
def test_mixed_precision(settings):
    module = seeded(Types)
    t = trainer(max_epochs=2, precision="16-mixed", **settings)
    t.fit(module, loader(), loader())
    assert module.seen == (torch.float16, torch.int64, torch.float32)
    full = seeded(Net)
    size = 4 * settings.pop("devices", 1)
    trainer("cpu", max_epochs=2, **settings).fit(full, loader(batch_size=size))
    assert_same_weights(module, full, rtol=1e-2, atol=2e-3)
    out = torch.cat(t.predict(module, loader()))
    exact = module(data().tensors[0]).detach()
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), exact, rtol=1e-2, atol=1e-2)


class Tiny(pl.LightningModule):
    """Gradients that float16 has few digits for."""

    def __init__(self, make):
        super().__init__()
        self.layer = torch.nn.Linear(12, 8, bias=False)
        self.make = make

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).float().mean() * 1e-5

    def configure_optimizers(self):
        return self.make(self.parameters())


def test_loss_scaling_of_mixed_precision():
    moves = []
    for accelerator, precision, make in (
        ("cpu", 32, lambda p: torch.optim.SGD(p, 1e5)),
        ("ipu", 16, lambda p: poptorch.optim.SGD(p, 1e5, loss_scaling=1.0)),
        ("ipu", 16, lambda p: poptorch.optim.SGD(p, 1e5, loss_scaling=4096.0)),
    ):
        module = seeded(Tiny, make)
        before = module.layer.weight.detach().clone()
        trainer(accelerator, precision=precision, max_epochs=1).fit(module, loader(8, 8))
        moves.append(module.layer.weight.detach() - before)
    exact, plain, scaled = moves
    largest = exact.abs().max()
    assert (plain - exact).abs().max() > 0.02 * largest  # else the test shows nothing
    assert (scaled - exact).abs().max() < 0.002 * largest


def test_automatic_loss_scaling():
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    module, full = seeded(Types), seeded(Net)
    strategy = IPUStrategy(training_opts=options)
    trainer(max_epochs=2, precision=16, strategy=strategy).fit(module, loader())
    trainer("cpu", max_epochs=2).fit(full, loader())
    assert_same_weights(module, full, rtol=1e-2, atol=2e-3)


def test_batches_are_cast_and_nothing_else():
    strategy = trainer(precision=16).strategy
    x, y = strategy.batch_to_device([torch.ones(2, dtype=torch.float64), torch.ones(2).int()])
    assert (x.dtype, y.dtype) == (torch.float16, torch.int32)
    assert strategy.batch_to_device({"a": torch.ones(1)})["a"].dtype == torch.float16
    plain = trainer().strategy.batch_to_device([torch.ones(1)])
    assert plain[0].dtype == torch.float32


def test_options_of_the_user_are_used_as_they_are():
    training, inference = poptorch.Options(), poptorch.Options()
    training.replicationFactor(2).deviceIterations(2)
    training.Training.gradientAccumulation(2)
    inference.replicationFactor(2)
    seen = []

    class Look(pl.Callback):
        def on_train_start(self, trainer, module):
            seen.append(trainer.train_dataloader.options)
            seen.append(trainer.val_dataloaders.options)

    strategy = IPUStrategy(training_opts=training, inference_opts=inference)
    module = seeded(Net)
    t = trainer(devices=2, max_epochs=1, strategy=strategy, callbacks=[Look()])
    t.fit(module, loader(), loader())
    assert seen[0] is training is strategy.training_opts
    assert seen[1] is inference is strategy.inference_opts
    assert strategy.replication_factor == 2
    other = seeded(Net)  # two updates per run, each of 16 samples
    trainer("cpu", max_epochs=1).fit(other, loader(batch_size=16))
    assert_same_weights(module, other)
    with pytest.raises(Exception, match="give one of them"):
        trainer(devices=2, strategy=strategy, accumulate_grad_batches=4, accelerator="auto").fit(
            module, loader()
        )


def test_device_iterations():
    module, other = seeded(Net), seeded(Net)
    strategy = IPUStrategy(device_iterations=4)
    t = trainer(max_epochs=1, strategy=strategy)
    t.fit(module, loader())
    assert t.global_step == 4 and strategy.training_opts.device_iterations == 4
    trainer("cpu", max_epochs=1).fit(other, loader())
    assert_same_weights(module, other)


def test_executors_of_the_stages():
    kinds = []

    class Look(pl.Callback):
        def on_train_start(self, trainer, module):
            kinds.extend(s.value for s in trainer.strategy.poptorch_models)
            assert all(
                isinstance(e, poptorch.PoplarExecutor)
                for e in trainer.strategy.poptorch_models.values()
            )

    trainer(max_epochs=1, callbacks=[Look()]).fit(seeded(Net), loader(), loader())
    assert kinds == ["train", "validate", "sanity_check"]


@pytest.mark.parametrize("by_flag", [False, True])
def test_reports(by_flag, tmp_path, monkeypatch):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"opt.useAutoloader":"true"}')
    given = {"autoreport": True} if by_flag else {"autoreport_dir": str(tmp_path / "reports")}
    folder = tmp_path if by_flag else tmp_path / "reports"
    t = trainer(max_epochs=1, strategy=IPUStrategy(**given))
    t.fit(seeded(Net), loader(), loader())
    assert json.loads((folder / "training" / "summary.json").read_text())
    assert json.loads((folder / "inference" / "summary.json").read_text())
    import os

    assert os.environ["POPLAR_ENGINE_OPTIONS"] == '{"opt.useAutoloader":"true"}'


def test_predictions_in_half_precision():
    module = seeded(Net)
    out = torch.cat(trainer(precision="16-true").predict(module, loader()))
    assert out.dtype == torch.float16
    exact = module.float()(data().tensors[0]).detach()
    torch.testing.assert_close(out.float(), exact, rtol=1e-2, atol=1e-2)
