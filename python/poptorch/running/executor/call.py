# SPDX-License-Identifier: Apache-2.0
"""A call: from the arguments to the results."""

from typing import Any

import torch

from poptorch.base.errors import Error, RecoverableError, UnrecoverableError
from poptorch.base.torch_calls import real_tensors
from poptorch.capture.state import lock as capture_lock
from poptorch.enums import ConnectionType
from poptorch.optim import Optimizer as PoptorchOptimizer
from poptorch.running.executable import NOT_READY, Executable
from poptorch.running.executor.compiling import ExecutorProgram
from poptorch.weights import links
from poptorch.weights.state import WeightSync


class ExecutorCall(ExecutorProgram):
    """Runs the program; compiles or attaches it first where it has to."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call: D weight updates when training, D forward passes otherwise.

        The first call compiles the model. Arguments are those of the model's forward, with
        dimension 0 of every tensor holding all micro-batches of the call.
        """
        while True:
            executable = self._executable
            if executable is None or not self._is_attached:
                try:
                    executable = self._make_ready(args, kwargs)
                except BaseException as error:
                    self._shorten(error)
                    raise
            tensors = given = executable.match(args, kwargs)
            if tensors is None:
                try:
                    tensors, given = self._checked_tensors(executable, args, kwargs)
                except Exception as error:
                    self._shorten(error)
                    raise
            for holder, key, value in self._reminders.assumed:
                if holder[key] is not value:
                    self._reminders.tell()
                    break
            sync = None
            if self._training:
                sync = self._sync
                holder, key, value = next(self._reminders.turns)
                if holder[key] is not value:
                    self._reminders.tell()
                optimizer = self._optimizer
                if getattr(optimizer, "host_state_is_dirty", False):
                    self._links.refresh()
                    with capture_lock, executable.exclusive():
                        if executable.ready:
                            self._write_optim_state_dict_if_needed()
                # Schedulers warn unless the optimizer's step, which never runs here, was called.
                optimizer._opt_called = True
                if isinstance(optimizer, PoptorchOptimizer):
                    optimizer.ipu_state_is_dirty = True
            try:
                if self._links:
                    result = self._call_in_turn(executable, tensors, given, sync)
                else:
                    result = executable.call(tensors, given, sync)
            except Error as error:
                if isinstance(error, (RecoverableError, UnrecoverableError)):
                    self._device_failed(executable, error)
                self._shorten(error)
                raise
            if result is not NOT_READY:
                return result

    def _make_ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Executable:
        assert self._options.connection_type != ConnectionType.Never, (
            "Trying to run a model on an offline device: its connection type is "
            "poptorch.ConnectionType.Never"
        )
        with self._lock:  # one thread compiles, the others wait for it
            if self._failed:
                self._check_fault()
            if self._executable is None:
                self._compile(args, kwargs)
            elif not self._is_attached:
                self.attachToDevice()
            assert self._executable is not None
            return self._executable

    def _checked_tensors(
        self, executable: Executable, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The tensors of a call as the program reads them, and as the caller passed them."""
        leaves = executable.template.leaves(self._signature.bind(args, kwargs))
        with real_tensors():
            tensors = self._prepare(leaves)
        executable.check_strides(leaves)
        if all(tensor is passed for tensor, (_, passed) in zip(tensors, leaves, strict=True)):
            executable.learn(args, kwargs, self._signature, tensors)
        return tensors, [tensor for _, tensor in leaves]

    def _call_in_turn(
        self, executable: Executable, tensors: Any, given: Any, sync: WeightSync | None
    ) -> Any:
        """Run with the weights that other executors of the same tensors have trained."""
        if sync is None:
            self._follow_links(executable)
            return executable.call(tensors, given, sync)
        with links.turn:
            self._follow_links(executable)
            return executable.call(tensors, given, sync)

    def _follow_links(self, executable: Executable) -> None:
        if self._links.have_news():
            # At most one executor has weights that the host has not: the one that ran last.
            self._sync.refresh()
            self._links.refresh()
            with capture_lock, executable.exclusive():
                if executable.ready:
                    self._upload(executable)
