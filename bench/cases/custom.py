# SPDX-License-Identifier: Apache-2.0
"""What a custom op costs besides its function, and a composed one besides its native ops."""

import functools
import pathlib
import subprocess
import tempfile

import torch
from torch import nn

from bench.cases.calls import MICRO, best
from bench.harness import OURS, figure

OPS = 200

# The function: one element, by the first thread or by both with a barrier.
SOURCE = """
#include <tessera/custom_op.h>
using namespace tessera::custom;
struct Next {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compute(const Run& run) {
    const Range r = run.share(run.input<float>(0).size());
    for (int64_t i = r.begin; i < r.end; ++i)
      run.output<float>(0)[i] = run.input<float>(0)[i] + 1;
  }
};
struct NextAlone : Next {
  static constexpr unsigned flags = TESSERA_ONE_THREAD;
};
struct Swish {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compose(Compose& c) {
    Builder b(c);
    const Value x = b.input(0);
    b.output(x * sigmoid(x));
  }
};
// Pointwise ops on 64 floats for as long as a count is positive.
struct Countdown {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compose(Compose& c) {
    c.text(R"(tessera 1
graph "countdown" {
  input %0 "x" : f32[64]
  %1 = full(true) : bool[]
  %2 = full()" + std::to_string(c.attribute("turns", int64_t{1})) + R"() : i32[]
  %3, %4, %5 = while([%1, %0, %2], [%0]) {
    input %0 "go" : bool[]
    input %1 "x" : f32[64]
    input %2 "left" : i32[]
    input %3 "k" : f32[64]
    %4 = mul(%1, %3) : f32[64]
    %5 = add(%4, 1.0) : f32[64]
    %6 = tanh(%5) : f32[64]
    %7 = sub(%6, %3) : f32[64]
    %8 = sub(%2, 1) : i32[]
    %9 = gt(%8, 0) : bool[]
    output %9, %7, %8
  } : bool[], f32[64], i32[]
  output %4
}
)");
  }
};
TESSERA_REGISTER_OP(Countdown, "bench", "Countdown", 1);
TESSERA_REGISTER_OP(Next, "bench", "Next", 1);
TESSERA_REGISTER_OP(NextAlone, "bench", "NextAlone", 1);
TESSERA_REGISTER_OP(Swish, "bench", "Swish", 1);
"""


@functools.cache
def load():
    import poptorch

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "ops.cpp").write_text(SOURCE)
        flags = [*poptorch.custom_op_cflags(), "-O2", folder / "ops.cpp"]
        subprocess.run(
            ["g++", *flags, *poptorch.custom_op_ldflags(), "-o", folder / "ops.so"], check=True
        )
        poptorch.load_custom_op_library(folder / "ops.so")


class Repeat(nn.Module):
    """The same op again and again."""

    def __init__(self, count, op):
        super().__init__()
        self.count, self.op = count, op

    def forward(self, x):
        for _ in range(self.count):
            x = self.op(x)
        return x


def custom(name, **attributes):
    import poptorch

    return lambda x: poptorch.custom_op([x], name, "bench", 1, [x], attributes)[0]


def seconds(count, op, x, calls):
    import poptorch

    options = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.inferenceModel(Repeat(count, op), options)
    return best(lambda: executor(x), calls)


def per_op(name):
    load()
    x = torch.zeros(2)
    short, long = (seconds(n, custom(name), x, 20) for n in (1, 1 + OPS))
    return (long - short) / OPS * MICRO


@figure("a custom op of one thread beside its function", "us", at_most=1)
def custom_op_alone(ctx):
    return {OURS: per_op("NextAlone")} if OURS in ctx.peers else {}


@figure("a custom op of all threads beside its function", "us", at_most=1)
def custom_op_team(ctx):
    return {OURS: per_op("Next")} if OURS in ctx.peers else {}


@figure("a composed op by native ops, 1 MB", "x", at_most=1.05)
def custom_op_composed(ctx):
    if OURS not in ctx.peers:
        return {}
    load()
    x = torch.randn(512, 512)
    times = [seconds(1, op, x, 20) for op in (custom("Swish"), lambda x: x * torch.sigmoid(x))]
    return {OURS: times[0] / times[1]}


CASES = [custom_op_alone, custom_op_team, custom_op_composed]
