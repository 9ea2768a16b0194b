# SPDX-License-Identifier: Apache-2.0
"""From the first arguments of an executor to its program, and freeing it."""

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from poptorch.base.errors import createPoptorchError
from poptorch.base.logging import logger
from poptorch.base.memory import host_defaults
from poptorch.base.torch_calls import real_tensors
from poptorch.base.tracebacks import shorten
from poptorch.capture.errors import excluding
from poptorch.capture.state import lock as capture_lock
from poptorch.compiling.batching import Batching
from poptorch.compiling.compile import Compiled, compile_model
from poptorch.enums import ConnectionType
from poptorch.optimizer.program import DeviceOptimizer
from poptorch.optimizer.table import Settings
from poptorch.options.check import check_compilable
from poptorch.running.arguments import Bound, micro_batch, warn_of_dicts
from poptorch.running.executable import Executable
from poptorch.running.executor.device import ExecutorDevice
from poptorch.running.stored import ExportedFile, kept_arguments
from poptorch.running.template import Template
from poptorch.weights.rng_state import choose_seed, seed_rng
from poptorch.weights.state import is_wrapped, unwrap_module
from poptorch.weights.transfer import StateMover


class ExecutorProgram(ExecutorDevice):
    """Compiles and frees the program."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the model for arguments like these, without running it."""
        with self._lock:
            if self._executable is not None:
                logger.warning("Call to compile() ignored: model already compiled")
                return
            try:
                self._compile(args, kwargs)
            except BaseException as error:
                self._shorten(error)
                raise

    def _shorten(self, error: BaseException) -> None:
        with excluding(self._options._source_location_excludes):
            shorten(error)

    def _compile(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], file: ExportedFile | None = None
    ) -> None:
        try:
            with real_tensors():
                self._compile_for(args, kwargs, file)
        except BaseException:
            self._release_device()
            raise

    def _compile_for(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], file: ExportedFile | None
    ) -> None:
        check_compilable(self._options, self._training)
        given = self._signature.bind(args, kwargs)
        warn_of_dicts(given)
        leaves = self._signature.leaves(given)
        tensors = self._prepare(leaves, compiling=True)
        bound = given.replaced(iter(tensors))
        # Before forward can change them.
        template = Template(self._signature, given)
        first = kept_arguments(given, tensors)
        batching = Batching.of(self._options, self._training)
        micro = self._signature.as_called(micro_batch(bound, batching), args, kwargs)
        compiled, settings = self._compile_micro_batch(micro, batching, file)
        executable = self._executable_of(compiled, batching, template)
        if compiled.captured.follows_strides:
            executable.strides = [tensor.stride() for tensor in tensors]
        pairs = zip(tensors, leaves, strict=True)
        if all(t is passed and t.is_contiguous() for t, (_, passed) in pairs):
            executable.learn(args, kwargs, self._signature, tensors)
        self._executable_inputs = first
        self._links.refresh()
        self._load(executable, compiled, settings)

    def _executable_of(
        self, compiled: Compiled, batching: Batching, template: Template
    ) -> Executable:
        program, captured = compiled.program, compiled.captured
        names = [anchor.short for anchor in compiled.anchors if not anchor.is_state]
        with capture_lock:
            mover = StateMover(program, self._model, (*captured.params, *captured.buffers))
        executable = Executable(program, captured, batching, compiled.rules, names, template, mover)
        executable.after_failure = compiled.after_failure
        return executable

    def _start_compilation(self) -> None:
        """The model is wrapped, linked with others of its tensors, and has the newest weights."""
        with capture_lock:
            if self._training and not is_wrapped(self._user_model):
                self._wrap()
            self._links.find(self._model, self._sync)
        self._links.refresh()
        self._sync.refresh()

    def _compile_micro_batch(
        self, micro: Bound, batching: Batching, file: ExportedFile | None
    ) -> tuple[Compiled, Settings | None]:
        """The program, and the optimizer's values that it was compiled for."""
        with self._compilation.running() as bar, host_defaults(self._training):
            self._start_compilation()
            settings = self._settings() if self._training else None
            with nullcontext() if file is None else file.notes.modes(self._model):
                compiled = compile_model(
                    self._model,
                    micro,
                    self._options,
                    batching,
                    self._groupings,
                    self._optimizer,
                    settings,
                    bar,
                    self._reserve,
                    None if file is None else file.maker(bar),
                )
        self._reminders.compiled()
        return compiled, settings

    def _load(self, executable: Executable, compiled: Compiled, settings: Settings | None) -> None:
        """Make it this executor's program; nobody gets at it before its weights are there."""
        program = executable.program
        attaching = self._options.connection_type != ConnectionType.Never
        if attaching:
            self._take_device()
        with capture_lock, executable.exclusive():
            try:
                if settings is not None:
                    self._device_optimizer = DeviceOptimizer(
                        program, self._optimizer, settings, compiled.parameters.name_of
                    )
                self._executable = executable
                self._compiled_parts = compiled
                self._anchors = compiled.anchors
                self._seed = choose_seed(self._options)
                seed_rng(program, self._seed)
                if attaching:
                    self._on_device_attach(executable)
            except BaseException:
                self._forget_program()
                raise

    def _forget_program(self) -> None:
        if self._executable is not None:
            self._executable.ready = False
        self._executable = None
        self._executable_inputs = None
        self._compiled_parts = None
        self._device_optimizer = None
        self._is_attached = self._failed = self._inherited = False
        self._fault = None
        self._release_device()
        self._sync.stale = False

    def isCompiled(self) -> bool:
        """Whether there is a compiled program."""
        return self._executable is not None

    def compilationTime(self) -> timedelta:
        """How long the compilation took."""
        if self._executable is None:
            raise createPoptorchError("Please compile the model before obtaining compilation time.")
        assert self._compilation.duration is not None
        return self._compilation.duration

    def destroy(self) -> None:
        """Free the program, with the weights back on the host; the next call compiles again."""
        with self._lock:
            if self._executable is not None:
                with self._exclusive():
                    if self._fault is None:
                        self._fetch_state()
                    self._forget_program()
            if self._training and is_wrapped(self._user_model):
                with capture_lock:
                    self._sync.retired = True
                    self._watch.stop()
                    unwrap_module(self._user_model)
