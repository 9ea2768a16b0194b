# SPDX-License-Identifier: Apache-2.0
"""One annotated model, four ways to run it: all give what the unannotated model gives."""

import json

import poptorch
import pytest
import torch
from tolerances import assert_same_steps
from torch import nn
from torch.nn import functional as F

BLOCKS = ("a", "b", "c", "d")


class Chain(nn.Module):
    """Four parts, with a skip over one of them, running statistics and a tied weight."""

    def __init__(self, annotated=True, dropout=0.0, tied=False):
        super().__init__()
        torch.manual_seed(3)
        self.annotated = annotated
        self.dropout = dropout
        self.tied = tied
        self.a = nn.Linear(6, 8)
        self.b = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU())
        self.c = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh())
        self.d = nn.Linear(8, 4)
        self.register_buffer("seen", torch.zeros(8))

    def start(self, index):
        if self.annotated:
            poptorch.Block.start(BLOCKS[index], ipu_id=index)

    def forward(self, x, target=None):
        self.start(0)
        x = F.relu(self.a(x))
        skip = x
        self.start(1)
        x = self.b(F.dropout(x, self.dropout, self.dropout > 0))
        self.start(2)
        x = self.c(x)
        if self.tied:
            x = x @ self.b[0].weight
        self.seen.add_(x.detach().mean(0))
        self.start(3)
        out = self.d(x + skip)
        if target is None:
            return out
        return out, F.cross_entropy(out, target)


def four(stages=BLOCKS):
    return {
        "pipelined": poptorch.PipelinedExecution(*stages),
        "sharded": poptorch.ShardedExecution(*stages),
        "serial": poptorch.SerialPhasedExecution(*stages),
        "parallel": poptorch.ParallelPhasedExecution(*stages),
    }


STRATEGIES = ("pipelined", "sharded", "serial", "parallel")


def options(strategy=None, iterations=1, accumulation=1, replicas=1):
    opts = poptorch.Options().showCompilationProgressBar(False).randomSeed(7)
    opts.deviceIterations(iterations).replicationFactor(replicas).broadcastBuffers(False)
    opts.outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(accumulation)
    if strategy is not None:
        opts.setExecutionStrategy(four()[strategy])
    return opts


def data(rows):
    generator = torch.Generator().manual_seed(rows)
    return (
        torch.randn(rows, 6, generator=generator),
        torch.randint(0, 4, (rows,), generator=generator),
    )


def trained(model, opts, optimizer, rows, calls=2):
    """(outputs of the calls, state of the model after them)."""
    training = poptorch.trainingModel(model, opts, optimizer(model.parameters()))
    outputs = [training(*data(rows)) for _ in range(calls)]
    training.copyWeightsToHost()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    training.destroy()
    return outputs, state


OPTIMIZERS = {
    "sgd": lambda p: poptorch.optim.SGD(p, lr=0.05),
    "combined": lambda p: poptorch.optim.SGD(
        p, lr=0.05, momentum=0.9, weight_decay=0.01, use_combined_accum=True
    ),
    "clipped": lambda p: poptorch.optim.AdamW(p, lr=0.01, max_grad_norm=0.5, loss_scaling=8.0),
}


def check(strategy, optimizer="sgd", rows_per_micro=3, kind=None, **counts):
    kind = kind or {}
    steps = counts.get("iterations", 1) * counts.get("accumulation", 1) * counts.get("replicas", 1)
    make = OPTIMIZERS[optimizer]
    expected = trained(Chain(False, **kind), options(**counts), make, rows_per_micro * steps)
    actual = trained(Chain(True, **kind), options(strategy, **counts), make, rows_per_micro * steps)
    assert_same_steps(actual, expected)
    fresh = Chain(False).state_dict()
    assert any(not torch.equal(actual[1][name], fresh[name]) for name in fresh)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_inference(strategy):
    model, plain = Chain(True).eval(), Chain(False).eval()
    x, _ = data(24)
    expected = plain(x).detach()
    for replicas in (1, 2):
        opts = options(strategy, iterations=6, replicas=replicas)
        actual = poptorch.inferenceModel(model, opts)
        torch.testing.assert_close(actual(x), expected)
        torch.testing.assert_close(actual(x), expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_with_accumulation(strategy, optimizer):
    check(strategy, optimizer, accumulation=8)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_with_iterations_and_replicas(strategy):
    check(strategy, iterations=2, accumulation=7, replicas=2)


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_without_accumulation(strategy, optimizer):
    check(strategy, optimizer, iterations=2)


@pytest.mark.parametrize("strategy", ("pipelined", "serial", "parallel"))
def test_a_weight_used_on_two_ipus(strategy):
    check(strategy, kind={"tied": True}, accumulation=8)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dropout_is_that_of_the_unannotated_model(strategy):
    check(strategy, kind={"dropout": 0.5}, accumulation=8)


@pytest.mark.parametrize("mode", ("Final", "Sum", "All"))
def test_output_modes_of_a_pipeline(mode):
    x, target = data(42)
    results = []
    for annotated in (True, False):
        model = Chain(annotated)
        opts = options("pipelined" if annotated else None, iterations=2, accumulation=7)
        opts.outputMode(poptorch.OutputMode[mode])
        training = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
        results.append(training(x, target))
    assert_same_steps(*results)


def test_replicas_with_statistics_of_their_own_take_turns_in_one_pipeline(tmp_path, monkeypatch):
    file = tmp_path / "trace.json"
    monkeypatch.setenv("TESSERA_TRACE", str(file))
    model = Chain(True)
    opts = options("pipelined", accumulation=7, replicas=2)
    training = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
    training(*data(28))
    events = [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "X"]
    last = [e for e in events if e["name"] == "stage0.bwd"]
    order = [(e["args"]["micro_batch"], e["pid"]) for e in sorted(last, key=lambda e: e["ts"])]
    assert order == [(k, replica) for k in range(7) for replica in range(2)]
