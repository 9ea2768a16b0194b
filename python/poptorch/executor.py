# SPDX-License-Identifier: Apache-2.0
"""``trainingModel`` and ``inferenceModel``: a module wrapped so that calling it runs its compiled
program on virtual IPUs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from poptorch import _doors, _links, _rng_state, _state
from poptorch._args import Bound, Preparer, Signature, micro_batch, warn_of_dicts
from poptorch._batching import Batching
from poptorch._blocks import module_repr
from poptorch._compiling import compile_model
from poptorch._errors import Error, createPoptorchError
from poptorch._executable import NOT_READY, Executable
from poptorch._host_calls import in_host_call
from poptorch._inspection import Anchor, Inspection
from poptorch._logging import logger
from poptorch._memory import host_defaults
from poptorch._optimizer_table import (
    Settings,
    needs_running_mean,
    settings_of,
    warn_of_subclass,
)
from poptorch._optimizers import AttributeWatch, DeviceOptimizer
from poptorch._options_check import check_compilable
from poptorch._pending import add_pending_methods
from poptorch._progress import Compilation
from poptorch._reminders import Reminders
from poptorch._replica_groups import Grouping, ParameterProxy
from poptorch._suggest import did_you_mean
from poptorch._template import Template
from poptorch._torch_calls import real_tensors
from poptorch._tracebacks import shorten
from poptorch._version import __version__
from poptorch._weights import StateMover
from poptorch.capture.errors import excluding
from poptorch.capture.state import lock as capture_lock
from poptorch.enums import ConnectionType, MeanReductionStrategy, OutputMode
from poptorch.optim import SGD
from poptorch.optim import Optimizer as PoptorchOptimizer
from poptorch.options import Options
from poptorch.strategies import PipelinedExecution

_NOT_COMPILED = "Model has not been compiled or has been destroyed."


@add_pending_methods
class PoplarExecutor(Inspection):
    """A wrapped model; made by :func:`trainingModel` and :func:`inferenceModel`.

    Attributes that it does not define are those of the user's model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        options: Options | None,
        training: bool,
        poptorch_version: str,
        optimizer: Any = None,
        user_model: torch.nn.Module | None = None,
    ) -> None:
        self._options = _own_options(options, training)
        # Held by whoever makes or takes away the program. Locks are taken in this order: an
        # executor's, the turn of those that share tensors, that of captures (tensors of models have
        # no values meanwhile), a program's; never those of two executors or of two programs.
        self._lock = threading.RLock()
        self._training = training
        self._poptorch_version = poptorch_version
        self._user_model = user_model if user_model is not None else model
        # What is captured: children and tensors are the user's, plain attributes are not.
        self._model = _state.shallow_copy(self._user_model) if training else self._user_model
        self._reminders = Reminders(self._model, self._user_model, training)
        self._signature = Signature(self._model.forward)
        self._prepare = Preparer()
        self._compilation = Compilation(self._options._show_compilation_progress_bar)
        self._executable: Executable | None = None
        self._executable_inputs: Bound | None = None
        self._anchors: list[Anchor] = []
        self._groupings: dict[str, Grouping] = {}
        self._is_attached = False
        self._rng_words: list[int] | None = None
        self._seed: int | None = None

        self._sync = _state.WeightSync(self._fetch_stale_weights)
        self._watch = _state.TensorWatch(self._user_model, self._sync)
        self._links = _links.Links()
        self._mover: StateMover | None = None
        _links.follow(self)

        self._optimizer: Any = None
        self._device_optimizer: DeviceOptimizer | None = None
        self._attribute_watch = AttributeWatch()
        if training:
            if optimizer is None:
                optimizer = _default_optimizer(self._user_model)
            self._adopt_optimizer(optimizer)
            self._wrap()

    # Calling -------------------------------------------------------------------------------------

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
        self, executable: Executable, tensors: Any, given: Any, sync: _state.WeightSync | None
    ) -> Any:
        """Run with the weights that other executors of the same tensors have trained."""
        if sync is None:
            self._follow_links(executable)
            return executable.call(tensors, given, sync)
        with _links.turn:
            self._follow_links(executable)
            return executable.call(tensors, given, sync)

    def _follow_links(self, executable: Executable) -> None:
        if self._links.have_news():
            # At most one executor has weights that the host has not: the one that ran last.
            self._sync.refresh()
            self._links.refresh()
            with capture_lock, executable.exclusive():
                if executable.ready:
                    self._upload()

    def _upload(self) -> None:
        """Send the weights; others are refreshed before the program is held, never inside."""
        assert self._mover is not None
        seen = self._links.versions()
        if self._mover.upload() and self._training:
            self._watch.start()  # of tensors that have taken the place of others
        # Last, or another thread would run before the weights are there.
        self._links.taken_over(seen)

    # Compiling -----------------------------------------------------------------------------------

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

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with real_tensors():
            self._compile_for(args, kwargs)

    def _compile_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        check_compilable(self._options, self._training)
        given = self._signature.bind(args, kwargs)
        warn_of_dicts(given)
        leaves = self._signature.leaves(given)
        tensors = self._prepare(leaves, compiling=True)
        bound = given.replaced(iter(tensors))
        # Before forward can change them.
        template = Template(self._signature, given)
        batching = Batching.of(self._options, self._training)
        micro = self._signature.as_called(micro_batch(bound, batching), args, kwargs)
        with self._compilation.running() as bar, host_defaults(self._training):
            with capture_lock:
                if self._training and not _state.is_wrapped(self._user_model):
                    self._wrap()
                self._links.find(self._model, self._sync)
            self._links.refresh()
            self._sync.refresh()
            settings = self._settings() if self._training else None
            compiled = compile_model(
                self._model,
                micro,
                self._options,
                batching,
                self._groupings,
                self._optimizer,
                settings,
                bar,
            )
        self._reminders.compiled()
        program, captured = compiled.program, compiled.captured
        names = [anchor.short for anchor in compiled.anchors if not anchor.is_state]
        executable = Executable(program, captured, batching, compiled.rules, names, template)
        if captured.follows_strides:
            executable.strides = [tensor.stride() for tensor in tensors]
        pairs = zip(tensors, leaves, strict=True)
        if all(t is passed and t.is_contiguous() for t, (_, passed) in pairs):
            executable.learn(args, kwargs, self._signature, tensors)
        infos = (*captured.params, *captured.buffers)
        self._links.refresh()
        # Nobody gets at the program before its weights are there.
        with capture_lock, executable.exclusive():
            try:
                self._mover = StateMover(program, self._model, infos)
                if settings is not None:
                    self._device_optimizer = DeviceOptimizer(
                        program, self._optimizer, settings, compiled.parameters.name_of
                    )
                self._executable = executable
                self._anchors = compiled.anchors
                self._executable_inputs = given.replaced(
                    iter([torch.empty_like(t, device="meta") for t in tensors])
                )
                self._seed = _rng_state.choose_seed(self._options)
                _rng_state.seed_rng(program, self._seed)
                if self._options.connection_type != ConnectionType.Never:
                    self._on_device_attach()
            except BaseException:
                self._forget_program()
                raise

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """In here the program is there, is this executor's, and does not run."""
        executable = self._executable
        if executable is None:
            raise createPoptorchError(_NOT_COMPILED)
        with capture_lock, executable.exclusive():
            if self._executable is not executable:  # destroyed while this thread waited
                raise createPoptorchError(_NOT_COMPILED)
            yield

    def _forget_program(self) -> None:
        if self._executable is not None:
            self._executable.ready = False
        self._executable = None
        self._executable_inputs = None
        self._mover = None
        self._device_optimizer = None
        self._is_attached = False
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
                    self._fetch_state()
                    self._forget_program()
            if self._training and _state.is_wrapped(self._user_model):
                with capture_lock:
                    self._sync.retired = True
                    self._watch.stop()
                    _state.unwrap_module(self._user_model)

    def _fetch_state(self) -> None:
        """Bring what the program has changed back to the host."""
        if self._training:
            self._sync.refresh()
            self._read_optim_state_dict_if_needed()
        self._rng_words = self._rng_from_device()

    def _wrap(self) -> None:
        _doors.install()
        with capture_lock:
            self._watch.check()
            self._watch.start()
            _state.wrap_module(self._user_model, self)
            self._sync.retired = False
            _links.announce(self, self._user_model)

    # Weights -------------------------------------------------------------------------------------

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Fetch the weights if the program has changed them; says whether it had."""
        if capture_lock.acquire(blocking=not in_host_call()):
            capture_lock.release()  # no model is captured: its tensors have values
        return self._sync.refresh()

    def copyWeightsToHost(self) -> None:
        """Fetch the weights from the device."""
        with self._exclusive():
            self._mover.download()
            self._sync.fetched()

    def _fetch_stale_weights(self) -> None:
        executable = self._executable
        if executable is None:
            return  # destroyed by another thread, which has fetched them
        # A function that a program calls has to do with what is there: others may wait for the end
        # of the run that it is a part of.
        if not capture_lock.acquire(blocking=not in_host_call()):
            return
        try:
            with executable.exclusive():
                if self._sync.stale and self._executable is executable:
                    self.copyWeightsToHost()
        finally:
            capture_lock.release()

    def copyWeightsToDevice(self) -> None:
        """Send the weights to the device; what was trained since the last fetch is lost."""
        if self._executable is None:
            raise createPoptorchError(_NOT_COMPILED)
        self._links.refresh()
        with self._exclusive():
            self._upload_weights()

    def _upload_weights(self) -> None:
        self._upload()  # which may refuse: what was trained is still to be fetched then
        self._sync.fetched()

    def copyNamedBuffersToDevice(self) -> None:
        """Send the buffers listed in ``Options.updatableNamedBuffers`` to the device."""
        if self._executable is None:
            raise createPoptorchError(_NOT_COMPILED)
        names = self._options._Popart.options.get("updatableNamedBuffers")
        if not names:
            raise createPoptorchError("No named buffers marked as updatable")
        with self._exclusive():
            self._mover.upload(names)

    def load_state_dict(self, state_dict: dict[str, torch.Tensor], strict: bool = True) -> Any:
        """Load weights into the model, and send them to the device if it is attached."""
        with self._lock:
            result = self._user_model.load_state_dict(state_dict, strict)
            if self._is_attached:
                self.copyWeightsToDevice()
            return result

    # Optimizer -----------------------------------------------------------------------------------

    def setOptimizer(self, optimizer: Any) -> None:
        """Use the values of ``optimizer`` from the next call on; nothing is compiled again."""
        if not self._training:
            raise createPoptorchError("setOptimizer is only for training models")
        with self._lock:
            self._set_optimizer(optimizer)

    def _set_optimizer(self, optimizer: Any) -> None:
        settings = self._settings(optimizer)
        if self._device_optimizer is not None:
            self._check_strategy(optimizer)
            self._device_optimizer.check(optimizer, settings)
        if optimizer is not self._optimizer:
            self._read_optim_state_dict_if_needed()
            if isinstance(self._optimizer, PoptorchOptimizer):
                self._optimizer._fetch_state = None
            self._adopt_optimizer(optimizer)
        self._attribute_watch(optimizer, self._options._relax_optimizer_checks)
        if self._device_optimizer is not None and self._is_attached:
            self._links.refresh()
            with self._exclusive():
                self._send(settings)
                self._write_optim_state_dict_if_needed()

    def _send(self, settings: Settings) -> None:
        assert self._device_optimizer is not None
        self._device_optimizer.send(settings)
        self._reminders.sent(self._optimizer)

    def _settings(self, optimizer: Any = None) -> Settings:
        return settings_of(
            self._optimizer if optimizer is None else optimizer,
            bool(self._options._Popart.options.get("automaticLossScalingSettings.enabled")),
        )

    def _check_strategy(self, optimizer: Any) -> None:
        strategy = self._options.Training.meanAccumulationAndReplicationReductionStrategy
        if needs_running_mean(optimizer) and strategy != MeanReductionStrategy.Running:
            raise ValueError(
                "Invalid optimizer: the new optimizer would require changing "
                "meanAccumulationAndReplicationReductionStrategy from "
                f"{strategy} to {MeanReductionStrategy.Running}, but the model has been compiled."
            )

    def _adopt_optimizer(self, optimizer: Any) -> None:
        self._settings(optimizer)
        if self._executable is None and needs_running_mean(optimizer):
            # The options are this executor's own: nobody else sees the change.
            values = self._options.Training._values
            values["meanAccumulationAndReplicationReductionStrategy"] = (
                MeanReductionStrategy.Running
            )
        self._attribute_watch(optimizer, self._options._relax_optimizer_checks)
        warn_of_subclass(optimizer)
        self._optimizer = optimizer
        if isinstance(optimizer, PoptorchOptimizer):
            optimizer._fetch_state = self._read_optim_state_dict_if_needed

    def _read_optim_state_dict_if_needed(self) -> None:
        optimizer = self._optimizer
        if self._device_optimizer is None or not isinstance(optimizer, PoptorchOptimizer):
            return
        if optimizer.ipu_state_is_dirty:
            with self._exclusive():
                optimizer.set_state_dict(self._device_optimizer.read())
                optimizer.host_state_is_dirty = False

    def _write_optim_state_dict_if_needed(self) -> None:
        optimizer = self._optimizer
        if self._device_optimizer is None or not isinstance(optimizer, PoptorchOptimizer):
            return
        if optimizer.host_state_is_dirty:
            settings = self._settings()
            self._device_optimizer.check(optimizer, settings)
            # State and weights belong together: what the host has of both goes to the device.
            with self._exclusive():
                self._sync.refresh()
                self._upload_weights()
                self._device_optimizer.write(optimizer.get_state_dict())
                self._send(settings)
                optimizer.host_state_is_dirty = False

    def _torch_state_to_host(self, updates: int) -> None:
        """Fetch the state of an optimizer of torch's, in torch's form; of ours, in its own."""
        if self._device_optimizer is None or isinstance(self._optimizer, PoptorchOptimizer):
            self._read_optim_state_dict_if_needed()
        else:
            with self._exclusive():
                self._device_optimizer.read_torch(self._optimizer, updates)

    def _torch_state_to_device(self) -> None:
        """Send the state that an optimizer of torch's has on the host."""
        if self._device_optimizer is None or isinstance(self._optimizer, PoptorchOptimizer):
            self._links.refresh()
            with capture_lock:
                self._write_optim_state_dict_if_needed()
        else:
            with self._exclusive():
                self._device_optimizer.write_torch(self._optimizer)

    # Device --------------------------------------------------------------------------------------

    def isAttachedToDevice(self) -> bool:
        """Whether the program is on a device."""
        return self._is_attached

    def attachToDevice(self) -> None:
        """Put the program, its weights and its state on a device again."""
        assert self._options.connection_type != ConnectionType.Never, (
            "Trying to attach to an offline device"
        )
        with self._lock:
            if self._executable is None:
                raise createPoptorchError(_NOT_COMPILED)
            if self._is_attached:
                raise createPoptorchError("Device is already attached")
            self._links.refresh()
            with self._exclusive():
                self._on_device_attach()

    def detachFromDevice(self) -> None:
        """Take the program off its device, with weights and state back on the host."""
        with self._lock:
            if self._executable is None:
                raise createPoptorchError(_NOT_COMPILED)
            if not self._is_attached:
                raise createPoptorchError("Device is not attached")
            with self._exclusive():
                self._fetch_state()
                self._executable.ready = False
                self._is_attached = False

    def _on_device_attach(self) -> None:
        self._upload_weights()
        if self._device_optimizer is not None:
            settings = self._settings()
            self._device_optimizer.check(self._optimizer, settings)
            self._device_optimizer.forget()
            self._send(settings)
            optimizer = self._optimizer
            if isinstance(optimizer, PoptorchOptimizer) and optimizer.has_state():
                optimizer.host_state_is_dirty = True
            self._write_optim_state_dict_if_needed()
        if self._rng_words is not None:
            self._rng_to_device(self._rng_words)
        # Last: from now on other threads may run it.
        self._executable.ready = True
        self._is_attached = True

    # Random numbers ------------------------------------------------------------------------------

    def _rng_from_device(self) -> list[int] | None:
        if self._executable is None or self._seed is None:
            return None
        with self._exclusive():
            return [self._seed, *_rng_state.read_rng(self._executable.program)]

    def _rng_to_device(self, words: list[int]) -> None:
        with self._exclusive():
            self._seed = words[0]
            if len(words) == 1:
                _rng_state.seed_rng(self._executable.program, words[0])
            else:
                _rng_state.write_rng(self._executable.program, words[1:])

    @property
    def rng_state(self) -> list[int] | None:
        """The random state of the device: the seed, then 32-bit words."""
        if self._executable is None:
            raise createPoptorchError(_NOT_COMPILED)
        return self._rng_from_device() if self._is_attached else self._rng_words

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._rng_words = list(state)
        if self._executable is not None and self._is_attached:
            self._rng_to_device(self._rng_words)

    # The model behind ----------------------------------------------------------------------------

    @property
    def model(self) -> torch.nn.Module:
        """The user's model."""
        return self._user_model

    @property
    def options(self) -> Options:
        """This executor's own frozen copy of the options."""
        return self._options

    def __getattr__(self, attribute: str) -> Any:
        model = self.__dict__.get("_user_model")
        if model is None:
            raise AttributeError(attribute)
        if attribute in model._parameters and model._parameters[attribute] is not None:
            return ParameterProxy(self, attribute, model._parameters[attribute])
        try:
            return getattr(model, attribute)
        except AttributeError as error:
            if error.name not in (attribute, None):
                raise  # of a property, which exists
            known = [name for name in (*dir(type(self)), *dir(model)) if name[0] != "_"]
            meant = did_you_mean(attribute, known)
            raise AttributeError(
                f"{str(error).rstrip('.')}, nor has its executor.{meant}",
                name=attribute,
                obj=self,
            ) from None

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    def __reduce__(self) -> Any:
        """In another process it is a wrapper that has not been compiled, with these weights."""
        rng_state = self.rng_state if self._executable is not None else self._rng_words
        return (
            _restored,
            (self._user_model, self._options, self._training, self._optimizer, rng_state),
        )


