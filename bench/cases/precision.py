# SPDX-License-Identifier: Apache-2.0
"""Half precision: one encoder layer of BERT-base's shape in float16 against eager, and against our
own float32 in time and memory; matrix products against our float32. CPU time of one thread, because
ratios of one program to another are wanted and not the machine's load."""

import copy
import json
import time

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bench.harness import OURS, case, figure, inference_executor, training_executor

ROUNDS = 8


class EncoderLayer(nn.Module):
    """Attention and feed-forward with layer norms behind them, and a loss over all elements."""

    def __init__(self, width=768, heads=12, inner=3072):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.heads = heads

    def forward(self, x, target):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(y))
        x = self.norm2(x + self.down(F.gelu(self.up(x))))
        return x, F.mse_loss(x, target)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-3)


def layer_and_batch(dtype):
    torch.manual_seed(0)
    return EncoderLayer().to(dtype), (
        torch.randn(8, 128, 768).to(dtype),
        torch.randn(8, 128, 768).to(dtype),
    )


@case("BERT-base encoder layer, float16, train, 8 x 128", eager=20, same_result=False)
def encoder_half(ctx):
    model, batch = layer_and_batch(torch.float16)
    return ctx.training(model, sgd, batch)


def cpu_ratio(steps):
    """Best CPU time of the second step over that of the first, taken in turn."""
    best = [float("inf")] * 2
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(ROUNDS):
            for i, step in enumerate(steps):
                start = time.process_time()
                step()
                best[i] = min(best[i], time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return best[1] / best[0]


def executors():
    made = []
    for dtype in (torch.float32, torch.float16):
        model, batch = layer_and_batch(dtype)
        executor = training_executor(model, sgd(model.parameters()))
        executor(*batch)
        made.append((executor, batch))
    return made


@figure("time of that layer in float16 over float32", "", at_most=1 / 0.9)
def encoder_half_time(ctx):
    return {OURS: cpu_ratio([lambda e=e, b=b: e(*b) for e, b in executors()])}


@figure("memory of that layer in float16 over float32", "", at_most=0.6)
def encoder_half_memory(ctx):
    sizes = []
    for executor, _ in executors():
        report = json.loads(executor._executable.program.summary())
        keys = ("arena_bytes", "state_bytes", "scratch_bytes", "output_bytes")
        sizes.append(sum(report[k] for k in keys))
    return {OURS: sizes[1] / sizes[0]}


class Products(nn.Module):
    """So many products that moving operands in and out does not count."""

    def forward(self, x, y):
        for _ in range(8):
            y = x @ y
        return y


def product_ratio(dtype):
    torch.manual_seed(0)
    x, y = torch.randn(1024, 1024) / 32, torch.randn(1024, 1024)
    steps = []
    for kind in (torch.float32, dtype):
        args = x.to(kind), y.to(kind)
        executor = inference_executor(copy.deepcopy(Products()))
        executor(*args)
        steps.append(lambda e=executor, a=args: e(*a))
    return cpu_ratio(steps)


@figure("time of 1024^3 products in float16 over float32", "", at_most=1 / 0.85)
def product_half(ctx):
    return {OURS: product_ratio(torch.float16)}


@figure("time of 1024^3 products in bfloat16 over float32", "", at_most=1 / 1.6)
def product_bfloat16(ctx):
    return {OURS: product_ratio(torch.bfloat16)}


CASES = [encoder_half, encoder_half_time, encoder_half_memory, product_half, product_bfloat16]
