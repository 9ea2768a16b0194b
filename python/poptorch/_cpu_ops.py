# SPDX-License-Identifier: Apache-2.0
"""``poptorch.CPU``: a function of the user's that a program calls on the host."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from poptorch._errors import createPoptorchError
from poptorch.capture import running_on_ipu, state, structure

#: The op that stands for a call in a captured graph.
TARGET = "poptorch::cpu_call.default"

_lib = torch.library.Library("poptorch", "FRAGMENT")
_lib.define("cpu_call(Tensor[] inputs, int key) -> Tensor[]")


class _Compiling(threading.local):
    """Calls of the model that this thread is compiling, until its program takes them over."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []


_compiling = _Compiling()


@contextmanager
def collecting() -> Iterator[None]:
    """A model is compiled in here."""
    _compiling.calls = []
    try:
        yield
    finally:
        _compiling.calls = []


@torch.library.register_fake("poptorch::cpu_call", lib=_lib)
def _(inputs: list[torch.Tensor], key: int) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype) for shape, dtype in call_of(key).results]


def _call_now(inputs: list[torch.Tensor], key: int) -> list[torch.Tensor]:
    """For a value that is needed while the model is captured."""
    _, found = state.current().on_host(lambda: call_of(key).tensors(inputs))
    return [t.clone() for t in found]


_lib.impl("cpu_call", _call_now, "CPU")


class _Call:
    """One call in a model: the function, the form of its arguments, the types of its results."""

    def __init__(self, function: Callable[..., Any], name: str, arguments: Any) -> None:
        self._function, self._name, self._arguments = function, name, arguments
        self.results: list[tuple[torch.Size, torch.dtype]] = []

    def tensors(self, inputs: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
        """What the function returns for these tensors, and the tensors of that."""
        args, kwargs = structure.rebuild(self._arguments, iter(inputs))
        value = self._function(*args, **kwargs)
        found = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, torch.Tensor) for item in found):
            raise createPoptorchError(
                f"The function of CPU op {self._name!r} must return a tensor, or a list or tuple "
                f"of tensors, not {type(value).__name__}"
            )
        return value, found

    def run(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Call the function with tensors of the program, and write its results to others."""
        with torch.no_grad():
            _, found = self.tensors(inputs)
            for target, value in zip(outputs, found, strict=True):
                if target.shape != value.shape:
                    raise createPoptorchError(
                        f"CPU op {self._name!r} returned a tensor of shape {list(value.shape)} "
                        f"instead of {list(target.shape)}, which it had when it was captured"
                    )
                target.copy_(value)


def call_of(key: int) -> _Call:
    """The call number ``key`` of the model that is being compiled."""
    return _compiling.calls[key]


class CPU:
    """``layer_to_call`` as a part of the program that runs on the host, once per micro-batch.

    It is called once with zeros while the model is captured, to learn the shapes of its results,
    which must not change. Models for inference only.

    Args:
        layer_to_call: a function or module of tensors.
        ID: its name, one for each function.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        self._layer_to_call = layer_to_call
        self._ID = ID
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        self.in_shapes: list[torch.Size] = []
        self.out_shapes: list[torch.Size] = []
        if isinstance(layer_to_call, torch.nn.Module):
            for parameter in layer_to_call.parameters():
                parameter.requires_grad = False

    def __call__(self, *input: Any, **kwargs: Any) -> Any:
        """Call the function; in a captured model it becomes a part of the program."""
        session = state.current()
        if session is not None and session.hosting:
            raise createPoptorchError(
                f"CPU ops must not overlap: {self._ID!r} is called by another"
            )
        if not running_on_ipu():
            return self._layer_to_call(*input, **kwargs)
        if session.training:
            raise createPoptorchError(
                f"CPU op {self._ID!r}: programs call functions of the user's in inference only, "
                "because they have no gradient"
            )
        known = session.cpu_ops.setdefault(self._ID, self._layer_to_call)
        if known != self._layer_to_call:
            raise createPoptorchError(
                f"CPU op {self._ID!r} is the name of two functions: give each one its own ID"
            )
        call = _Call(self._layer_to_call, self._ID, (input, kwargs))
        tensors = [leaf for _, leaf in structure.argument_leaves(input, kwargs)]
        value = session.on_host(lambda: self._try(call, tensors))
        _compiling.calls.append(call)
        made = torch.ops.poptorch.cpu_call(tensors, len(_compiling.calls) - 1)
        return structure.rebuild(value, iter(made))

    def _try(self, call: _Call, tensors: list[torch.Tensor]) -> Any:
        zeros = [torch.zeros(t.shape, dtype=t.dtype) for t in tensors]
        with torch.no_grad():
            value, found = call.tensors(zeros)
        call.results = [(t.shape, t.dtype) for t in found]
        self.in_shapes = [t.shape for t in zeros]
        self.out_shapes = [t.shape for t in found]
        return value

    def execute(self) -> None:
        """Run the function on ``inputs`` and keep its results in ``outputs``."""
        call = _Call(self._layer_to_call, self._ID, (self.inputs, {}))
        _, found = call.tensors(self.inputs)
        for target, value in zip(self.outputs, found, strict=True):
            target.copy_(value)

    def registerPersistentData(self) -> None:
        """Make the tensors that the program exchanges with the function."""
        self.inputs = [torch.empty(shape) for shape in self.in_shapes]
        self.outputs = [torch.empty(shape) for shape in self.out_shapes]
