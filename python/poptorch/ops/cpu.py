# SPDX-License-Identifier: Apache-2.0
"""``poptorch.CPU``: a function of the user's that a program calls on the host."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import is_grad_enabled

from poptorch.base.errors import createPoptorchError
from poptorch.base.logging import logger
from poptorch.capture import running_on_ipu, state, structure

#: The ops that stand for a call, and for its gradient, in a captured graph.
TARGET = "poptorch::cpu_call.default"
GRADIENT = "poptorch::cpu_gradient.default"

_lib = torch.library.Library("poptorch", "FRAGMENT")
_lib.define("cpu_call(Tensor[] inputs, int key) -> Tensor[]")
_lib.define("cpu_gradient(Tensor ticket, Tensor[] grads, int key) -> Tensor[]")


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
    call = call_of(key)
    made = [torch.empty(shape, dtype=dtype) for shape, dtype in call.results]
    return [*made, torch.empty((), dtype=torch.int32)] if call.wanted else made


@torch.library.register_fake("poptorch::cpu_gradient", lib=_lib)
def _(ticket: torch.Tensor, grads: list[torch.Tensor], key: int) -> list[torch.Tensor]:
    call = call_of(key)
    return [torch.empty(call.inputs[i][0], dtype=call.inputs[i][1]) for i in call.wanted]


def _call_now(inputs: list[torch.Tensor], key: int) -> list[torch.Tensor]:
    """For a value that is needed while the model is captured."""
    session = state.current()
    assert session is not None, "poptorch::cpu_call is for models that are captured"
    call = call_of(key)
    _, found = session.on_host(lambda: call.tensors(inputs))
    made = [t.detach().clone() for t in found]
    return [*made, torch.zeros((), dtype=torch.int32)] if call.wanted else made


_lib.impl("cpu_call", _call_now, "CPU")


class _Differentiated(torch.autograd.Function):
    """A call and, for its gradient, a second one; a ticket says which graph that one follows."""

    @staticmethod
    def forward(ctx: Any, key: int, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *made, ticket = torch.ops.poptorch.cpu_call(list(inputs), key)
        call = call_of(key)
        ctx.key, ctx.call = key, call
        ctx.save_for_backward(ticket)
        ctx.mark_non_differentiable(
            *(t for i, t in enumerate(made) if i not in call.differentiable)
        )
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call = ctx.call
        call.keeps_graphs = True
        given = [grads[i] for i in call.differentiable]
        made = torch.ops.poptorch.cpu_gradient(*ctx.saved_tensors, given, ctx.key)
        found = dict(zip(call.wanted, made, strict=True))
        return None, *(found.get(i) for i in range(len(call.inputs)))


class _Graph(NamedTuple):
    """What autograd knows of one run of a function: its inputs and its results."""

    inputs: list[torch.Tensor]
    results: list[torch.Tensor]


class _Call:
    """One call in a model: the function, the form of its arguments, the types of its results.

    Attributes:
        name: ID of the op.
        inputs: shapes and types of the tensors among the arguments.
        results: those of the results.
        wanted: numbers of the inputs that have a gradient.
        differentiable: numbers of the results that have one.
        keeps_graphs: whether the program asks for gradients.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, arguments: Any, inputs: list[torch.Tensor]
    ) -> None:
        self._function, self.name, self._arguments = function, name, arguments
        self.inputs = [(t.shape, t.dtype) for t in inputs]
        self.wanted = [i for i, t in enumerate(inputs) if t.requires_grad and is_grad_enabled()]
        self.results: list[tuple[torch.Size, torch.dtype]] = []
        self.differentiable: list[int] = []
        self.keeps_graphs = False
        self._tickets = itertools.count()
        self._graphs: dict[int, _Graph] = {}

    def tensors(self, inputs: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
        """What the function returns for these tensors, and the tensors of that."""
        args, kwargs = structure.rebuild(self._arguments, iter(inputs))
        value = self._function(*args, **kwargs)
        found = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, torch.Tensor) for item in found):
            raise createPoptorchError(
                f"The function of CPU op {self.name!r} must return a tensor, or a list or tuple "
                f"of tensors, not {type(value).__name__}"
            )
        return value, found

    def learn(self) -> Any:
        """What the function returns for zeros; keeps the types of its results."""
        leaves = [torch.zeros(shape, dtype=dtype) for shape, dtype in self.inputs]
        with torch.set_grad_enabled(bool(self.wanted)):
            value, found = self.tensors(self._tracked(leaves))
        self.results = [(t.shape, t.dtype) for t in found]
        self.differentiable = [i for i, t in enumerate(found) if t.requires_grad]
        if not self.differentiable:
            if self.wanted and any(t.is_floating_point() for t in found):
                logger.warning(
                    "CPU op %r: no gradient flows through its function, so what its inputs are "
                    "computed from is not trained by way of it.",
                    self.name,
                )
            self.wanted = []
        return value

    def _tracked(self, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of tensors, which the function may change and keep; autograd follows those whose
        gradient is wanted."""
        for i in self.wanted:
            leaves[i].requires_grad_()
        return [t.clone() for t in leaves]

    def run(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Call the function with tensors of the program, and write its results to others."""
        if not self.keeps_graphs:
            _, found = self.tensors([t.clone() for t in inputs])
        else:
            leaves = [t.detach() for t in inputs]
            with torch.enable_grad():
                _, found = self.tensors(self._tracked(leaves))
            ticket = next(self._tickets) & 0x7FFFFFFF
            kept = _Graph([leaves[i] for i in self.wanted], [found[i] for i in self.differentiable])
            self._graphs[ticket] = kept
            outputs[-1].fill_(ticket)
        if len(found) != len(self.results):
            raise createPoptorchError(
                f"CPU op {self.name!r} returned {len(found)} tensors instead of "
                f"{len(self.results)}, as many as it had when it was captured"
            )
        for target, value in zip(outputs, found, strict=False):  # a ticket may come last
            if target.shape != value.shape:
                raise createPoptorchError(
                    f"CPU op {self.name!r} returned a tensor of shape {list(value.shape)} "
                    f"instead of {list(target.shape)}, which it had when it was captured"
                )
            target.copy_(value)

    def run_gradient(
        self, ticket: torch.Tensor, grads: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        """Gradients of the inputs of the run that the ticket is of."""
        inputs, results = self._graphs.pop(int(ticket))
        followed = [i for i, t in enumerate(results) if t.requires_grad]
        found: Sequence[torch.Tensor | None] = [None] * len(inputs)
        if followed:
            found = torch.autograd.grad(
                [results[i] for i in followed],
                inputs,
                [grads[i].clone() for i in followed],
                allow_unused=True,
            )
        for target, value in zip(outputs, found, strict=True):
            if value is None:
                target.zero_()
            else:
                target.copy_(value)

    def forget(self) -> None:
        """Drop the graphs of a run that has ended before its gradients were asked for."""
        self._graphs.clear()


def call_of(key: int) -> _Call:
    """The call number ``key`` of the model that is being compiled."""
    return _compiling.calls[key]


class CPU:
    """``layer_to_call`` as a part of the program that runs on the host, once per micro-batch.

    It is called once with zeros while the model is captured, to learn the shapes of its results,
    which must not change. It gets copies of the program's tensors.

    In training PyTorch's autograd differentiates the function on the host: gradients are those of
    the torch ops in it, or of the ``backward`` of a ``torch.autograd.Function``. Through a function
    that autograd does not follow (numpy, integers) no gradient flows. Parameters of a module that
    is called this way are not trained.

    Args:
        layer_to_call: a function or module of tensors.
        ID: its name, one for each function.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        if not callable(layer_to_call):
            raise createPoptorchError(
                f"CPU op {ID!r}: {type(layer_to_call).__name__} is no function or module"
            )
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
        if session is None or not running_on_ipu():
            return self._layer_to_call(*input, **kwargs)
        known = session.cpu_ops.setdefault(self._ID, self._layer_to_call)
        if known != self._layer_to_call:
            raise createPoptorchError(
                f"CPU op {self._ID!r} is the name of two functions: give each one its own ID"
            )
        tensors = [leaf for _, leaf in structure.argument_leaves(input, kwargs)]
        call = _Call(self._layer_to_call, self._ID, (input, kwargs), tensors)
        value = session.on_host(call.learn)
        self.in_shapes = [shape for shape, _ in call.inputs]
        self.out_shapes = [shape for shape, _ in call.results]
        _compiling.calls.append(call)
        key = len(_compiling.calls) - 1
        if call.wanted:
            made = _Differentiated.apply(key, *tensors)
        else:
            made = torch.ops.poptorch.cpu_call([t.detach() for t in tensors], key)
        return structure.rebuild(value, iter(made))

    def execute(self) -> None:
        """Run the function on ``inputs`` and keep its results in ``outputs``."""
        call = _Call(self._layer_to_call, self._ID, (self.inputs, {}), [])
        _, found = call.tensors(self.inputs)
        for target, value in zip(self.outputs, found, strict=True):
            target.copy_(value)

    def registerPersistentData(self) -> None:
        """Make the tensors that the program exchanges with the function."""
        self.inputs = [torch.empty(shape) for shape in self.in_shapes]
        self.outputs = [torch.empty(shape) for shape in self.out_shapes]
