# SPDX-License-Identifier: Apache-2.0
"""What a row of the kernel table is, and how it is measured.

A row is a function on tensors. Ours is one run of the program that the function compiles to, on
addresses that are ready (half a microsecond of Python per run, less than a call of an eager op);
eager is one call of the function in inference mode. A row with backward runs the function and the
gradients of all its floating-point inputs and weights, and returns all of them, on both sides.

Both sides find their inputs in cache if they fit. glibc is told to keep freed memory, so that eager
does not pay for new pages at every call: our program does not either. With one thread the clock is
the processor time of that thread, which other work on the machine hardly changes; with several it
is wall time, in samples short enough that some of them are left alone.
"""

import copy
import ctypes
import dataclasses
import json
import time
from collections.abc import Callable

import torch
from torch import nn

from bench.harness import inference_executor

TARGET = 0.9
SAMPLE_SECONDS = 0.001
TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclasses.dataclass
class Row:
    family: str
    name: str
    fn: Callable  # a module's parameters are weights of the program
    inputs: Callable  # makes the tensors
    target: float = TARGET
    backward: bool = False
    random: bool = False  # results may differ, by nature

    @property
    def title(self):
        return f"{self.family}/{self.name}"


class Forward(nn.Module):
    """The function of a row as a module; only modules can be compiled."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *inputs):
        return as_tuple(self.fn(*inputs))


class WithGradients(Forward):
    """The function and the gradients of what it reads; the last arguments are those of its
    results."""

    def forward(self, *args):
        with torch.enable_grad():
            count = self.fn.results
            args, seeds = args[:-count], args[-count:]
            args = [a.detach().requires_grad_() if a.is_floating_point() else a for a in args]
            results = [r for r in as_tuple(self.fn(*args)) if r.requires_grad]
            leaves = [a for a in (*args, *self.parameters()) if a.requires_grad]
            gradients = torch.autograd.grad(results, leaves, seeds, allow_unused=True)
        return *(r.detach() for r in results), *(g for g in gradients if g is not None)


class Counted(nn.Module):
    """A function that remembers how many of its results have gradients."""

    def __init__(self, fn, inputs):
        super().__init__()
        self.fn = fn
        with torch.enable_grad():
            leaves = [i.detach().requires_grad_() if i.is_floating_point() else i for i in inputs]
            results = [r for r in as_tuple(fn(*leaves)) if r.requires_grad]
        self.results = len(results)
        self.seeds = [torch.randn(r.shape).to(r.dtype) for r in results]

    def forward(self, *inputs):
        return self.fn(*inputs)


def as_tuple(result):
    """The tensors of a result, out of nested tuples."""
    if isinstance(result, torch.Tensor):
        return (result,)
    return tuple(t for item in result for t in as_tuple(item))


@dataclasses.dataclass
class Result:
    ours: float  # seconds
    eager: float
    host_calls: list
    shape: str
    dtype: str

    @property
    def ratio(self):
        return self.eager / self.ours


def keep_freed_memory():
    m_trim_threshold, m_mmap_max = -1, -4
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)


def measure(row, rounds):
    """Best times of both sides, one sample of each in turn."""
    torch.manual_seed(0)
    inputs = [t.contiguous() for t in row.inputs()]
    shape = " ".join("x".join(map(str, t.shape)) for t in inputs[:3])
    dtype = str(inputs[0].dtype).removeprefix("torch.")
    if row.backward:
        fn = Counted(row.fn, inputs)
        inputs += fn.seeds
        model = WithGradients(fn)
    else:
        model = Forward(row.fn)
    theirs = copy.deepcopy(model)
    executor = inference_executor(model)
    results = as_tuple(executor(*inputs))
    program = executor._executable.program
    outputs = [torch.empty(spec[0], dtype=spec[2]) for spec in executor._executable._outputs]
    starts, ends = [t.data_ptr() for t in inputs], [t.data_ptr() for t in outputs]

    @torch.inference_mode(not row.backward)
    def eager():
        return theirs(*inputs)

    if not row.random:
        compare(results, as_tuple(eager()))
    best = interleaved([lambda: program.run(starts, ends), eager], rounds)
    return Result(*best, json.loads(program.summary())["host_calls"], shape, dtype)


def compare(ours, theirs):
    """A wrong kernel is not a fast one. Loose: the tests are the judge."""
    for a, b in zip(ours, theirs, strict=True):
        rtol = TOLERANCE.get(b.dtype, 1e-3)
        scale = float(b.nan_to_num(0, 0, 0).abs().max()) if b.is_floating_point() else 0
        torch.testing.assert_close(a, b.to(a.dtype), rtol=rtol, atol=rtol * scale, equal_nan=True)


def interleaved(steps, rounds):
    calls = []
    for step in steps:
        step()
        calls.append(max(1, round(SAMPLE_SECONDS / min(timed(step, 1) for _ in range(3)))))
    best = [float("inf")] * len(steps)
    for _ in range(rounds):
        for i, step in enumerate(steps):
            step()
            best[i] = min(best[i], timed(step, calls[i]))
    return best


def timed(step, calls):
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(calls):
        step()
    return (clock() - start) / calls
