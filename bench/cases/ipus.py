# SPDX-License-Identifier: Apache-2.0
"""Models on several virtual IPUs against the same model on one: a pipeline of four equal stages,
one of 64, and what 64 stages cost when they are compiled.

The figures are ratios of times, so less is better. Samples of all variants are taken in turn.
"""

import time

import torch
from torch import nn

from bench.harness import OURS, figure

LAYERS, ROWS, MICRO_BATCHES = 64, 32, 128


class Chain(nn.Module):
    """Equal layers in equal stages; no annotation without stages."""

    def __init__(self, layers, width, stages):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.per_stage = layers // stages if stages else 0

    def forward(self, x):
        import poptorch

        for i, layer in enumerate(self.layers):
            if self.per_stage and i % self.per_stage == 0:
                stage = i // self.per_stage
                poptorch.Block.start(f"stage{stage}", ipu_id=stage)
            x = torch.relu(layer(x))
        return poptorch.identity_loss(x, reduction="mean")


def program(layers, width, stages, strategy=None, threads=2, replicas=1):
    """A compiled training call and how long compiling took."""
    import poptorch

    options = poptorch.Options().showCompilationProgressBar(False).useIpuModel(True)
    options.replicationFactor(replicas)
    options.Training.gradientAccumulation(MICRO_BATCHES // replicas)
    if strategy is not None:
        options.setExecutionStrategy(strategy)
    model = Chain(layers, width, stages)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.001)
    training = poptorch.trainingModel(model, options, optimizer)
    batch = torch.randn(MICRO_BATCHES * ROWS, width)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)  # of the program: read when it is compiled
    start = time.perf_counter()
    training.compile(batch)
    took = time.perf_counter() - start
    torch.set_num_threads(before)
    return lambda: training(batch), took


def best(steps, rounds=15):
    """The best time of each, in turn."""
    times = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def pipeline(stages, **kwargs):
    import poptorch

    return program(stages, 256, stages, poptorch.PipelinedExecution(), **kwargs)[0]


@figure("pipeline of 4 stages / sharded, a core per op", "x", at_most=1 / 1.7)
def pipeline_against_shards(ctx):
    import poptorch

    shards = program(4, 256, 4, poptorch.ShardedExecution(), threads=1)[0]
    times = best({"ours": pipeline(4), "shards": shards})
    return {OURS: times["ours"] / times["shards"]}


@figure("pipeline of 4 stages / one IPU, both cores", "x", at_most=1 / 0.9)
def pipeline_against_one_ipu(ctx):
    times = best({"ours": pipeline(4), "one": program(4, 256, 0)[0]})
    return {OURS: times["ours"] / times["one"]}


@figure("pipeline of 64 stages / one IPU, both cores", "x", at_most=1 / 0.8)
def many_stages(ctx):
    times = best({"ours": pipeline(LAYERS), "one": program(LAYERS, 256, 0)[0]}, rounds=6)
    return {OURS: times["ours"] / times["one"]}


@figure("16 replicas of 4 stages / one IPU, both cores", "x", at_most=1 / 0.8)
def many_replicas(ctx):
    times = best({"ours": pipeline(4, replicas=16), "one": program(4, 256, 0)[0]})
    return {OURS: times["ours"] / times["one"]}


@figure("compiling 64 stages / 4 stages, same model", "x", at_most=3)
def stages_compile(ctx):
    import poptorch

    took = [
        min(program(LAYERS, 64, n, poptorch.PipelinedExecution())[1] for _ in range(3))
        for n in (LAYERS, 4)
    ]
    return {OURS: took[0] / took[1]}


CASES = [
    pipeline_against_shards,
    pipeline_against_one_ipu,
    many_stages,
    many_replicas,
    stages_compile,
]
