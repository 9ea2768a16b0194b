# SPDX-License-Identifier: Apache-2.0
"""Batches of more than tensors: texts, numbers and records."""

import pytest
import torch
from lightning.fabric import Fabric
from lightning_support import Net, assert_same_weights, data, loader, seeded, trainer
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Records(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        x, y = data(16)[index]
        return {"x": x, "y": y, "name": f"sample {index}", "pair": (x[:2], 3)}


def test_dicts_with_texts_and_numbers():
    class Dict(Net):
        def training_step(self, batch, batch_idx):
            assert isinstance(batch["name"], list)
            loss = F.cross_entropy(self(batch["x"]), batch["y"])
            return {"loss": loss * batch["pair"][1].float().mean()}

        def predict_step(self, batch, batch_idx):
            return {"out": self(batch["x"]), "note": "seen"}

    results = []
    for accelerator in ("ipu", "cpu"):
        t = trainer(accelerator, max_epochs=1)
        module = seeded(Dict)
        t.fit(module, DataLoader(Records(), batch_size=4))
        results.append((module, t.predict(module, DataLoader(Records(), batch_size=4))))
    assert_same_weights(results[0][0], results[1][0])
    for ours, theirs in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(ours["out"], theirs["out"], rtol=1e-4, atol=1e-5)
        assert ours["note"] == "seen"


class Named(Net):
    def __init__(self):
        super().__init__()
        self.names, self.groups = [], []

    def test_step(self, batch, batch_idx):
        out = self(batch["x"])
        self.names.extend(batch["name"])
        self.groups.append((batch["name"], out))

    def predict_step(self, batch, batch_idx):
        return {"out": self(batch["x"]), "name": batch["name"], "first": batch["name"][0]}


@pytest.mark.parametrize("devices,size", [(1, 4), (1, 6), (2, 3), (2, 2)])
def test_texts_of_the_batch_stay_with_their_samples(devices, size):
    module = seeded(Named)
    given = DataLoader(Records(), batch_size=size)
    predictions = trainer(devices=devices).predict(module, given)
    trainer(devices=devices).test(module, given, verbose=False)
    wanted = [f"sample {index}" for index in range(16)]
    assert sum((p["name"] for p in predictions), []) == wanted == module.names
    assert all(type(name) is str for name in module.names)
    assert [p["first"] for p in predictions] == wanted[:: size * devices]
    for names, out in module.groups:
        assert len(names) == len(out) <= size
    joined = torch.cat([out for _, out in module.groups])
    torch.testing.assert_close(joined, torch.cat([p["out"] for p in predictions]))


def test_a_decision_by_a_text_is_warned_about():
    class Decides(Named):
        def predict_step(self, batch, batch_idx):
            return self(batch["x"]) * (2 if batch["name"][0] == "sample 0" else 1)

    with pytest.warns(UserWarning, match="by a text of its batch.*'sample 0'") as caught:
        trainer().predict(seeded(Decides), DataLoader(Records(), batch_size=4))
    assert any(w.filename == __file__ for w in caught)


def test_a_plain_number_in_the_batch():
    class Number(Net):
        def training_step(self, batch, batch_idx):
            (x, y), scale = batch
            return F.cross_entropy(self(x), y) * scale

    def scaled(samples):
        xs, ys = zip(*samples, strict=True)
        return (torch.stack(xs), torch.stack(ys)), 0.5

    results = []
    for accelerator, devices, size in (("ipu", 2, 4), ("cpu", 1, 8)):
        module = seeded(Number)
        given = DataLoader(data(), batch_size=size, collate_fn=scaled)
        trainer(accelerator, devices, max_epochs=1).fit(module, given)
        results.append(module)
    assert_same_weights(*results)


def test_a_tensor_per_sample_needs_whole_batches():
    class Rows(Net):
        def predict_step(self, batch, batch_idx):
            return list(self(batch[0]))

    rows = trainer().predict(seeded(Rows), loader(16))
    assert [len(r) for r in rows] == [4] * 4
    with pytest.raises(ValueError, match="one tensor for all samples"):
        trainer(devices=2).predict(seeded(Rows), loader(14))


def test_loaders_and_their_short_batches_take_turns_on_all_ipus(monkeypatch):
    """Their programs cannot be on the IPUs at the same time."""
    monkeypatch.setenv("TESSERA_IPUS", "2")

    class Both(Net):
        def predict_step(self, batch, batch_idx, dataloader_idx=0):
            return self(batch[0])

    given = [DataLoader(data(14), batch_size=size) for size in (2, 4)]
    found = []
    for accelerator in ("ipu", "cpu"):
        t = trainer(accelerator, **({"devices": 2} if accelerator == "ipu" else {}))
        found.append(t.predict(seeded(Both), given))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(torch.cat(ours), torch.cat(theirs), rtol=1e-4, atol=1e-5)


def test_training_and_validation_take_turns_on_all_ipus(monkeypatch):
    monkeypatch.setenv("TESSERA_IPUS", "2")
    t = trainer(devices=2, max_epochs=2, limit_val_batches=None, num_sanity_val_steps=1)
    t.fit(seeded(Net), loader(16), loader(14))
    assert t.current_epoch == 2


def test_shapes_of_a_fabric_module_take_turns_on_all_ipus(monkeypatch):
    monkeypatch.setenv("TESSERA_IPUS", "2")
    fabric = Fabric(accelerator="ipu", devices=2)
    module = seeded(Net).eval()
    compiled = fabric.setup_module(module)
    for rows in (2, 4, 6, 4, 2):
        x = torch.randn(rows, *data(1)[0][0].shape)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
