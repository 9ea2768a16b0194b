# SPDX-License-Identifier: Apache-2.0
"""Builds the ops of this folder as their Makefiles would, once for each content, and loads them."""

import concurrent.futures
import ctypes
import functools
import hashlib
import os
import pathlib
import subprocess
import tempfile

import poptorch
import torch

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLE = ROOT / "examples/custom_op/popart"
CACHE = ROOT / "build/custom_ops"
LIBRARIES = ["popart", "poplar", "popops", "poputil", "poplin", "popnn", "poprand", "gcl"]
#: The environment that an SDK's enable script would make: build lines have no -I and no -L.
ENVIRONMENT = {
    **os.environ,
    "CPATH": f"{ROOT / 'include'}:{ROOT / 'include/tessera/compat'}",
    "LIBRARY_PATH": str(pathlib.Path(poptorch.__file__).parent / "lib"),
}
FLAGS = ["-fPIC", "-DONNX_NAMESPACE=onnx", "-Wall", "-Wextra", "-Werror"]


@functools.cache
def _headers() -> bytes:
    h = hashlib.sha256()
    for file in sorted((ROOT / "include").rglob("*.h*")):
        h.update(file.read_bytes())
    return h.digest()


def compile_object(source: pathlib.Path, *flags: str) -> pathlib.Path:
    """The object file of a source, from the cache if nothing changed."""
    text = " ".join(flags).encode() + source.read_bytes() + _headers()
    found = CACHE / f"{source.stem}-{hashlib.sha256(text).hexdigest()[:20]}.o"
    if not found.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            made = pathlib.Path(folder) / "x.o"
            run(["-c", str(source), *FLAGS, *flags, "-o", str(made)])
            made.replace(found)
    return found


def run(arguments: list[str]) -> None:
    """The compiler, in the environment of an SDK."""
    command = [os.environ.get("CXX", "g++"), *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def link(objects: list[pathlib.Path], target: pathlib.Path) -> None:
    run(
        [
            *map(str, objects),
            "-shared",
            "-Wl,--no-undefined",
            *[f"-l{name}" for name in LIBRARIES],
            "-o",
            str(target),
        ]
    )


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
    key = hashlib.sha256(" ".join(o.name for o in objects).encode()).hexdigest()[:20]
    target = CACHE / f"popart-{key}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            made = pathlib.Path(folder) / "x.so"
            link(objects, made)
            made.replace(target)
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


def gradients(domain, name, inputs, weights, outputs=None, **attributes):
    """(the first output, the gradients of the inputs) of a step of training."""
    model = Learns(Calls(domain, name, outputs, **attributes), inputs, weights)
    step = poptorch.optim.SGD(model.parameters(), lr=1.0, use_combined_accum=False)
    trained = poptorch.trainingModel(model, optimizer=step)
    out, _ = trained()
    trained.copyWeightsToHost()
    grads = [x - p.detach() for x, p in zip(inputs, model.inputs, strict=True)]
    trained.destroy()
    return out, grads
