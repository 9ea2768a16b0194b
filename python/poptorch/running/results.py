# SPDX-License-Identifier: Apache-2.0
"""From the core's outputs to what a call returns: 64-bit types become 32-bit ones, inputs that
forward changed are written back, and the rest takes the form that forward returned."""

from collections.abc import Callable
from typing import Any

import torch

from poptorch import _core
from poptorch.base.errors import createPoptorchError
from poptorch.base.logging import logger
from poptorch.capture.errors import make_error
from poptorch.compiling.batching import Batching

#: Shape, strides and type of an output.
Spec = tuple[Any, Any, torch.dtype]
Finish = Callable[[Any, list[torch.Tensor]], Any]

_NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32}
_LOST = {torch.int64: "is cut to its low 32 bits", torch.float64: "becomes infinite"}


def backward_error(*args: Any, **kwargs: Any) -> None:
    """What ``backward()`` of a result does, whatever it is given."""
    raise createPoptorchError(
        "backward() cannot be called explicitly on outputs of a PopTorch model: the backward pass "
        "and the weight update are part of the call."
    )


class _Narrowing:
    """One output whose type has 64 bits."""

    def __init__(self, name: str, spec: Spec) -> None:
        shape, strides, self._dtype = spec
        self._spec = (shape, strides)
        self._count = torch.Size(shape).numel()
        self._name = name
        self._warned = False

    def __call__(self, wide: torch.Tensor) -> torch.Tensor:
        dtype = _NARROWED[self._dtype]
        narrow = torch.empty_strided(*self._spec, dtype=dtype)
        integers = dtype is torch.int32
        if not _core.narrow(wide.data_ptr(), narrow.data_ptr(), self._count, integers):
            self._warn()
        return narrow

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s is %s in the model and comes back as %s, as all results of that type do: a "
                "value of it does not fit and %s.",
                self._name,
                self._dtype,
                _NARROWED[self._dtype],
                _LOST[self._dtype],
            )


def make_finish(
    capture: Any,
    specs: list[Spec],
    anchors: list[str],
    batching: Batching,
    keep_anchors: Callable[[list[torch.Tensor]], None],
) -> Finish:
    """The function from the inputs and outputs of a run to the result of the call.

    Args:
        capture: what was captured.
        specs: of all outputs: those of the capture, then the anchors.
        anchors: names of the outputs after those of the capture.
        batching: how many micro-batches a call holds.
        keep_anchors: takes the anchors of a call.
    """
    writebacks = capture.input_writebacks
    captured = len(capture.outputs)
    checks = captured - len(capture.checks)
    count = checks - len(writebacks)
    names = capture.output_names() | {captured + i: name for i, name in enumerate(anchors)}
    narrowed = [
        (i, _Narrowing(names.get(i, f"output {i}"), spec))
        for i, spec in enumerate(specs)
        if spec[2] in _NARROWED and not count <= i < captured
    ]
    rebuild = _quick_rebuild(capture, count)

    def finish(inputs: Any, outputs: list[torch.Tensor]) -> Any:
        for index, narrow in narrowed:
            outputs[index] = narrow(outputs[index])
        if anchors:
            keep_anchors(outputs[captured:])
            del outputs[captured:]
        if capture.checks:
            _check_frozen(capture.checks, outputs[checks:])
            del outputs[checks:]
        if writebacks:
            for position, index in writebacks:
                inputs[position].detach().copy_(batching.written_back(outputs[index]))
            del outputs[count:]
        for tensor in outputs:
            tensor.backward = backward_error  # type: ignore[method-assign]  # of the object
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
