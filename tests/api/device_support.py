# SPDX-License-Identifier: Apache-2.0
"""A partition of 4 IPUs, models that use it, and another process that does."""

import subprocess
import sys

import poptorch
import pytest
import torch
from poptorch import _core

# A process that takes a device as it is told to, line by line.
OTHER = """
import sys
from poptorch import _core
held = []
print("ready", flush=True)
for line in sys.stdin:
    word, count = line.split()
    if word == "take":
        wanted = [d for d in _core.devices(_core.number_of_ipus()) if d[2] == int(count)]
        lease = _core.acquire(_core.runtime_directory(), wanted)
        held.append(lease)
        print(None if lease is None else lease.first, flush=True)
"""


@pytest.fixture
def four_ipus(monkeypatch):
    monkeypatch.setenv("TESSERA_IPUS", "4")


def used():
    """IPU -> process."""
    return {ipu: pid for ipu, pid, *_ in _core.holders(_core.runtime_directory())}


class Other:
    """Another process, which takes devices."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "ready\n"

    def take(self, count):
        self.process.stdin.write(f"take {count}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def other_process():
    made = Other()
    yield made
    made.kill()


def infer(opts, **settings):
    opts = opts.clone()
    for name, value in settings.items():
        getattr(opts, name)(value)
    return poptorch.inferenceModel(torch.nn.Linear(3, 2), opts)


X = torch.ones(4, 3)
