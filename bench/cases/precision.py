# SPDX-License-Identifier: Apache-2.0
"""Half precision: one encoder layer of BERT-base's shape in float16 against eager, and against our
own float32 in time and memory; matrix products, a residual block and single layers against our
float32. CPU time of one thread, because
ratios of one program to another are wanted and not the machine's load."""

import copy
import time

import poptorch
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


def executors(make=layer_and_batch, dtypes=(torch.float32, torch.float16)):
    made = []
    for dtype in dtypes:
        model, batch = make(dtype)
        executor = training_executor(model, sgd(model.parameters()))
        executor(*batch)
        made.append((executor, batch))
    return made


@figure("time of that layer in float16 over float32", "", at_most=1 / 0.9)
def encoder_half_time(ctx):
    return {OURS: cpu_ratio([lambda e=e, b=b: e(*b) for e, b in executors()])}


def memory_ratio(made):
    sizes = []
    for executor, _ in made:
        report = executor.getProgramSummary()
        keys = ("arena_bytes", "state_bytes", "scratch_bytes", "output_bytes")
        sizes.append(sum(report[k] for k in keys))
    return {OURS: sizes[1] / sizes[0]}


@figure("memory of that layer in float16 over float32", "", at_most=0.6)
def encoder_half_memory(ctx):
    return memory_ratio(executors())


class Block(nn.Module):
    """Two convolutions with batch norms around a shortcut, pooled."""

    def __init__(self, width=64):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, 10)

    def forward(self, x, labels):
        x = F.max_pool2d(x, 3, 2, 1)
        y = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(x + self.norm2(self.conv2(y)))
        return F.cross_entropy(self.fc(x.mean((2, 3))), labels)


def block_and_batch(dtype):
    torch.manual_seed(0)
    return Block().to(dtype), (torch.randn(16, 64, 56, 56).to(dtype), torch.randint(0, 10, (16,)))


@figure(
    "time of a residual block, train, 16 x 64 x 56 x 56, in float16 over float32",
    "",
    at_most=1 / 0.9,
)
def block_half_time(ctx):
    return {OURS: cpu_ratio([lambda e=e, b=b: e(*b) for e, b in executors(block_and_batch)])}


@figure("memory of that block in float16 over float32", "", at_most=0.6)
def block_half_memory(ctx):
    return memory_ratio(executors(block_and_batch))


class Layer(nn.Module):
    """A layer and the gradients of its input and weights."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.scale = layer, nn.Parameter(torch.ones(1))

    def forward(self, x):
        y = self.layer(x * self.scale)
        y = y[0] if isinstance(y, tuple) else y
        return poptorch.identity_loss(y.float().mean(), "sum")


IMAGES, SEQUENCE = (16, 64, 56, 56), (64, 32, 64)
LAYERS = {
    "Conv2d 3x3": (lambda: nn.Conv2d(64, 64, 3, padding=1), IMAGES),
    "Conv2d 1x1": (lambda: nn.Conv2d(64, 256, 1), IMAGES),
    "Conv2d thin": (lambda: nn.Conv2d(8, 16, 3, padding=1), (64, 8, 28, 28)),
    "Conv1d": (lambda: nn.Conv1d(128, 128, 3), (16, 128, 400)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(64, 32, 2, 2), (8, 64, 28, 28)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(64), IMAGES),
    "GroupNorm": (lambda: nn.GroupNorm(8, 64), IMAGES),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1), IMAGES),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), IMAGES),
    "LSTM": (lambda: nn.LSTM(64, 128), SEQUENCE),
    "GRU": (lambda: nn.GRU(64, 128), SEQUENCE),
}


def layer_time(name):
    make, shape = LAYERS[name]

    def model_and_batch(dtype):
        torch.manual_seed(0)
        return Layer(make()).to(dtype), (torch.randn(shape).to(dtype),)

    def measure(ctx):
        return {OURS: cpu_ratio([lambda e=e, b=b: e(*b) for e, b in executors(model_and_batch)])}

    measure.__name__ = "layer_half_" + name.lower().replace(" ", "_")
    title = f"time of {name}, train, in float16 over float32"
    return figure(title, "", at_most=1 / 0.85)(measure)


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


CASES = [
    encoder_half,
    encoder_half_time,
    encoder_half_memory,
    product_half,
    product_bfloat16,
    block_half_time,
    block_half_memory,
    *map(layer_time, LAYERS),
]
