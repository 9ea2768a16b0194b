# SPDX-License-Identifier: Apache-2.0
"""What step functions may do: log, use metrics, keep outputs; and the data they get."""

import collections

import lightning.pytorch as pl
import poptorch
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import BasePredictionWriter, EarlyStopping
from lightning_support import (
    Net,
    accelerator_of,
    assert_same_metrics,
    assert_same_weights,
    data,
    loader,
    seeded,
    trainer,
    twins,
)
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

CALLS = collections.Counter()


class Logs(Net):
    def training_step(self, batch, batch_idx):
        CALLS["train"] += 1
        x, y = batch
        out = self(x)
        loss = F.cross_entropy(out, y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log_dict({"largest": out.max(), "two": 2.0}, on_epoch=True, reduce_fx="max")
        self.log("right", (out.argmax(1) == y).sum().float(), on_epoch=True, reduce_fx=torch.sum)
        return loss

    def validation_step(self, batch, batch_idx):
        CALLS["val"] += 1
        x, y = batch
        out = self(x)
        self.log("val_loss", F.cross_entropy(out, y), batch_size=len(x))
        self.log("val_acc", (out.argmax(1) == y).float().mean(), prog_bar=True)


@pytest.mark.parametrize("devices,accumulate", [(1, 1), (2, 2), (8, 1)])
def test_logged_values_equal_those_of_the_cpu(devices, accumulate):
    CALLS.clear()
    (ours, a), (theirs, b) = twins(
        seeded(Logs), devices=devices, accumulate=accumulate, val=True, num_sanity_val_steps=0
    )
    assert_same_weights(ours, theirs)
    # With several replicas a maximum or a sum of one batch is that of its parts.
    assert_same_metrics(a.callback_metrics, b.callback_metrics)
    assert CALLS["train"] == 1 + 2 * 64 // (4 * devices * accumulate)


def test_logged_values_of_a_test():
    results = []
    for accelerator in ("ipu", "cpu"):
        results.append(trainer(accelerator).test(seeded(Net), loader(), verbose=False)[0])
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_logging_in_predict_is_refused_as_on_the_cpu():
    class Bad(Net):
        def predict_step(self, batch, batch_idx):
            out = self(batch[0])
            self.log("x", out.mean())
            return out

    for accelerator in ("cpu", "ipu"):
        with pytest.raises(pl.utilities.exceptions.MisconfigurationException, match="log"):
            trainer(accelerator).predict(seeded(Bad), loader())


def test_a_logged_value_is_one_value():
    class Many(Net):
        def training_step(self, batch, batch_idx):
            self.log("many", self(batch[0]).mean(0))
            return super().training_step(batch, batch_idx)

    for accelerator in ("cpu", "ipu"):
        with pytest.raises(ValueError, match="have a single element"):
            trainer(accelerator, max_epochs=1).fit(seeded(Many), loader())


class Metrics(Net):
    def __init__(self):
        super().__init__()
        self.acc = torchmetrics.Accuracy("multiclass", num_classes=4)
        self.val_acc = torchmetrics.Accuracy("multiclass", num_classes=4)
        self.mean = torchmetrics.MeanMetric()
        self.both = torchmetrics.MetricCollection(
            {name: torchmetrics.Accuracy("multiclass", num_classes=4) for name in "ab"},
            prefix="both_",
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        loss = F.cross_entropy(out, y)
        self.log("acc_now", self.acc(out, y), on_step=True, on_epoch=False)
        self.log("acc", self.acc, on_epoch=True, on_step=False)
        self.log_dict(self.both(out, y), on_step=True, on_epoch=False)
        self.log("so_far", self.acc.compute(), on_step=True, on_epoch=False)
        self.log("other", F.mse_loss(out, out * 2) + F.cross_entropy(out, y))
        self.mean.update(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.log("mean", self.mean.compute())
        self.mean.reset()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.val_acc.update(self(x), y)
        self.log("val_acc", self.val_acc)
        self.both.update(self(x), y)
        self.log_dict(self.both)


@pytest.mark.parametrize("use", [lambda v: 1 - v, lambda v: v.item(), lambda v: v > 0.5])
def test_the_value_of_a_metric_is_not_computed_with(use):
    class Uses(Metrics):
        def training_step(self, batch, batch_idx):
            use(self.acc(self(batch[0]), batch[1]))

    with pytest.raises((TypeError, AttributeError), match="torchmetrics.functional"):
        trainer(max_epochs=1).fit(seeded(Uses), loader())


@pytest.mark.parametrize("devices", [1, 2])
def test_torchmetrics_objects(devices):
    (module, a), (_, b) = twins(seeded(Metrics), devices=devices, val=True)
    assert_same_metrics(a.callback_metrics, b.callback_metrics)
    assert module.acc.__dict__.keys() == Metrics().acc.__dict__.keys()


class Layer(torch.nn.Linear):
    """Remembers what it saw."""

    seen = None

    def forward(self, x):
        self.seen = x.abs().max()
        return super().forward(x)


class Keeps(Net):
    def __init__(self):
        super().__init__()
        self.outputs = []
        self.by_kind = {"loss": []}
        self.epochs = []
        self.net[0] = Layer(12, 16)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        loss = F.cross_entropy(out, y)
        self.outputs.append({"out": out, "y": y})
        self.by_kind["loss"].append(loss)
        self.last = loss
        return loss

    def on_validation_epoch_end(self):
        out = torch.cat([o["out"] for o in self.outputs])
        y = torch.cat([o["y"] for o in self.outputs])
        assert all(type(o["out"]) is torch.Tensor for o in self.outputs)
        loss = torch.stack(self.by_kind["loss"]).mean()
        self.log("val_acc", (out.argmax(1) == y).float().mean())
        self.log("val_loss", loss)
        self.epochs.append((len(self.outputs), float(self.last), float(self.net[0].seen)))
        self.outputs.clear()
        self.by_kind["loss"].clear()


def test_outputs_kept_in_lists_and_attributes():
    kept = []
    for accelerator, devices in (("ipu", 1), ("ipu", 2), ("cpu", 1)):
        module = seeded(Keeps)
        metrics = trainer(accelerator, devices).validate(module, loader(), verbose=False)[0]
        kept.append((metrics, module.epochs))
    for metrics, epochs in kept[:2]:
        assert metrics == pytest.approx(kept[2][0], rel=1e-4)
        assert epochs[0][0] == 16  # one per micro-batch
        assert epochs[0][1:] == pytest.approx(kept[2][1][0][1:], rel=1e-4)


def test_early_stopping_and_plateau():
    class Plateau(Logs):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.5)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, patience=0, threshold=0.2
            )
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"},
            }

    (ours, a), (theirs, b) = twins(
        seeded(Plateau),
        epochs=8,
        val=True,
        callbacks=lambda: [EarlyStopping("val_loss", min_delta=0.2, patience=2)],
    )
    assert a.current_epoch == b.current_epoch < 8
    assert a.optimizers[0].param_groups[0]["lr"] == b.optimizers[0].param_groups[0]["lr"] < 0.5
    assert_same_weights(ours, theirs)


