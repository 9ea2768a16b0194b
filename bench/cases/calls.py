# SPDX-License-Identifier: Apache-2.0
"""What a call costs besides its work: a model of one addition of 8 elements; and what replicas cost
besides the first one."""

import torch
from torch import nn

from bench.cases.resnet import SGD
from bench.harness import EAGER, OURS, figure, timed
from bench.models import WithLoss

ROUNDS, CALLS, ITERATIONS = 50, 400, 512
MICRO = 1e6


class Add(nn.Module):
    """One addition, and a loss when training."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        y = x + self.weight
        if not self.training:
            return y
        import poptorch

        return poptorch.identity_loss(y, "sum")


def executor_of(training, iterations=1, replicas=1, model=None, optimizer=None):
    import poptorch

    options = poptorch.Options().showCompilationProgressBar(False)
    options.deviceIterations(iterations).replicationFactor(replicas)
    options.outputMode(poptorch.OutputMode.Final)
    model = Add().train(training) if model is None else model
    if not training:
        return poptorch.inferenceModel(model, options)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, options, optimizer)


def best(step, calls=CALLS):
    step()
    return min(timed(step, calls) for _ in range(ROUNDS))


def call_costs(ctx, training):
    x = torch.zeros(8)
    executor, model = executor_of(training), Add().train(training)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def eager():
        if not training:
            with torch.no_grad():
                return model(x)
        optimizer.zero_grad(set_to_none=True)
        model(x).backward()
        return optimizer.step()

    steps = {OURS: lambda: executor(x), EAGER: eager}
    return {peer: best(steps[peer]) * MICRO for peer in ctx.peers if peer in steps}


@figure("call of a model of one addition, inference", "us", at_most=25)
def call_inference(ctx):
    return call_costs(ctx, training=False)


@figure("call of a model of one addition, training", "us", at_most=40)
def call_training(ctx):
    return call_costs(ctx, training=True)


@figure("one more device iteration in a call, training", "us", at_most=3)
def iteration_training(ctx):
    if OURS not in ctx.peers:
        return {}
    times = []
    for iterations in (1, 1 + ITERATIONS):
        executor, x = executor_of(True, iterations), torch.zeros(8 * iterations)
        times.append(best(lambda run=executor, x=x: run(x), 20))
    return {OURS: (times[1] - times[0]) / ITERATIONS * MICRO}


HOST_CALLS = 100


class OnHost(nn.Module):
    """So many ops that torch runs on the host, with a native one before each."""

    def __init__(self, count, op):
        super().__init__()
        self.count, self.op = count, op

    def forward(self, x):
        for _ in range(self.count):
            x = self.op(x + 1)
        return x


def host_call_costs(op):
    """Microseconds of one more host call (and native op) in a program, less those of the op."""
    x = torch.zeros(8)
    programs = [executor_of(False, model=OnHost(n, op)) for n in (1, 1 + HOST_CALLS)]

    def alone():
        for _ in range(HOST_CALLS):
            op(x)

    steps = [*(lambda run=run: run(x) for run in programs), alone]
    figures = [float("inf")] * len(steps)
    with torch.no_grad():
        for _ in range(ROUNDS):
            for i, step in enumerate(steps):
                step()
                figures[i] = min(figures[i], timed(step, 5))
    one, many, eager = figures
    return (many - one - eager) / HOST_CALLS * MICRO


@figure("a host call beyond its op", "us", at_most=15)
def host_call(ctx):
    if OURS not in ctx.peers:
        return {}
    return {
        OURS: host_call_costs(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7))
    }


@figure("a poptorch.CPU op beyond its function", "us", at_most=15)
def cpu_op(ctx):
    if OURS not in ctx.peers:
        return {}
    import poptorch

    return {OURS: host_call_costs(poptorch.CPU(torch.clone, "clone"))}


def memory_of(replicas):
    """Bytes of states and of everything else, for an MLP."""
    torch.manual_seed(0)
    model = WithLoss(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)))
    executor = executor_of(True, 1, replicas, model.train(), SGD(model.parameters()))
    executor(torch.randn(64 * replicas, 512), torch.randint(0, 10, (64 * replicas,)))
    report = executor.getProgramSummary()
    work = report["arena_bytes"] + report["scratch_bytes"] + report["output_bytes"] * replicas
    return report["state_bytes"], work


@figure("memory of 8 replicas by (states + 8 x the rest)", "x", at_most=1.15)
def replica_memory(ctx):
    if OURS not in ctx.peers:
        return {}
    (states, work), eight = memory_of(1), memory_of(8)
    return {OURS: sum(eight) / (states + 8 * work)}


CASES = [
    call_inference,
    call_training,
    iteration_training,
    host_call,
    cpu_op,
    replica_memory,
]
