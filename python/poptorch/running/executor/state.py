# SPDX-License-Identifier: Apache-2.0
"""What an executor holds, and who may use its program when."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

import torch

from poptorch import _core
from poptorch.base.errors import Error, createPoptorchError
from poptorch.base.progress import Compilation
from poptorch.capture.state import lock as capture_lock
from poptorch.compiling.compile import Compiled
from poptorch.compiling.inspection import Anchor
from poptorch.enums import OutputMode
from poptorch.optimizer.program import DeviceOptimizer
from poptorch.options import Options
from poptorch.options.strategies import PipelinedExecution
from poptorch.running.arguments import Bound, Preparer, Signature
from poptorch.running.executable import Executable
from poptorch.running.reminders import Reminders
from poptorch.weights.replica_groups import Grouping
from poptorch.weights.state import shallow_copy

_NOT_COMPILED = "Model has not been compiled or has been destroyed."


class ExecutorState:
    """A model, its options, and its program once there is one.

    Args:
        model: the user's model.
        options: how to compile and run it; frozen by this.
        training: whether it is compiled for training.
    """

    def __init__(self, model: torch.nn.Module, options: Options | None, training: bool) -> None:
        self._options = _own_options(options, training)
        # Held by whoever makes or takes away the program. Locks are taken in this order: an
        # executor's, the turn of those that share tensors, that of captures (tensors of models have
        # no values meanwhile), a program's; never those of two executors or of two programs.
        self._lock = threading.RLock()
        self._training = training
        self._user_model = model
        # What is captured: children and tensors are the user's, plain attributes are not.
        self._model = shallow_copy(model) if training else model
        self._reminders = Reminders(self._model, model, training)
        self._signature = Signature(self._model.forward)
        self._prepare = Preparer()
        self._compilation = Compilation(self._options._show_compilation_progress_bar)
        self._executable: Executable | None = None
        self._executable_inputs: Bound | None = None
        self._compiled_parts: Compiled | None = None
        self._anchors: list[Anchor] = []
        self._groupings: dict[str, Grouping] = {}
        self._is_attached = False
        self._lease: _core.Lease | None = None
        self._ipus = 0  # that the program needs; none for the IPU Model
        self._fault: Error | None = None  # of the device; what it held is lost
        self._failed = False  # such a device is still attached
        self._inherited = False  # attached by the parent that forked this process
        self._rng_words: list[int] | None = None
        self._seed: int | None = None
        self._device_optimizer: DeviceOptimizer | None = None

    @contextmanager
    def _exclusive(self) -> Iterator[Executable]:
        """In here the program is there, is this executor's, and does not run."""
        executable = self._compiled()
        with capture_lock, executable.exclusive():
            if self._executable is not executable:  # destroyed while this thread waited
                raise createPoptorchError(_NOT_COMPILED)
            yield executable

    def _compiled(self) -> Executable:
        if self._executable is None:
            raise createPoptorchError(_NOT_COMPILED)
        return self._executable

    def _check_fault(self) -> None:
        """Raise what the device failed with, if there is nothing to be had from it."""
        if self._fault is not None:
            raise copy(self._fault)

    @property
    def model(self) -> torch.nn.Module:
        """The user's model."""
        return self._user_model

    @property
    def options(self) -> Options:
        """This executor's own frozen copy of the options."""
        return self._options


def _own_options(options: Options | None, training: bool) -> Options:
    if options is None:
        options = Options()
    if not isinstance(options, Options):
        hint = ". Pass it as optimizer=..." if isinstance(options, torch.optim.Optimizer) else ""
        raise createPoptorchError(f"Invalid type: 'options' is of type {type(options)}{hint}")
    options._freeze()
    own = options.clone()
    if own.defaultOutputMode():
        own.outputMode(OutputMode.Final if training else OutputMode.All)
    if not training and own.Training.gradient_accumulation != 1:
        hint = ""
        if type(own._execution_strategy) is PipelinedExecution:
            hint = " Use deviceIterations to keep the pipeline full instead."
        raise createPoptorchError(
            "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its "
            f"default value (1) when running a poptorch.inferenceModel().{hint}"
        )
    own._freeze()
    return own
