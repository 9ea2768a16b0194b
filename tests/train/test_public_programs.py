# SPDX-License-Identifier: Apache-2.0
"""Whole programs in the manner of public ones, with all that they import and set at their top."""

import copy
import importlib.metadata
import json

import popart
import popdist
import popdist.poptorch
import poptorch
import pytest
import torch
from packaging import version
from poptorch import DataLoader, DataLoaderMode, OutputMode, PoplarExecutor, poptorch_core
from poptorch._impl import rewrapModelIfNecessary, unwrapModelIfNecessary
from poptorch.optim import LAMB, SGD, AdamW, RMSprop
from torch import nn


class Encoder(nn.Module):
    """Two layers on two IPUs, and a table that has a block and is only read."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.positions = poptorch.BeginBlock(nn.Embedding(1, 6), "positions", ipu_id=0)
        self.first = poptorch.BeginBlock(nn.Linear(6, 6), "first", ipu_id=0)
        self.second = poptorch.BeginBlock(nn.Linear(6, 3), "second", ipu_id=1)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, values, labels=None):
        with poptorch.Attribute(__outline={"layer": "encoder"}):
            out = torch.relu(self.first(values + self.positions.weight))
        out = self.second(poptorch.recomputationCheckpoint(out))
        if labels is None:
            return out
        return poptorch.identity_loss(self.loss(out, labels), reduction="none"), out


def data(count):
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(count, 6, generator=generator)
    return [{"values": v, "labels": v[:3].argmax()} for v in values]


def ipu_options(inference, base=poptorch.Options):
    """What a configuration object of a training library becomes."""
    opts = base()
    opts.autoRoundNumIPUs(True).showCompilationProgressBar(False)
    opts.deviceIterations(4 if inference else 1)
    opts.Training.gradientAccumulation(1 if inference else 4)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    opts.outputMode(OutputMode.All if inference else OutputMode.Final)
    opts.randomSeed(42)
    opts.Jit.traceModel(True)
    opts.setAvailableMemoryProportion({f"IPU{i}": 0.2 for i in range(2)})
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    opts.TensorLocations.setOptimizerLocation(location.useReplicatedTensorSharding(True))
    opts.Precision.setPartialsType(torch.float)
    schedule = popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized
    opts._Popart.set("accumulateOuterFragmentSettings.schedule", int(schedule))
    opts._Popart.set("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"])
    opts._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
    opts._Popart.set("disableGradAccumulationTensorStreams", True)
    opts._Popart.set("scheduleNonWeightUpdateGradientConsumersEarly", True)
    opts._Popart.set("outlineThreshold", 10.0)
    opts._Popart.setPatterns({"TiedGather": True, "UpdateInplacePrioritiesForIpu": True})
    return opts


OPTIMIZERS = {
    "AdamW": lambda groups: AdamW(groups, lr=0.01, loss_scaling=8.0, bias_correction=True),
    "LAMB": lambda groups: LAMB(groups, lr=0.01, loss_scaling=8.0, max_weight_norm=100.0),
    "RMSprop": lambda groups: RMSprop(groups, lr=0.01, alpha=0.9, loss_scaling=8.0),
    "SGD": lambda groups: SGD(
        groups, 0.05, 0.9, loss_scaling=8.0, velocity_scaling=4.0, use_combined_accum=True
    ),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_trainer_of_optimum_s_kind(kind, tmp_path):
    assert version.parse(importlib.metadata.version("poptorch")) >= version.parse("2.6")
    model = Encoder()
    decayed = [p for name, p in model.named_parameters() if "bias" not in name]
    plain = [p for name, p in model.named_parameters() if "bias" in name]
    optimizer = OPTIMIZERS[kind](
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 50))
    opts, evaluation = ipu_options(False), ipu_options(True)
    training = poptorch.trainingModel(model, opts, optimizer)
    assert isinstance(training, PoplarExecutor)
    loader = DataLoader(opts, data(64), batch_size=4, shuffle=True, mode=DataLoaderMode.Sync)
    training.compile(**next(iter(loader)))
    losses = []
    for _ in range(4):
        for batch in loader:
            losses.append(training(**batch)[0].mean())
            scheduler.step()
            training.setOptimizer(optimizer)
    assert sum(losses[-4:]) < sum(losses[:4])

    # Evaluation on the same model, between training calls.
    training.detachFromDevice()
    unwrapModelIfNecessary(model)
    twin = copy.deepcopy(model).eval()
    rewrapModelIfNecessary(model)
    inference = poptorch.inferenceModel(model, evaluation)
    batch = next(iter(DataLoader(evaluation, data(16), batch_size=4)))
    found = inference(batch["values"])
    torch.testing.assert_close(found, twin(batch["values"]).detach())
    inference.detachFromDevice()
    training.attachToDevice()

    # A checkpoint, and a run that goes on from it.
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "ck")
    saved = torch.load(tmp_path / "ck")
    optimizer.load_state_dict(saved["optimizer"])
    training.load_state_dict(saved["model"])
    training.setOptimizer(optimizer)
    training(**next(iter(loader)))
    training.destroy()
    assert type(model) is Encoder


def test_an_application_that_asks_its_launcher(monkeypatch):
    monkeypatch.setenv("POPDIST_NUM_TOTAL_REPLICAS", "2")
    monkeypatch.setenv("POPDIST_NUM_LOCAL_REPLICAS", "2")
    monkeypatch.setenv("POPDIST_NUM_IPUS_PER_REPLICA", "2")
    if popdist.isPopdistEnvSet():
        popdist.init()
    opts = ipu_options(False, lambda: popdist.poptorch.Options(ipus_per_replica=2))
    model = Encoder()
    training = poptorch.trainingModel(model, opts, SGD(model.parameters(), lr=0.05, momentum=0.9))
    loader = DataLoader(
        opts,
        data(64),
        batch_size=2,
        drop_last=True,
        num_workers=1,
        mode=DataLoaderMode.Async,
        async_options={"sharing_strategy": "SharedMemory", "early_preload": True},
    )
    assert loader.combinedBatchSize == 2 * 4 * 2
    losses = [training(**batch)[0].mean() for _ in range(6) for batch in loader]
    loader.terminate()
    assert sum(losses[-4:]) < sum(losses[:4])
    assert popdist.execute_on_instances({0}, model.state_dict)


def test_options_from_the_environment_and_a_file_are_those_of_code(monkeypatch, tmp_path):
    text = {
        "deviceIterations": 4,
        "outputMode": "OutputMode.All",
        "Training.gradientAccumulation": 1,
    }
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", json.dumps(text))
    path = tmp_path / "poptorch.conf"
    path.write_text(
        "# two stages\nsetExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoInc"
        "rement))\nautoRoundNumIPUs(True)\nshowCompilationProgressBar(False)\n"
    )
    opts = poptorch.Options().loadFromFile(str(path))
    model = Encoder().eval()
    values = torch.randn(8, 6)
    found = poptorch.inferenceModel(model, opts)(values)
    torch.testing.assert_close(found, model(values).detach())
    with pytest.raises(poptorch_core.Error, match="deviceIterations must be greater than or equal"):
        poptorch.inferenceModel(model, opts.clone().deviceIterations(1))(values)