def test_two_loaders_with_a_branch():
    class Two(Net):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            x, y = batch
            if dataloader_idx == 1:
                x = x * 2
            self.log("loss", F.cross_entropy(self(x), y))

    found = []
    for accelerator in ("ipu", "cpu"):
        loaders = [loader(batch_size=4), loader(count=40, batch_size=8)]
        trainer(accelerator, 1).validate(module := seeded(Two), loaders, verbose=False)
        found.append(module.trainer.callback_metrics)
    assert_same_metrics(*found)
    assert len(found[0]) == 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter(data(32))


def test_an_iterable_dataset():
    modules = []
    for accelerator, devices, size in (("ipu", 2, 4), ("cpu", 1, 8)):
        module = seeded(Net)
        given = DataLoader(Stream(), batch_size=size)
        trainer(accelerator, devices, max_epochs=1).fit(module, given)
        modules.append(module)
    assert_same_weights(*modules)


class Reversed(BatchSampler):
    """A batch sampler of the user's."""

    def __iter__(self):
        return reversed(list(super().__iter__()))


@pytest.mark.parametrize("kind", [Reversed, BatchSampler])
def test_a_batch_sampler_on_several_ipus(kind):
    modules = []
    for accelerator, devices in (("ipu", 4), ("cpu", 1)):
        module = seeded(Net)
        if devices == 4:
            sampler = kind(SequentialSampler(data()), 4, drop_last=True)
        else:  # the same samples per update
            inner = list(kind(SequentialSampler(data()), 4, drop_last=True))
            sampler = [sum(inner[i : i + 4], []) for i in range(0, 16, 4)]
        given = DataLoader(data(), batch_sampler=sampler)
        trainer(accelerator, devices, max_epochs=2).fit(module, given)
        modules.append(module)
    assert_same_weights(*modules)


