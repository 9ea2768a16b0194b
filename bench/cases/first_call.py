# SPDX-License-Identifier: Apache-2.0
"""Time from calling a model for the first time to its result: capture, compilation, one step."""

import os
import subprocess
import sys
import tempfile

from bench.harness import COMPILED, EAGER, OURS, figure

REPEATS = {OURS: 3, EAGER: 3, COMPILED: 1}


def seconds(peer, state, threads):
    """Time of one new process; torch.compile gets an empty cache, or it would not be the first."""
    with tempfile.TemporaryDirectory() as cache:
        env = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        }
        command = [sys.executable, "-m", "bench.first_call", peer, state]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return float(done.stdout.split()[-1])


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


CASES = [first_call_warm, first_call_new]