def _restored(
    model: torch.nn.Module,
    options: Options,
    training: bool,
    optimizer: Any,
    rng_state: list[int] | None,
) -> PoplarExecutor:
    """An executor from a pickle."""
    if training:
        executor = trainingModel(model, options, optimizer)
    else:
        executor = inferenceModel(model, options)
    executor._rng_words = rng_state
    return executor


def _default_optimizer(model: torch.nn.Module) -> SGD:
    try:
        return SGD(model.parameters(), lr=0.01)
    except ValueError as error:
        error.add_note(
            f"{type(model).__name__} has no parameters to train. Layers in a Python list or dict "
            "are not part of a model: use torch.nn.ModuleList or torch.nn.ModuleDict."
        )
        raise


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


def _module_of(model: Any) -> torch.nn.Module:
    """The user's module; raises for what can't be wrapped."""
    module = model._user_model if isinstance(model, PoplarExecutor) else model
    if not isinstance(module, torch.nn.Module):
        advice = "call functions in the forward of one"
        if isinstance(module, type) and issubclass(module, torch.nn.Module):
            advice = f"pass an object, {module.__name__}(...), instead of the class"
        raise createPoptorchError(
            f"A model must be a torch.nn.Module, not {type(module).__name__}: {advice}"
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise createPoptorchError(
            "A scripted model can't be wrapped: wrap a torch.nn.Module whose forward calls it"
        )
    return module


def trainingModel(
    model: torch.nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap a model so that a call runs forward, backward and the weight update.

    Args:
        model: computes its loss in forward. While it is wrapped its class changes: reading its
            weights fetches the newest ones.
        options: how to compile and run it; frozen by this.
        optimizer: of ``poptorch.optim`` or ``torch.optim``; SGD with a rate of 0.01 if None.
    """
    module = _module_of(model)
    if _state.is_wrapped(module):
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call destroy() on that "
            "executor, or wrap the model for inference."
        )
    return PoplarExecutor(module, options, True, __version__, optimizer, module)


def inferenceModel(
    model: torch.nn.Module | PoplarExecutor, options: Options | None = None
) -> PoplarExecutor:
    """Wrap a model so that a call runs its forward.

    Args:
        model: a module, or an executor of one. If it is wrapped for training, newly trained
            weights are taken over before each call.
        options: how to compile and run it; frozen by this.
    """
    module = _module_of(model)
    executor = PoplarExecutor(_state.shallow_copy(module), options, False, __version__)
    executor._reminders.given = module
    return executor
