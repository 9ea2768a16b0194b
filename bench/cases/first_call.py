# SPDX-License-Identifier: Apache-2.0
"""Time from calling a model for the first time to its result: capture, compilation, one step; and
what files save of it."""

import os
import subprocess
import sys
import tempfile

from bench.harness import COMPILED, EAGER, OURS, figure

REPEATS = {OURS: 3, EAGER: 3, COMPILED: 1}


def run(module, *arguments, threads, **environment):
    """What a new process prints."""
    env = os.environ | {"OMP_NUM_THREADS": str(threads)} | environment
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def seconds(peer, state, threads):
    """Time of one new process; torch.compile gets an empty cache, or it would not be the first."""
    with tempfile.TemporaryDirectory() as cache:
        printed = run(
            "bench.first_call",
            peer,
            state,
            threads=threads,
            TORCHINDUCTOR_CACHE_DIR=cache,
            TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
        )
        return float(printed.split()[-1])


def first_call(ctx, state):
    return {
        peer: min(seconds(peer, state, ctx.threads) for _ in range(REPEATS[peer]))
        for peer in ctx.peers
        if peer in REPEATS
    }


@figure("first call, tutorial CNN, warm process", "s", at_most=0.5, compiled=0.1)
def first_call_warm(ctx):
    return first_call(ctx, "warm")


@figure("first call, tutorial CNN, new process", "s", at_most=3, compiled=0.25)
def first_call_new(ctx):
    return first_call(ctx, "new")


@figure("first call, program in the cache, against none", "x", at_most=0.7)
def program_hit(ctx):
    def best(**environment):
        command = ("bench.first_call", OURS, "warm")
        return min(
            float(run(*command, threads=ctx.threads, **environment).split()[-1]) for _ in "123"
        )

    with tempfile.TemporaryDirectory() as cache:
        run("bench.first_call", OURS, "warm", threads=ctx.threads, POPTORCH_CACHE_DIR=cache)
        return {OURS: best(POPTORCH_CACHE_DIR=cache) / best()}


@figure("poptorch.load to the first result, CNN", "s", at_most=0.1)
def load_file(ctx):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.poptorch")
        run("bench.load_file", "save", path, threads=ctx.threads)
        command = ("bench.load_file", "load", path)
        return {OURS: min(float(run(*command, threads=ctx.threads).split()[-1]) for _ in "123")}


CASES = [first_call_warm, first_call_new, program_hit, load_file]
