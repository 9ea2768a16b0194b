# SPDX-License-Identifier: Apache-2.0
"""Peak memory of one ResNet-18 training step beyond weights, optimizer state and the batch.

Eager: the profiler reports every allocation and release of PyTorch's CPU allocator; the peak of
their running sum over one step is taken, after steps that have made the optimizer state and with
the gradients of the step before already freed. Ours: the arena of the compiled program, the scratch
memory of its kernels and the tensors that a call returns; all fixed when the program is made.
"""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from bench.cases.resnet import IMAGES, SGD
from bench.harness import EAGER, OURS, figure, training_executor
from bench.models import WithLoss, resnet18

MIB = 2**20


def eager_peak(model, data):
    optimizer = SGD(model.parameters())

    def step():
        model(*data)[1].backward()
        optimizer.step()

    for _ in range(2):
        step()
        optimizer.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    return peak_of(recorded)


def peak_of(recorded):
    """Largest running sum of the allocator's events."""
    events, todo = [], list(recorded.profiler.kineto_results.experimental_event_tree())
    while todo:
        event = todo.pop()
        todo.extend(event.children)
        if event.tag.name == "Allocation":
            events.append((event.start_time_ns, event.extra_fields.alloc_size))
    if not events:
        raise RuntimeError("the profiler recorded no allocations")
    running = peak = 0
    for _, size in sorted(events, key=lambda e: e[0]):
        running += size
        peak = max(peak, running)
    return peak


def our_peak(model, data):
    executor = training_executor(model, SGD(model.parameters()))
    executor(*data)
    report = executor.getProgramSummary()
    return report["arena_bytes"] + report["scratch_bytes"] + report["output_bytes"]


@figure("peak memory of a ResNet-18 training step", "MiB", eager=0.75)
def resnet18_memory(ctx):
    data = torch.randn(IMAGES), torch.randint(0, 1000, IMAGES[:1])
    measures = {OURS: our_peak, EAGER: eager_peak}
    return {
        peer: measures[peer](WithLoss(resnet18(), nn.CrossEntropyLoss()).train(), data) / MIB
        for peer in ctx.peers
        if peer in measures
    }


CASES = [resnet18_memory]
