# SPDX-License-Identifier: Apache-2.0
"""Builds the ops of this folder as their Makefiles would, once for each content, and loads them."""

import concurrent.futures
import ctypes
import functools
import pathlib

import poptorch
import torch
from built_libraries import ROOT, SDK, WARNINGS, compiler, kept

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLE = ROOT / "examples/custom_op/popart"
LIBRARIES = ["popart", "poplar", "popops", "poputil", "poplin", "popnn", "poprand", "gcl"]
FLAGS = ["-fPIC", "-DONNX_NAMESPACE=onnx", *WARNINGS]


def compile_object(source: pathlib.Path, *flags: str) -> pathlib.Path:
    """The object file of a source, from the cache if nothing changed."""
    command = [*FLAGS, *flags]

    def make(made: pathlib.Path) -> None:
        compiler(["-c", source, *command, "-o", made], **SDK)

    return kept(f"{source.stem}-*.o", [source.read_bytes(), *command], make)


@functools.cache
def load() -> pathlib.Path:
    """The library of all ops of this folder, loaded as programs do. One file is C++17."""
    sources = [*sorted(HERE.glob("*.cpp")), EXAMPLE / "leaky_relu.cpp"]
    standard = {"programs.cpp": "-std=c++17"}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        objects = list(
            pool.map(
                lambda s: compile_object(s, standard.get(s.name, "-std=c++14"), "-O0"), sources
            )
        )
    options = ["-shared", "-Wl,--no-undefined", *[f"-l{name}" for name in LIBRARIES], "-o"]

    def make(made: pathlib.Path) -> None:
        compiler([*objects, *options, made], **SDK)

    target = kept("popart-*.so", [*(o.name for o in objects), *options], make)
    ctypes.cdll.LoadLibrary(str(target))
    return target


class Calls(torch.nn.Module):
    """A model that calls one op on its inputs."""

    def __init__(self, domain, name, outputs=None, version=1, **attributes):
        super().__init__()
        load()
        self.call = (name, domain, version)
        self.outputs = outputs
        self.attributes = attributes

    def forward(self, *inputs):
        examples = self.outputs or [inputs[0]]
        found = poptorch.custom_op(
            list(inputs), *self.call, example_outputs=examples, attributes=self.attributes
        )
        return found[0] if len(found) == 1 else tuple(found)


def infer(domain, name, *inputs, outputs=None, version=1, **attributes):
    """What the op gives in an inference model."""
    model = Calls(domain, name, outputs, version, **attributes)
    return poptorch.inferenceModel(model)(*inputs)


class Learns(torch.nn.Module):
    """The inputs are parameters; the loss is the sum of the first output times weights."""

    def __init__(self, call, inputs, weights):
        super().__init__()
        self.call = call
        self.inputs = torch.nn.ParameterList([torch.nn.Parameter(x.clone()) for x in inputs])
        self.register_buffer("weights", weights)

    def forward(self):
        out = self.call(*self.inputs)
        out = out[0] if isinstance(out, tuple) else out
        return out, poptorch.identity_loss((out * self.weights).sum(), "sum")


def gradients(domain, name, inputs, weights, outputs=None, options=None, **attributes):
    """(the first output, the gradients of the inputs) of a step of training."""
    model = Learns(Calls(domain, name, outputs, **attributes), inputs, weights)
    step = poptorch.optim.SGD(model.parameters(), lr=1.0, use_combined_accum=False)
    trained = poptorch.trainingModel(model, options, step)
    out, _ = trained()
    trained.copyWeightsToHost()
    grads = [x - p.detach() for x, p in zip(inputs, model.inputs, strict=True)]
    trained.destroy()
    return out, grads
