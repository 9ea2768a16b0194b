# SPDX-License-Identifier: Apache-2.0
"""Training on IPUs gives what Lightning gives on the CPU with the same samples per update."""

import copy
import warnings

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightning_support import (
    Net,
    accelerator_of,
    assert_same_weights,
    loader,
    seeded,
    trainer,
    twins,
)
from torch.nn import functional as F

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
}


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_weights_after_two_epochs(name, devices):
    (ours, _), (theirs, _) = twins(seeded(Net, OPTIMIZERS[name]), devices=devices)
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("devices", [1, 2])
def test_accumulation(devices):
    losses = {}

    class Seen(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            name = accelerator_of(trainer)
            losses.setdefault(name, []).append(outputs["loss"].item())

    (ours, a), (theirs, b) = twins(
        seeded(Net), devices=devices, accumulate=4, callbacks=lambda: [Seen()]
    )
    assert_same_weights(ours, theirs)
    assert a.global_step == b.global_step == 2 * 64 // (4 * 4 * devices)
    assert losses["ipu"] == pytest.approx(losses["cpu"], rel=1e-4)
    assert a.accumulate_grad_batches == 4  # the user's value is back


@pytest.mark.parametrize("algorithm", ["norm", "value"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_clipping(name, algorithm):
    limit = {"norm": 0.05, "value": 0.005}[algorithm]
    (ours, _), (theirs, _) = twins(
        seeded(Net, OPTIMIZERS[name]),
        devices=2,
        accumulate=2,
        gradient_clip_val=limit,
        gradient_clip_algorithm=algorithm,
    )
    assert_same_weights(ours, theirs)
    plain, _ = twins(seeded(Net, OPTIMIZERS["sgd"]), devices=2, accumulate=2)[0]
    if name == "sgd":  # it did something
        assert not torch.allclose(plain.net[0].weight, ours.net[0].weight, atol=1e-3)


class Scheduled(Net):
    interval = "step"

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)
        steps = self.trainer.estimated_stepping_batches if self.interval == "step" else 2
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
        return [optimizer], [{"scheduler": schedule, "interval": self.interval}]


class ScheduledPerEpoch(Scheduled):
    interval = "epoch"


@pytest.mark.parametrize("kind", [Scheduled, ScheduledPerEpoch])
def test_schedules_without_recompilation(kind, monkeypatch):
    from poptorch.running.executor import PoplarExecutor

    compiled = []
    original = PoplarExecutor._compile
    monkeypatch.setattr(
        PoplarExecutor, "_compile", lambda s, a, k: (compiled.append(s), original(s, a, k))[1]
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*lr_scheduler.step.*")
        (ours, a), (theirs, b) = twins(seeded(kind), devices=2)
    assert_same_weights(ours, theirs)
    assert a.optimizers[0].param_groups[0]["lr"] == b.optimizers[0].param_groups[0]["lr"] < 0.1
    assert len(compiled) == 1


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_schedule_that_moves_momentum_too(name):
    class OneCycle(Net):
        def configure_optimizers(self):
            optimizer = OPTIMIZERS[name](self.parameters())
            steps = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    (ours, _), (theirs, _) = twins(seeded(OneCycle))
    assert_same_weights(ours, theirs)


def test_a_hand_made_schedule_is_seen():
    class Hand(Net):
        def on_train_batch_start(self, batch, batch_idx):
            self.trainer.optimizers[0].param_groups[0]["lr"] = 0.2 / (1 + batch_idx)

    (ours, _), (theirs, _) = twins(seeded(Hand))
    assert_same_weights(ours, theirs)


OTHERS = "Adagrad Adadelta Adamax NAdam RAdam Rprop ASGD Adafactor".split()
PAUSES = [
    (name, first, second)
    for name in OPTIMIZERS
    for first, second in (("ipu", "ipu"), ("cpu", "ipu"), ("ipu", "cpu"))
] + [(name, "ipu", second) for name in OTHERS for second in ("ipu", "cpu")]


@pytest.mark.parametrize("name,first,second", PAUSES)
def test_resume_gives_the_same_as_no_pause(name, first, second, tmp_path):
    make = OPTIMIZERS.get(name) or (lambda p: getattr(torch.optim, name)(p, lr=0.01))
    whole = seeded(Net, make)
    trainer("cpu", max_epochs=2).fit(whole, loader(32))
    part = seeded(Net, make)
    t = trainer(first, max_epochs=1)
    t.fit(part, loader(32))
    path = tmp_path / "half.ckpt"
    t.save_checkpoint(path)
    other = Net(make)
    trainer(second, max_epochs=2).fit(other, loader(32), ckpt_path=path)
    assert_same_weights(other, whole)


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_checkpoint_in_mid_epoch_holds_current_weights(weights_only, tmp_path):
    states = []
    for accelerator in ("ipu", "cpu"):
        saved = ModelCheckpoint(
            tmp_path / accelerator,
            every_n_train_steps=5,
            save_top_k=-1,
            save_weights_only=weights_only,
        )
        trainer(accelerator, max_epochs=1, enable_checkpointing=True, callbacks=[saved]).fit(
            seeded(Net, OPTIMIZERS["adam"]), loader()
        )
        files = sorted((tmp_path / accelerator).glob("*.ckpt"))
        assert len(files) == 3
        states.append([torch.load(f, weights_only=False) for f in files])
    for ours, theirs in zip(*states, strict=True):
        for name, value in theirs["state_dict"].items():
            torch.testing.assert_close(ours["state_dict"][name], value, rtol=1e-4, atol=1e-6)
            assert type(ours["state_dict"][name]) is torch.Tensor
        if not weights_only:
            left, right = (c["optimizer_states"][0]["state"] for c in (ours, theirs))
            assert left.keys() == right.keys()
            for number, entry in right.items():
                for key, value in entry.items():
                    torch.testing.assert_close(left[number][key], value, rtol=1e-4, atol=1e-6)


AVERAGES = {
    "WeightAveraging": lambda cls: cls(),
    "StochasticWeightAveraging": lambda cls: cls(0.05, swa_epoch_start=1),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_averaging_callbacks(name):
    if not hasattr(pl.callbacks, name):
        pytest.skip(f"this Lightning has no {name}")
    (ours, _), (theirs, _) = twins(
        seeded(Net),
        epochs=3,
        val=True,
        callbacks=lambda: [AVERAGES[name](getattr(pl.callbacks, name))],
    )
    assert_same_weights(ours, theirs)


def test_a_callback_that_reads_weights_every_batch():
    class Average(pl.Callback):
        def on_train_start(self, trainer, module):
            self.kept = copy.deepcopy(module.net.state_dict())

        def on_train_batch_end(self, trainer, module, *args):
            for name, value in module.net.state_dict().items():
                self.kept[name].lerp_(value, 0.1)

    found = [Average(), Average()]
    given = iter(found)
    twins(seeded(Net), callbacks=lambda: [next(given)])
    for name, value in found[1].kept.items():
        torch.testing.assert_close(found[0].kept[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_train_batch_end", "on_validation_end"])
@pytest.mark.parametrize("through_data", [False, True])
def test_an_edit_of_weights_survives(hook, through_data):
    def edit(self, trainer, module, *args):
        with torch.no_grad():
            weight = module.net[0].weight
            (weight.data if through_data else weight).mul_(0.9)

    kind = type("Edit", (pl.Callback,), {hook: edit})
    (ours, _), (theirs, _) = twins(seeded(Net), val=True, callbacks=lambda: [kind()])
    assert_same_weights(ours, theirs)


def test_batch_norm_statistics():
    (ours, _), (theirs, _) = twins(seeded(Net, bn=True), val=True)
    assert ours.net[1].num_batches_tracked == theirs.net[1].num_batches_tracked == 32
    assert_same_weights(ours, theirs)


def test_the_rate_monitor_and_a_csv_logger(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)

    class Logged(Scheduled):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss

    t = trainer(max_epochs=1, logger=logger, callbacks=[LearningRateMonitor()], log_every_n_steps=2)
    t.fit(seeded(Logged), loader())
    logger.save()
    text = next(tmp_path.rglob("metrics.csv")).read_text()
    assert "lr-SGD" in text and "loss" in text


def test_a_loss_of_several_and_a_dict():
    class Dict(Net):
        def training_step(self, batch, batch_idx):
            x, y = batch
            out = self(x)
            loss = F.cross_entropy(out, y) + 0.1 * out.pow(2).mean()
            return {"loss": loss, "logits": out, "note": "text"}

    shapes = []

    class Seen(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            shapes.append((outputs["loss"].shape, outputs["logits"].shape, outputs["note"]))

    (ours, _), (theirs, _) = twins(
        seeded(Dict), devices=2, accumulate=2, callbacks=lambda: [Seen()]
    )
    assert_same_weights(ours, theirs)
    assert set(shapes) == {(torch.Size([]), torch.Size([16, 4]), "text")}
