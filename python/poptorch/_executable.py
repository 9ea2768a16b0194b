# SPDX-License-Identifier: Apache-2.0
"""A compiled model: the core's program, and everything a call needs, worked out in advance so that
the path of a call is short."""

from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any

import torch

from poptorch import _core
from poptorch._args import Bound, Signature, Template
from poptorch._batching import Batching
from poptorch._errors import Error, createPoptorchError, raise_core_error
from poptorch._weights import DTYPES
from poptorch.capture.errors import make_error
from poptorch.enums import OutputMode

_NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32}
# With tuples it takes half the time of torch.empty.
_empty = torch.empty_strided
_Tensor = torch.Tensor
_CPU = torch.device("cpu")


def backward_error(*args: Any, **kwargs: Any) -> None:
    """What ``backward()`` of a result does, whatever it is given."""
    raise createPoptorchError(
        "backward() cannot be called explicitly on outputs of a PopTorch model: the backward pass "
        "and the weight update are part of the call."
    )


class Executable:
    """A program that is ready to run.

    Args:
        program: the core's program.
        capture: what was captured.
        batching: how many micro-batches a call holds.
        rules: which outputs of a call's micro-batches are returned; outputs behind those of the
            capture are anchors.
        template: the arguments it was compiled for.
        bound: the call that it was compiled with.
    """

    def __init__(
        self,
        program: Any,
        capture: Any,
        batching: Batching,
        rules: list[tuple[OutputMode, int]],
        template: Template,
        bound: Bound,
    ) -> None:
        self.program = program
        self.template = template
        self._batching = batching
        self._run = program.run
        self._lock = Lock()
        self._owner = 0
        tensors = bound.tensors()
        self._expected = [(t.dtype, t.shape) for t in tensors]
        # Calls whose arguments are plain tensors in a known form skip binding and comparing:
        # (number of positional arguments, names of the others) -> positions in `tensors`.
        self.forms: dict[tuple[Any, ...], tuple[int, ...]] = {}
        if len(program.inputs) != len(tensors):
            raise createPoptorchError(
                f"internal error: the program has {len(program.inputs)} inputs, the call has "
                f"{len(tensors)}"
            )
        #: The anchors of the last call.
        self.anchored: list[torch.Tensor] = []
        self._outputs = self._output_specs(program, rules)
        self._finish = self._make_finish(capture)

    # Calling -------------------------------------------------------------------------------------

    def match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The tensors of a call in the order of capture, if it has a known form; else None."""
        order = self.forms.get((len(args), *kwargs))
        if order is None:
            return None
        values = args if not kwargs else (*args, *kwargs.values())
        if order is not _IN_ORDER:
            values = [values[i] for i in order]
        for value, (dtype, shape) in zip(values, self._expected):  # noqa: B905
            if (
                type(value) is not _Tensor
                or value.dtype is not dtype
                or value.shape != shape
                or not value.is_contiguous()
                or not value.is_cpu
                or value.requires_grad
            ):
                return None
        return values

    def learn(self, args: tuple[Any, ...], kwargs: dict[str, Any], signature: Signature) -> None:
        """Remember the form of a call that was found to be right."""
        if not all(type(value) is _Tensor for value in (*args, *kwargs.values())):
            return
        # Marks instead of the values, because a caller may pass one tensor twice.
        marks = [_Tensor() for _ in range(len(args) + len(kwargs))]
        named = dict(zip(kwargs, marks[len(args) :], strict=True))
        leaves = signature.bind(tuple(marks[: len(args)]), named).tensors()
        position = {id(mark): i for i, mark in enumerate(marks)}
        order = tuple(position.get(id(leaf), -1) for leaf in leaves)
        if -1 in order:
            return  # there are tensors among the defaults
        straight = order == tuple(range(len(marks)))
        self.forms[(len(args), *kwargs)] = _IN_ORDER if straight else order

    def call(self, tensors: Any, given: Any) -> Any:
        """Run the program on prepared tensors; what it changes in place goes to ``given``."""
        try:
            outputs = [
                _empty(shape, order, dtype=dtype, device=_CPU)
                for shape, order, dtype in self._outputs
            ]
        except RuntimeError as exc:
            raise Error(f"[memory] no memory for the outputs: {exc}", type="memory") from None
        if not self._lock.acquire(False):
            self._wait_for_other_thread()
        try:
            self._owner = get_ident()
            self._run([t.data_ptr() for t in tensors], [t.data_ptr() for t in outputs])
        except _core.Error as exc:
            self.recover()
            raise_core_error(exc)
        except BaseException:
            self.recover()
            raise
        finally:
            self._owner = 0
            self._lock.release()
        return self._finish(given, outputs)

    def _wait_for_other_thread(self) -> None:
        """A program runs once at a time; the core runs without the GIL, so it must be guarded."""
        if self._owner == get_ident():
            raise createPoptorchError("A model was called from inside its own run.")
        self._lock.acquire()

    def recover(self) -> None:
        """After a run that stopped half way: forget gradients that were accumulated so far."""
        for name, dtype, shape in self.program.states:
            if name.startswith("accum:"):
                zeros = torch.zeros(tuple(shape), dtype=DTYPES[dtype], device="cpu")
                self.program.write_state(name, zeros.data_ptr(), zeros.nbytes)

    # Preparing -----------------------------------------------------------------------------------

    def _output_specs(
        self, program: Any, rules: list[tuple[OutputMode, int]]
    ) -> list[tuple[Any, Any, torch.dtype]]:
        specs = []
        for (_, dtype, shape), rule in zip(program.outputs, rules, strict=True):
            full = Batching.output_shape(torch.Size(shape), self._batching.output_count(*rule))
            strides = torch.empty(full, device="meta").stride()
            specs.append((tuple(full), strides, DTYPES[dtype]))
        return specs

    def _make_finish(self, capture: Any) -> Callable[[Any, list[torch.Tensor]], Any]:
        """The function from the core's outputs to the result of the call."""
        batching, writebacks = self._batching, capture.input_writebacks
        captured = len(capture.outputs)
        checks = captured - len(capture.checks)
        count = checks - len(writebacks)
        anchors = len(self._outputs) > captured
        narrowed = [
            (i, _NARROWED[dtype])
            for i, (_, _, dtype) in enumerate(self._outputs)
            if dtype in _NARROWED and not count <= i < captured
        ]
        rebuild = _quick_rebuild(capture, count)

        def finish(inputs: Any, outputs: list[torch.Tensor]) -> Any:
            for index, dtype in narrowed:
                outputs[index] = outputs[index].to(dtype)
            if anchors:
                self.anchored = outputs[captured:]
                del outputs[captured:]
            if capture.checks:
                _check_frozen(capture.checks, outputs[checks:])
                del outputs[checks:]
            if writebacks:
                for position, index in writebacks:
                    inputs[position].detach().copy_(batching.written_back(outputs[index]))
                del outputs[count:]
            for tensor in outputs:
                tensor.backward = backward_error
            return rebuild(outputs)

        return finish


def _check_frozen(checks: Any, differs: list[torch.Tensor]) -> None:
    """Raise if a value that Python read in forward is not the one that the program is made for."""
    for (value, where), found in zip(checks, differs, strict=True):
        if found.any():
            raise make_error(
                "A value that Python reads in forward is another one than in the call that the "
                f"model was compiled for. There it was {value}, and the program is frozen to what "
                "followed from it. The call has run to its end: what it has written to weights and "
                "buffers stays written.",
                where,
            )


def _quick_rebuild(capture: Any, count: int) -> Callable[[list[torch.Tensor]], Any]:
    """The function that puts outputs into what forward returned; short cuts for simple results."""
    marks = [torch.empty(0) for _ in range(count)]
    result = capture.rebuild(marks)
    index = {id(mark): i for i, mark in enumerate(marks)}
    if id(result) in index:
        return lambda outputs: outputs[0]
    if type(result) in (tuple, list) and all(id(item) in index for item in result):
        order = [index[id(item)] for item in result]
        if order == list(range(count)):
            return type(result)
    return capture.rebuild


_IN_ORDER: tuple[int, ...] = (-1,)
