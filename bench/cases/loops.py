# SPDX-License-Identifier: Apache-2.0
"""What a turn of a loop costs besides its work, and that more turns take no longer to compile."""

import time

import torch
from torch import nn

from bench.cases import custom
from bench.harness import EAGER, OURS, figure, timed

TURNS, ROUNDS = 10_000, 20
MICRO = 1e6


class Turns(nn.Module):
    """Four pointwise ops on 64 floats, so many times."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, x, k):
        import poptorch

        def body(x):
            return torch.tanh(x * k + 1.0) - k

        if poptorch.isRunningOnIpu():
            return poptorch.for_loop(self.count, body, [x])[0]
        for _ in range(self.count):
            x = body(x)
        return x


def loop_of(count):
    import poptorch

    options = poptorch.Options().showCompilationProgressBar(False)
    return poptorch.inferenceModel(Turns(count), options)


def inputs():
    return torch.rand(64), torch.rand(64)


@figure("turn of a for_loop, 4 pointwise ops on 64 floats", "us", at_most=2)
def loop_turn(ctx):
    args = inputs()
    steps = {EAGER: lambda: Turns(TURNS)(*args)}
    if OURS in ctx.peers:
        model = loop_of(TURNS)
        model(*args)
        steps[OURS] = lambda: model(*args)
    best = {
        peer: min(timed(steps[peer], 1) for _ in range(ROUNDS))
        for peer in ctx.peers
        if peer in steps
    }
    return {peer: seconds / TURNS * MICRO for peer, seconds in best.items()}


@figure("turn of a while, 4 pointwise ops on 64 floats", "us", at_most=2)
def open_loop_turn(ctx):
    if OURS not in ctx.peers:
        return {}
    custom.load()
    whole = custom.seconds(1, custom.custom("Countdown", turns=TURNS), torch.rand(64), ROUNDS)
    return {OURS: whole / TURNS * MICRO}


@figure("compilation of 10,000 turns by that of 10", "x", at_most=1.5)
def loop_compile(ctx):
    if OURS not in ctx.peers:
        return {}
    seconds = {}
    for count in (10, TURNS):
        samples = []
        for _ in range(5):
            model, start = loop_of(count), time.perf_counter()
            model.compile(*inputs())
            samples.append(time.perf_counter() - start)
        seconds[count] = min(samples)
    return {OURS: seconds[TURNS] / seconds[10]}


CASES = [loop_turn, open_loop_turn, loop_compile]
