# SPDX-License-Identifier: Apache-2.0
"""Measures a piece of work on several peers at once.

All variants of a case live in one process with the same number of threads. A round takes one
sample of each, in turn, so that a slow spell of the machine hits all alike; the figure of a variant
is its best sample, and a result is a ratio of two such figures. A sample is a loop of calls long
enough for the clock; where one call is shorter than that, a call that is not timed comes first,
because the peer that ran before has left the caches and the threads in its own state.
"""

import copy
import dataclasses
import statistics
import time
from collections.abc import Callable

import torch

OURS = "tessera"
EAGER = "eager"
FUSED = "eager, fused AdamW"
COMPILED = "torch.compile"

SAMPLE_SECONDS = 0.03


@dataclasses.dataclass
class Case:
    """One row of the table: `build(ctx)` gives a callable per variant that does one step."""

    title: str
    targets: dict[str, float]
    build: Callable
    same_result: bool  # without random numbers all variants must return the same

    @property
    def name(self):
        return self.build.__name__


@dataclasses.dataclass
class Figure:
    """One row whose numbers are not times of a repeated step: first call, memory."""

    title: str
    targets: dict[str, float]  # largest allowed ratio to a peer; OURS: largest allowed value
    unit: str
    measure: Callable

    @property
    def name(self):
        return self.measure.__name__


def case(title, *, eager=None, fused=None, compiled=None, same_result=True):
    """Marks a builder; the numbers are the least ratios of speed we hold ourselves to."""
    wanted = {EAGER: eager, FUSED: fused, COMPILED: compiled}
    targets = {peer: ratio for peer, ratio in wanted.items() if ratio is not None}
    return lambda build: Case(title, targets, build, same_result)


def figure(title, unit, *, at_most=None, eager=None, compiled=None):
    """Marks a measurement; the numbers are upper bounds: of our value, and of ratios to peers."""
    wanted = {OURS: at_most, EAGER: eager, COMPILED: compiled}
    targets = {peer: bound for peer, bound in wanted.items() if bound is not None}
    return lambda measure: Figure(title, targets, unit, measure)


def training_executor(model, optimizer):
    """Our side through the public API."""
    import poptorch

    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    return poptorch.trainingModel(model, options=options, optimizer=optimizer)


def inference_executor(model):
    import poptorch

    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    return poptorch.inferenceModel(model, options=options)


def torch_training_step(model, optimizer, batch):
    """One step as a PyTorch user writes it."""

    def step():
        optimizer.zero_grad(set_to_none=True)
        output, loss = model(*batch)
        loss.backward()
        optimizer.step()
        return output, loss

    return step


class Context:
    """Builds the variants of a case for the chosen peers and thread count."""

    def __init__(self, peers, threads):
        self.peers = peers
        self.threads = threads

    def training(self, model, optimizer, batch, fused=None):
        """`optimizer(parameters)` makes the optimizer; `fused` the one of the fused peer."""
        steps = {}
        for peer in self.peers:
            if peer == FUSED and fused is None:
                continue
            own = copy.deepcopy(model).train()
            opt = (fused if peer == FUSED else optimizer)(own.parameters())
            if peer == OURS:
                executor = training_executor(own, opt)
                steps[peer] = lambda executor=executor: executor(*batch)
            else:
                run = compiled(own) if peer == COMPILED else own
                steps[peer] = torch_training_step(run, opt, batch)
        return steps

    def inference(self, model, inputs):
        steps = {}
        for peer in self.peers:
            if peer == FUSED:
                continue
            own = copy.deepcopy(model).eval()
            if peer == OURS:
                executor = inference_executor(own)
                steps[peer] = lambda executor=executor: executor(*inputs)
            else:
                run = compiled(own) if peer == COMPILED else own
                steps[peer] = torch.inference_mode()(lambda run=run: run(*inputs))
        return steps


def compiled(model):
    """torch.compile as most people call it: no options, the optimizer stays outside."""
    return torch.compile(model)


def first_tensor(result):
    """What is compared between variants: the loss of a training step, or the output."""
    return (result[-1] if isinstance(result, tuple | list) else result).detach().clone().float()


def measure_steps(steps, rounds, check_same):
    """Seconds per call of each variant: {name: [one sample per round]}."""
    calls, results = {}, {}
    for name, step in steps.items():
        results[name] = first_tensor(step())  # compiles
        step()
        seconds = min(timed(step, 1) for _ in range(2))
        calls[name] = max(1, round(SAMPLE_SECONDS / seconds))
        if check_same:
            first = next(iter(results.values()))
            torch.testing.assert_close(results[name], first, rtol=1e-3, atol=1e-3)
    samples = {name: [] for name in steps}
    names = list(steps)
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            if calls[name] > 1:
                steps[name]()
            samples[name].append(timed(steps[name], calls[name]))
    return samples


def timed(step, calls):
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def summary(samples):
    """Best, median and count of one variant's samples, in seconds."""
    return {"best": min(samples), "median": statistics.median(samples), "samples": samples}
