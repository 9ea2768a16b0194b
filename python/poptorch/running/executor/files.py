# SPDX-License-Identifier: Apache-2.0
"""Programs in files: an executor's own, and those it takes over."""

import json
import os
from typing import Any

from poptorch import _core
from poptorch._version import __version__
from poptorch.base.errors import createPoptorchError, raise_core_error
from poptorch.base.logging import logger
from poptorch.base.torch_calls import real_tensors
from poptorch.compiling.compile import Compiled, Parameters, thread_count
from poptorch.ops import cpu
from poptorch.optim import Optimizer as PoptorchOptimizer
from poptorch.running.executor.call import ExecutorCall
from poptorch.running.host_calls import bind_host_calls
from poptorch.running.stored import ExportedFile, Stored, notes_of, pickled

_Path = str | os.PathLike[str]


class ExecutorFiles(ExecutorCall):
    """Saves and loads the program."""

    def compileAndExport(
        self, filename: _Path, *args: Any, export_model: bool = True, **kwargs: Any
    ) -> None:
        """Compile the model for arguments like these, and save it; see :meth:`save`."""
        self.compile(*args, **kwargs)
        self.save(filename, export_model=export_model)

    def save(self, filename: _Path, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the compiled program to a file.

        Args:
            filename: directories on the way are made. In a directory it is ``model.poptorch``.
            export_model: also write the model with its weights, the options and the optimizer with
                its state, as a pickle, for ``poptorch.load``. Without it ``loadExecutable`` reads
                the file.
            save_rng_state: also write the state of the random numbers, with the model.
        """
        with self._lock:
            executable = self._compiled()
            path = _prepared(filename)
            _check_savable(executable.program)
            if self._is_attached:
                with self._exclusive():
                    self._fetch_state()
            assert self._executable_inputs is not None
            notes = notes_of(self._executable_inputs, self._model, self._training)
            model = pickled(self._stored(save_rng_state)) if export_model else b""
            try:
                executable.program.save(os.fsencode(path), __version__, notes, model)
            except _core.Error as exc:
                raise_core_error(exc)

    def _stored(self, save_rng_state: bool) -> Stored:
        parts, executable = self._compiled_parts, self._executable
        inputs = self._executable_inputs
        assert parts is not None and executable is not None and inputs is not None
        state = None
        if self._device_optimizer is not None and self._is_attached:
            if not isinstance(self._optimizer, PoptorchOptimizer):
                state = self._device_optimizer.read()
        return Stored(
            self._user_model,
            self._training,
            self._options,
            self._optimizer,
            state,
            self._rng_words or self._rng_from_device() if save_rng_state else None,
            parts.captured.without_text(),
            executable.batching,
            parts.rules,
            parts.anchors,
            parts.core_options,
            self._groupings,
            executable.template,
            inputs,
            executable.strides,
        )

    def loadExecutable(self, filename: _Path) -> None:
        """Use the program of a file instead of compiling one.

        The model is captured once more, for the arguments that the file was made for: the program
        must be that of this very model with these options.
        """
        with self._lock:
            if self._executable is not None:
                raise createPoptorchError(
                    "Model is already compiled: call destroy() before loadExecutable()."
                )
            file = ExportedFile(filename, createPoptorchError)
            if file.notes.missing:
                raise createPoptorchError(
                    f"{file.name}: an argument of forward is a {file.notes.missing}, which is kept "
                    "with the model only: save it with export_model=True and use poptorch.load()."
                )
            try:
                self._compile(tuple(file.notes.args), file.notes.kwargs, file)
            except BaseException as error:
                self._shorten(error)
                raise

    def _restore(self, file: ExportedFile, stored: Stored) -> None:
        """Take over the program and all else that a file says of an executor like this one."""
        with self._lock, real_tensors():
            captured = stored.capture
            self._groupings = stored.groupings
            self._rng_words = stored.rng_state
            options = stored.core_options | {"threads": thread_count()}
            with self._compilation.running() as bar:
                self._start_compilation()
                program = file.program(options, captured, bar.core)
            self._reminders.compiled()
            parameters = Parameters(self._model, captured)
            compiled = Compiled(
                program,
                captured,
                stored.rules,
                stored.anchors,
                parameters,
                stored.core_options,
                bind_host_calls(program),
            )
            template = stored.template.of(self._signature)
            executable = self._executable_of(compiled, stored.batching, template)
            executable.strides = stored.strides
            self._executable_inputs = stored.inputs
            self._load(executable, compiled, self._settings() if self._training else None)
            if stored.optimizer_state is not None and self._device_optimizer is not None:
                with self._exclusive():
                    self._device_optimizer.write(stored.optimizer_state)


def _prepared(filename: _Path) -> str:
    """The name of the file, in a directory that is there."""
    path = os.fspath(filename)
    if os.path.isdir(path):
        inside = os.path.join(path, "model.poptorch")
        logger.warning("%s is a directory, saving model to %s", path, inside)
        path = inside
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    except OSError as error:
        raise createPoptorchError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def _check_savable(program: Any) -> None:
    calls = program.host_calls()
    if any(call["target"] in (cpu.TARGET, cpu.GRADIENT) for call in calls):
        raise createPoptorchError(
            "The program calls functions of this process (poptorch.CPU), which no file can hold: "
            "it can't be saved."
        )
    if not json.loads(program.summary())["steps"]:
        raise createPoptorchError("Nothing to export: the program of the model has no steps.")
