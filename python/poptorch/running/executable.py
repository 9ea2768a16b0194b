# SPDX-License-Identifier: Apache-2.0
"""A compiled model: the core's program, and everything a call needs, worked out in advance so that
the path of a call is short."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from typing import Any

import torch

from poptorch import _core
from poptorch.base.dtypes import DTYPES
from poptorch.base.errors import (
    Error,
    RecoverableError,
    UnrecoverableError,
    createPoptorchError,
    raise_core_error,
)
from poptorch.base.logging import logger
from poptorch.base.torch_calls import any_mode, real_tensors, tensor_check
from poptorch.compiling.batching import Batching
from poptorch.enums import OutputMode
from poptorch.running import faults
from poptorch.running.arguments import Leaves, Signature
from poptorch.running.host_calls import is_inside
from poptorch.running.results import Spec, make_finish
from poptorch.running.template import Template
from poptorch.weights.state import WeightSync
from poptorch.weights.transfer import StateMover, write_state

# With tuples it takes half the time of torch.empty.
_empty = torch.empty_strided
_Tensor = torch.Tensor

#: What a call returns if the program was taken off its device before it could run.
NOT_READY = object()


class Executable:
    """A program that is ready to run.

    Args:
        program: the core's program.
        capture: what was captured.
        batching: how many micro-batches a call holds.
        rules: which outputs of a call's micro-batches are returned; outputs after those of the
            capture are anchors.
        anchors: names of those anchors.
        template: the arguments it was compiled for.
        mover: copies the weights.

    Attributes:
        ready: whether it is on a device, with its weights; changed under ``exclusive`` only.
        anchored: the anchors of the last call.
        strides: those of the first call's tensors, if the results depend on them; else None.
        after_failure: called when a run has stopped half way.
    """

    def __init__(
        self,
        program: Any,
        capture: Any,
        batching: Batching,
        rules: list[tuple[OutputMode, int]],
        anchors: list[str],
        template: Template,
        mover: StateMover,
    ) -> None:
        self.program = program
        self.template = template
        self.mover = mover
        self.batching = batching
        self.rules = rules
        #: Those of outputs that the user knows of: checks are the executable's own.
        first, end = len(capture.outputs) - len(capture.checks), len(capture.outputs)
        self.visible_rules = [*rules[:first], *rules[end:]]
        self.ready = False
        self.anchored: list[torch.Tensor] = []
        self.strides: list[tuple[int, ...]] | None = None
        self.after_failure: list[Callable[[], None]] = []
        self._run = faults.around(program.run)
        # A program does one thing at a time: the core runs without the GIL.
        self._lock = RLock()
        self._running = False
        # Calls whose arguments are plain tensors in a known form skip binding and comparing:
        # (number of positional arguments, names of the others) -> positions of the tensors, and
        # functions that recognise tensors like those of an earlier call.
        self._forms: dict[tuple[Any, ...], tuple[tuple[int, ...], list[Any]]] = {}
        if len(program.inputs) != len(template.names):
            raise createPoptorchError(
                f"internal error: the program has {len(program.inputs)} inputs, the call has "
                f"{len(template.names)}"
            )
        self._sizes: list[tuple[int, int]] = []
        self._outputs = _output_specs(program, batching, rules)
        self._without_memory = sum(0 in shape for shape, _, _ in self._outputs)
        self._finish = make_finish(capture, self._outputs, anchors, batching, self._keep_anchors)

    # Calling -------------------------------------------------------------------------------------

    def match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The tensors of a call in the order of capture, if it has a known form; else None."""
        form = self._forms.get((len(args), *kwargs))
        if form is None:
            return None
        order, checks = form
        values: Sequence[Any] = args if not kwargs else (*args, *kwargs.values())
        if order is not _IN_ORDER:
            values = [values[i] for i in order]
        if not checks[0](*values) and not any(check(*values) for check in checks[1:]):
            return None
        # Memory that was freed or shrunk without the tensor's knowledge. A known form has as many
        # values as sizes: strict= would only take time here.
        for value, (size, itemsize) in zip(values, self._sizes):  # noqa: B905
            if value.untyped_storage().nbytes() < size + value.storage_offset() * itemsize:
                return None
        return values

    def learn(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        signature: Signature,
        tensors: list[torch.Tensor],
    ) -> None:
        """Remember the form of a call whose ``tensors`` can be read as they are."""
        if not all(type(value) is _Tensor for value in (*args, *kwargs.values())):
            return
        # Marks instead of the values, because a caller may pass one tensor twice.
        marks = [_Tensor() for _ in range(len(args) + len(kwargs))]
        named = dict(zip(kwargs, marks[len(args) :], strict=True))
        leaves = signature.leaves(signature.bind(tuple(marks[: len(args)]), named))
        names = {name: leaf for name, leaf in leaves}
        if len(names) != len(leaves) or names.keys() != set(self.template.names):
            return
        position = {id(mark): i for i, mark in enumerate(marks)}
        order = tuple(position.get(id(names[name]), -1) for name in self.template.names)
        if -1 in order:
            return  # there are tensors among the defaults
        straight = order == tuple(range(len(marks)))
        self._sizes = [(t.nbytes, t.itemsize) for t in tensors]
        _, checks = self._forms.setdefault(
            (len(args), *kwargs), (_IN_ORDER if straight else order, [])
        )
        checks.insert(0, tensor_check(tensors))
        del checks[_MOST_CHECKS:]

    def check_strides(self, leaves: Leaves) -> None:
        """Say, once, that the results are those for the strides of the first call."""
        if self.strides is None:
            return
        pairs = zip(leaves, self.strides, strict=True)
        names = [name for (name, tensor), strides in pairs if tensor.stride() != strides]
        if not names:
            return
        self.strides = None
        logger.warning(
            "%s: the strides differ from those of the first call. Forward writes to a tensor that "
            "is a view or a copy, depending on the strides of the inputs, and the program keeps "
            "what it was in the first call. Call contiguous() on the inputs, or clone() on what is "
            "written to.",
            ", ".join(names),
        )

    def call(self, tensors: Any, given: Any, sync: WeightSync | None) -> Any:
        """Run the program on prepared tensors; what it changes in place goes to ``given``.

        ``sync`` is told that the program has newer weights than the host. NOT_READY if the program
        may not run any more.
        """
        try:
            outputs = [_empty(shape, order, dtype=dtype) for shape, order, dtype in self._outputs]
        except RuntimeError as exc:
            raise Error(f"[memory] no memory for the outputs: {exc}", type="memory") from None
        addresses = [t.data_ptr() for t in outputs]
        if addresses.count(0) != self._without_memory:
            return self._call_with_real_outputs(tensors, given, sync)
        # Before the lock: reading the address of a watched tensor may fetch its values.
        inputs = [t.data_ptr() for t in tensors]
        lock = self._lock
        if not lock.acquire(False):
            self._wait_for_other_thread()
        try:
            if not self.ready:
                return NOT_READY
            if self._running:
                raise createPoptorchError(_INSIDE)
            self._running = True
            # Before the run, because a run that is interrupted has trained as well.
            if sync is not None:
                sync.stale = True
            try:
                self._run(inputs, addresses)
            except _core.Error as exc:
                self._recover()
                if isinstance(exc, _core.RecoverableError):
                    self.ready = False  # nobody runs it on a device that is gone
                raise_core_error(exc)
            except BaseException as exc:
                self._recover()
                if isinstance(exc, (RecoverableError, UnrecoverableError)):
                    self.ready = False
                raise
            finally:
                self._running = False
        finally:
            lock.release()
        return self._finish(given, outputs)

    def exclusive(self) -> AbstractContextManager[Any]:
        """In here the program does not run, and nobody else reads or writes its states.

        A function that the program calls, on whichever thread, is part of its run.
        """
        return nullcontext() if is_inside(self.program) else self._lock

    def _wait_for_other_thread(self) -> None:
        if is_inside(self.program):
            raise createPoptorchError(_INSIDE)
        self._lock.acquire()

    def _call_with_real_outputs(self, tensors: Any, given: Any, sync: WeightSync | None) -> Any:
        """Torch was told to make tensors without memory, such as on a default device "meta"."""
        if not any_mode():
            raise createPoptorchError("internal error: torch made outputs without memory")
        with real_tensors():
            return self.call(tensors, given, sync)

    def _recover(self) -> None:
        """After a run that stopped half way: forget gradients that were accumulated so far."""
        for forget in self.after_failure:
            forget()
        for state in self.program.states:
            if state.kind in ("accumulator", "micro_count"):
                write_state(self.program, state, torch.zeros((), device="cpu").expand(state.shape))

    def _keep_anchors(self, anchored: list[torch.Tensor]) -> None:
        self.anchored = anchored


def _output_specs(
    program: Any, batching: Batching, rules: list[tuple[OutputMode, int]]
) -> list[Spec]:
    specs = []
    for (_, dtype, shape), rule in zip(program.outputs, rules, strict=True):
        full = Batching.output_shape(torch.Size(shape), batching.output_count(*rule))
        strides = torch.empty(full, device="meta").stride()
        specs.append((tuple(full), strides, DTYPES[dtype]))
    return specs


_INSIDE = "A model was called from inside its own run."
_IN_ORDER: tuple[int, ...] = (-1,)
# Of one form: by mode of torch and by strides of dims of size 1.
_MOST_CHECKS = 4