def test_a_loader_of_poptorch_is_used_as_it_is():
    options = poptorch.Options()
    options.replicationFactor(2)
    given = poptorch.DataLoader(options, data(), batch_size=4)
    seen = []

    class Look(pl.Callback):
        def on_train_start(self, trainer, module):
            seen.append(trainer.train_dataloader)

        def on_predict_start(self, trainer, module):
            seen.append(trainer.predict_dataloaders)

    module = seeded(Net)
    t = trainer(devices=2, max_epochs=1, callbacks=[Look()])
    t.fit(module, given)
    out = torch.cat(t.predict(module, given))
    assert seen == [given, given]
    torch.testing.assert_close(out, module(data().tensors[0]).detach(), rtol=1e-4, atol=1e-5)


def test_shuffling_changes_every_epoch():
    orders = []

    class Order(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if batch_idx == 0:
                orders.append(batch[0].clone())

    trainer(devices=2, max_epochs=3, callbacks=[Order()]).fit(seeded(Net), loader(shuffle=True))
    assert not torch.equal(orders[0], orders[1]) and not torch.equal(orders[1], orders[2])


@pytest.mark.parametrize("devices", [1, 4])
def test_predictions_and_their_indices(devices):
    indices = []

    class Writer(BasePredictionWriter):
        def write_on_batch_end(self, trainer, module, prediction, batch_indices, *args):
            assert len(prediction) == len(batch_indices)
            indices.extend(batch_indices)

    module = seeded(Net)
    t = trainer(devices=devices, callbacks=[Writer("batch")])
    t.predict(module, loader(30))
    out = torch.cat(trainer(devices=devices).predict(module, loader(30)))
    torch.testing.assert_close(out, module(data(30).tensors[0]).detach(), rtol=1e-4, atol=1e-5)
    assert indices == list(range(30))


@pytest.mark.parametrize("count", [3, 27, 30])
def test_tail_samples_are_evaluated(count):
    found = []
    for accelerator, devices in (("ipu", 2), ("cpu", 1)):
        module = seeded(Metrics)
        t = trainer(accelerator, devices)
        t.test(module, loader(count), verbose=False)
        first = t.callback_metrics
        t.validate(module, loader(count), verbose=False)
        found.append({**first, **t.callback_metrics})
    assert_same_metrics(*found)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_short_batches_are_dropped_if_asked(devices):
    module = seeded(Net)
    given = loader(30, drop_last=True)
    wanted = trainer("cpu").validate(module, given, verbose=False)[0]
    found = trainer(devices=devices).validate(module, given, verbose=False)[0]
    assert found == pytest.approx(wanted, rel=1e-5)
    assert len(torch.cat(trainer(devices=devices).predict(module, given))) == 28


def test_tail_samples_of_training_are_warned_about():
    with pytest.warns(UserWarning, match="The last 6 of 70 training samples"):
        trainer(devices=2, max_epochs=1).fit(seeded(Net), loader(70))


def test_too_little_data_for_one_step():
    with pytest.raises(Exception, match="fewer than one step needs"):
        trainer(devices=8, max_epochs=1).fit(seeded(Net), loader(16))


@pytest.mark.parametrize(
    "settings",
    [
        {"overfit_batches": 3},
        {"limit_train_batches": 5, "limit_val_batches": 2},
        {"val_check_interval": 0.25},
        {"reload_dataloaders_every_n_epochs": 1},
        {"max_steps": 7, "max_epochs": -1},
    ],
    ids=lambda s: next(iter(s)),
)
def test_limits_of_the_trainer(settings):
    counts, modules = [], []
    for accelerator, devices, size in (("ipu", 2, 4), ("cpu", 1, 8)):

        class Counted(Logs):
            ends = 0

            def on_validation_epoch_end(self):
                self.ends += 1

        module = seeded(Counted)
        t = trainer(accelerator, devices, **{"max_epochs": 2, **settings})
        t.fit(module, loader(batch_size=size), loader(batch_size=size))
        counts.append((module.ends, t.global_step, t.num_training_batches))
        modules.append(module)
    assert counts[0] == counts[1]
    assert_same_weights(*modules)


def test_frozen_values_are_warned_about_at_the_users_line():
    class Frozen(Net):
        def training_step(self, batch, batch_idx):
            if self.current_epoch > 3:
                return None
            return super().training_step(batch, batch_idx)

    with pytest.warns(UserWarning, match="`current_epoch`") as caught:
        trainer(max_epochs=1).fit(seeded(Frozen), loader())
    found = [w for w in caught if "current_epoch" in str(w.message)]
    assert len(found) == 1 and found[0].filename == __file__


class Blocks(Net):
    """Four layers, each on an IPU of its own."""

    def __init__(self):
        super().__init__()
        layers = [torch.nn.Linear(12, 12) for _ in range(3)] + [torch.nn.Linear(12, 4)]
        self.net = torch.nn.Sequential(*layers)
        self.annotated = False

    def setup(self, stage):
        if accelerator_of(self.trainer) == "ipu" and not self.annotated:
            self.annotated = True
            for i, layer in enumerate(self.net):
                poptorch.BeginBlock(layer, f"block {i}", ipu_id=i)


@pytest.mark.parametrize("pipelined", [True, False])
def test_model_parallelism_inside_the_module(pipelined):
    """Pipelined as the user's options say; by itself a strategy needs no accumulation."""
    if pipelined:
        options = poptorch.Options().deviceIterations(2).replicationFactor(2)
        options.Training.gradientAccumulation(8)
        inference = poptorch.Options().deviceIterations(8)
        strategy = pl.strategies.IPUStrategy(training_opts=options, inference_opts=inference)
        per_update = 4 * 2 * 8
    else:
        strategy, per_update = pl.strategies.IPUStrategy(device_iterations=20), 4 * 2
    count = 320 if not pipelined else 256
    ours, theirs = seeded(Blocks), seeded(Blocks)
    t = trainer(devices=2, max_epochs=1, strategy=strategy)
    t.fit(ours, loader(count), loader(70))
    other = trainer("cpu", max_epochs=1)
    other.fit(theirs, loader(count, per_update), loader(70))
    assert_same_weights(ours, theirs)
    assert_same_metrics(t.callback_metrics, other.callback_metrics)


def test_a_decision_by_the_batch_index_is_warned_about():
    class Decides(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * 2 if batch_idx % 2 else loss

    with pytest.warns(UserWarning, match="decides something by its batch_idx") as caught:
        trainer(max_epochs=1).fit(seeded(Decides), loader())
    assert {w.filename for w in caught if "batch_idx" in str(w.message)} == {__file__}


def test_without_an_optimizer_nothing_is_trained():
    class Looks(Logs):
        def configure_optimizers(self):
            return None

    found = []
    for accelerator in ("ipu", "cpu"):
        t = trainer(accelerator, max_epochs=1)
        t.fit(module := seeded(Looks), loader())
        found.append(t.callback_metrics)
    assert_same_metrics(*found)
    assert_same_weights(module, seeded(Looks), rtol=0, atol=0)


def test_workers_of_the_loader():
    modules = []
    for accelerator, devices, size in (("ipu", 2, 4), ("cpu", 1, 8)):
        module = seeded(Net)
        given = loader(batch_size=size, num_workers=1, persistent_workers=True)
        trainer(accelerator, devices, max_epochs=2).fit(module, given)
        modules.append(module)
    assert_same_weights(*modules)


def test_the_trace_of_a_step_does_not_live_on():
    import gc

    from torch._subclasses.fake_tensor import FakeTensor

    def alive():
        gc.collect()
        return {id(o) for o in gc.get_objects() if isinstance(o, FakeTensor)}

    kept, before = [], alive()  # what failed captures of other tests left in their errors

    class Look(pl.Callback):
        def on_train_batch_end(self, *args):
            kept.append(alive() - before)

    module = seeded(Metrics)
    trainer(max_epochs=1, limit_train_batches=1, callbacks=[Look()]).fit(module, loader())
    assert kept == [set()]
