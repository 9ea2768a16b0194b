# SPDX-License-Identifier: Apache-2.0
"""``Options`` and its sub-objects. Plain setters come from the rows of ``_options_table``; here are
the methods that set several values at once, loading from files, and freezing."""

import copy
import os
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch

from poptorch import strategies
from poptorch._logging import logger
from poptorch._options_impl import OptionsDict, option_setter
from poptorch._options_table import OPTIONS, Effect, partials_name
from poptorch._options_text import Refused, apply_json, apply_line
from poptorch._progress import ProgressBar
from poptorch._suggest import no_member
from poptorch.enums import (
    CommGroupType,
    ConnectionType,
    OutputMode,
    ReductionType,
)
from poptorch.strategies import PipelinedExecution, _IExecutionStrategy

__all__ = ["Attribute", "ConfigFileError", "Options", "TensorLocationSettings"]


class ConfigFileError(Exception):
    """A line of a file given to ``Options.loadFromFile`` is no valid Python."""


class _PopartOptions:
    """Options of the backend, kept by name and not checked."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {
            row.key: row.default for row in OPTIONS if row.backend and row.default is False
        }
        self._is_frozen = False

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Raise unless the object may still be modified."""
        if self._is_frozen:
            raise AttributeError("Can't modify frozen Options")

    def _freeze(self) -> None:
        self._is_frozen = True

    @option_setter
    def set(self, key: str, value: Any) -> "_PopartOptions":
        """Keep ``value`` under ``key``."""
        self.checkIsFrozen(key)
        assert isinstance(key, str), f"Expected the name of an option, got {key!r}"
        if key == "logDir":
            logger.warning("_Popart.set('logDir', ...) is ignored: use Options.logDir instead")
            return self
        # Members of PopART's enumerations are numbers: the stored form has no need of their module.
        self.options[key] = int(value) if isinstance(value, IntEnum) else value
        return self

    @option_setter
    def setEngineOptions(self, engine_options: dict[str, str]) -> "_PopartOptions":
        """Replace the engine options."""
        assert isinstance(engine_options, dict), (
            f"Expected a dict of engine options, got {engine_options!r}"
        )
        return self.set("engineOptions", engine_options)

    @option_setter
    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> "_PopartOptions":
        """Keep which rewrite patterns are switched on or off."""
        assert isinstance(patterns, dict), f"Expected a dict of patterns, got {patterns!r}"
        assert isinstance(level, int), f"Expected an int as level, got {level!r}"
        self.set("patterns", patterns)
        return self.set("patterns_level", level)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_PopartOptions":
        result = _PopartOptions()
        memo[id(self)] = result
        result.options = copy.deepcopy(self.options, memo)
        return result

    def __repr__(self) -> str:
        return repr(self.options)


class _BackendOptions(OptionsDict):
    """A sub-object whose values are partly kept among the backend options."""

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__()
        object.__setattr__(self, "_backend", popart_options)

    def _merge_convolution_option(self, key: str, value: str) -> None:
        self.checkIsFrozen(key)
        current = self._backend.options.get("convolutionOptions", {})
        self._backend.set("convolutionOptions", {**current, key: value})


class _JitOptions(OptionsDict):
    """Kept for old programs: there is one way to capture a model."""

    section = "Jit"

    @option_setter
    def traceModel(self, trace_model: bool) -> "_JitOptions":
        """Changes nothing: PopTorch up to 3.0 had two ways to capture a model, here is one."""
        assert isinstance(trace_model, bool), f"traceModel needs a bool, got {trace_model!r}"
        self.checkIsFrozen("traceModel")
        logger.warning("Jit.traceModel is deprecated and has no effect")
        return self


class _PrecisionOptions(_BackendOptions):
    """Options about number formats."""

    section = "Precision"

    @option_setter
    def setPartialsType(self, dtype: torch.dtype) -> "_PrecisionOptions":
        """The type in which matmuls and convolutions accumulate: torch.float or torch.half."""
        name = partials_name(dtype)
        self.checkIsFrozen("setPartialsType")
        self._backend.set("partialsTypeMatMuls", name)
        self._merge_convolution_option("partialsType", name)
        return self

    @option_setter
    def runningVarianceAlwaysFloat(self, value: bool) -> "_PrecisionOptions":
        """The name of ``runningStatisticsAlwaysFloat`` up to PopTorch 2.1."""
        return self.runningStatisticsAlwaysFloat(value)


class _TrainingOptions(_BackendOptions):
    """Options that only training models use."""

    section = "Training"

    @option_setter
    def setConvolutionDithering(self, enabled: bool) -> "_TrainingOptions":
        """Tile layout hint; recorded, no effect on virtual IPUs."""
        self._merge_convolution_option("enableConvDithering", "true" if enabled else "false")
        return self

    @option_setter
    def accumulationReductionType(self, reduction_type: ReductionType) -> "_TrainingOptions":
        """The name of ``accumulationAndReplicationReductionType`` up to PopTorch 2.1."""
        return self.accumulationAndReplicationReductionType(reduction_type)


class _DistributedOptions(OptionsDict):
    """How many processes train together, and which of them this is."""

    section = "Distributed"

    def __init__(self) -> None:
        super().__init__()
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    @option_setter
    def disable(self) -> "_DistributedOptions":
        """Use one process."""
        return self.configureProcessId(0, 1)

    @option_setter
    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> "_DistributedOptions":
        """Read the process count and index from these environment variables."""
        return self.configureProcessId(
            _environment_number(var_process_id, 0), _environment_number(var_num_processes, 1)
        )

    @option_setter
    def configureProcessId(self, process_id: int, num_processes: int) -> "_DistributedOptions":
        """Set the process count and the index of this process."""
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        """Index of this process."""
        return self.distributed_process_id

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return self.num_distributed_processes


class TensorLocationSettings(OptionsDict):
    """Where a kind of tensor is stored: on chip, in streaming memory, shared out to replicas."""

    section = "TensorLocationSettings"

    @option_setter
    def useOnChipStorage(self, use: bool | None = True) -> "TensorLocationSettings":
        """Keep the tensors on chip; None removes the setting."""
        if use is None:
            self.deleteIfExists("onChip")
            return self
        assert isinstance(use, bool), f"Expected a bool or None, got {use!r}"
        self.createOrSet(onChip=int(use))
        return self


class _TensorLocationOptions(OptionsDict):
    """Where weights, activations and optimizer state are stored."""

    section = "TensorLocations"


_SUB_OBJECTS = {
    "TensorLocations": "_tensor_locations",
    "Distributed": "_distributed",
    "Jit": "_jit",
    "Precision": "_graphProcessing",
    "Training": "_training",
    "_Popart": "_popart",
}


class Options(OptionsDict):
    """How a model is compiled and run.

    Setters return the object, so that they can be chained. Passing the options to a model or a
    loader freezes them; change a copy made with :meth:`clone`.
    """

    section = "Options"

    def __init__(self) -> None:
        super().__init__(_execution_strategy=PipelinedExecution())
        popart = _PopartOptions()
        parts: dict[str, Any] = {
            "_popart": popart,
            "_backend": popart,
            "_jit": _JitOptions(),
            "_graphProcessing": _PrecisionOptions(popart),
            "_training": _TrainingOptions(popart),
            "_distributed": _DistributedOptions(),
            "_tensor_locations": _TensorLocationOptions(),
        }
        for name, part in parts.items():
            object.__setattr__(self, name, part)

        path = os.environ.get("POPTORCH_CACHE_DIR", "")
        if path:
            logger.info("POPTORCH_CACHE_DIR is set: executables are cached in %s", path)
            self.enableExecutableCaching(path)
        defaults = os.environ.get("POPTORCH_DEFAULT_OPTIONS")
        if defaults:
            try:
                self.from_json(defaults)
            except Exception as exc:
                exc.add_note("The options are those of the variable POPTORCH_DEFAULT_OPTIONS.")
                raise

    # Sub-objects ---------------------------------------------------------------------------------

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Where tensors are stored."""
        return self._tensor_locations

    @property
    def Distributed(self) -> _DistributedOptions:
        """How many processes train together."""
        return self._distributed

    @property
    def Jit(self) -> _JitOptions:
        """Kept for old programs."""
        return self._jit

    @property
    def Precision(self) -> _PrecisionOptions:
        """Number formats."""
        return self._graphProcessing

    @property
    def Training(self) -> _TrainingOptions:
        """Options that only training models use."""
        return self._training

    @property
    def _Popart(self) -> _PopartOptions:
        """Options of the backend."""
        return self._popart

    # Setters of several values -------------------------------------------------------------------

    @option_setter
    def setExecutionStrategy(self, strategy: _IExecutionStrategy) -> "Options":
        """How the parts of the model are scheduled over IPUs."""
        assert isinstance(strategy, _IExecutionStrategy), (
            f"Expected an execution strategy such as poptorch.PipelinedExecution, got {strategy!r}"
        )
        self.checkIsFrozen("_execution_strategy")
        self._values["_execution_strategy"] = strategy
        return self

    @option_setter
    def inputReplicaGrouping(
        self, input_group_size: int, input_group_type: CommGroupType
    ) -> "Options":
        """Let groups of replicas read the same inputs; call ``replicationFactor`` first.

        Args:
            input_group_size: replicas in a group.
            input_group_type: which replicas form a group.
        """
        assert isinstance(input_group_size, int), f"Expected an int, got {input_group_size!r}"
        if input_group_type == CommGroupType.All:
            raise ValueError("input_group_type cannot be All")
        if input_group_type == CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, CommGroupType.Consecutive
        if input_group_size < 1:
            raise ValueError(f"input_group_size must be positive, not {input_group_size}")
        if input_group_size > self.replication_factor:
            raise ValueError(
                f"input_group_size cannot be larger than the replication factor "
                f"({input_group_size} > {self.replication_factor})"
            )
        if self.replication_factor % input_group_size:
            raise ValueError(
                f"input_group_size must be a factor of the replication factor "
                f"({input_group_size} does not divide {self.replication_factor})"
            )
        self.set(input_group_size=input_group_size, input_cgt=input_group_type)
        return self

    @option_setter
    def outputMode(
        self, output_mode: OutputMode, output_return_period: int | None = None
    ) -> "Options":
        """Which outputs of a call are returned.

        Args:
            output_mode: All, Final, Sum, EveryN or Default (Final for training, All otherwise).
            output_return_period: for EveryN, one device iteration in this many is returned.
        """
        assert isinstance(output_mode, OutputMode), no_member(OutputMode, output_mode)
        if output_mode == OutputMode.EveryN:
            assert isinstance(output_return_period, int) and output_return_period > 0, (
                "EveryN anchor must have output_return_period set to valid positive integer"
            )
        elif output_return_period:
            logger.info("output_return_period is only used by OutputMode.EveryN: ignored")
        period = output_return_period if output_mode == OutputMode.EveryN else 1
        self.set(output_mode=output_mode, output_return_period=period)
        return self

    def defaultOutputMode(self) -> bool:
        """Whether the output mode is still to be chosen when a model is wrapped."""
        return self.output_mode == OutputMode.Default

    @option_setter
    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> None:
        """Ask for an internal tensor to be returned after each call.

        Args:
            short_name: the name given to ``getAnchoredTensor``.
            long_name: the name of the tensor in the program.
            output_mode: the model's mode if None.
            output_return_period: period of EveryN.
        """
        for name in (short_name, long_name):
            assert isinstance(name, str), f"Expected the name of a tensor, got {name!r}"
        model_mode = output_mode is None
        assert model_mode or isinstance(output_mode, OutputMode), (
            f"Expected a poptorch.OutputMode, got {output_mode!r}"
        )
        mode = self.output_mode if output_mode is None else int(output_mode)
        period = 1
        if mode == OutputMode.EveryN:
            period = self.output_return_period if model_mode else output_return_period
        self.anchored_tensors[short_name] = [long_name, model_mode, mode, period]

    @option_setter
    def useOfflineIpuTarget(self, ipu_version: int = 2) -> "Options":
        """Compile only: never attach to a device."""
        self.connectionType(ConnectionType.Never)
        self.createOrSet(ipu_version=ipu_version)
        return self

    @option_setter
    def randomSeed(self, random_seed: int) -> "Options":
        """Seed the random numbers of the device, and PyTorch's on the host."""
        self.createOrSet(random_seed=random_seed)
        torch.manual_seed(self.random_seed)
        return self

    @option_setter
    def enableExecutableCaching(self, path: str | None) -> "Options":
        """Keep compiled programs in directory ``path``; None turns caching off."""
        self.checkIsFrozen("enableExecutableCaching")
        if path is None:
            self._popart.set("enableEngineCaching", False)
        else:
            cache = _path(path)
            self._popart.set("enableEngineCaching", True)
            self._popart.set("cachePath", cache)
        return self

    @option_setter
    def enableProfiling(self, profile_dir: str | None = None) -> "Options":
        """Write a profile of compilation and runs to ``profile_dir`` (default: here)."""
        self.checkIsFrozen("enableProfiling")
        chosen = {
            "debug.allowOutOfMemory": "true",
            "autoReport.all": "true",
            "autoReport.directory": _path(profile_dir or "."),
        }
        environment = os.environ.get("POPLAR_ENGINE_OPTIONS", "")
        for key in chosen:
            if key in environment:
                logger.warning(
                    "Profiling setting overridden by environment variable: %s in %s",
                    key,
                    "POPLAR_ENGINE_OPTIONS",
                )
        engine = dict(self._popart.options.get("engineOptions", {}))
        self._popart.setEngineOptions({**engine, **chosen})
        return self

    @option_setter
    def disableModuleNamescope(self) -> "Options":
        """Do not prefix the names of ops with the path of their module."""
        self.set(_module_namescope_enabled=False)
        return self

    @option_setter
    def appendToLocationExcludes(self, *excludes: str) -> "Options":
        """Add fragments of paths that are hidden from reported source locations."""
        return self.sourceLocationExcludes([*self._source_location_excludes, *excludes])

    # Older names ---------------------------------------------------------------------------------

    @option_setter
    def anchorMode(
        self, anchor_mode: OutputMode, anchor_return_period: int | None = None
    ) -> "Options":
        """The name of :meth:`outputMode` up to PopTorch 2.4."""
        return self.outputMode(anchor_mode, anchor_return_period)

    def defaultAnchorMode(self) -> bool:
        """The name of :meth:`defaultOutputMode` up to PopTorch 2.4."""
        return self.defaultOutputMode()

    @property
    def Popart(self) -> _PopartOptions:
        """The name of ``_Popart`` up to PopTorch 2.0."""
        return self._popart

    # Loading -------------------------------------------------------------------------------------

    def loadFromFile(self, filepath: str) -> "Options":
        """Apply the lines of a file, each a call on the options without the ``options.``.

        Empty lines and lines that begin with ``#`` are skipped. Arguments are plain values, members
        of PopTorch's enumerations, strategies and location settings; nothing else is evaluated.
        """
        for number, raw in enumerate(_lines(filepath), 1):
            line = raw.strip()
            if not line or line.startswith("#"):
                continue
            try:
                apply_line(self, line, str(filepath))
            except (SyntaxError, Refused) as exc:
                kind = "SyntaxError" if isinstance(exc, SyntaxError) else "Error"
                text = exc.msg if isinstance(exc, SyntaxError) else exc
                raise ConfigFileError(
                    f"{kind} at line {number} of {filepath}: {text}\n> {line}"
                ) from exc
        return self

    def from_json(self, string: str) -> "Options":
        """Apply a JSON object whose keys are setters (``"Training.gradientAccumulation"``).

        A list is passed as the positional arguments, anything else as the one argument;
        ``"EnumName.Member"`` stands for that member.
        """
        apply_json(self, string)
        return self

    # Serialising ---------------------------------------------------------------------------------

    def toDict(self) -> dict[str, Any]:
        """All values as one flat dict."""
        assert not self.defaultOutputMode(), "An output mode must be picked before serialisation"
        result = self._execution_strategy.backendOptions()
        clash = sorted(result.keys() & self._popart.options.keys())
        assert not clash, f"Can't merge dictionaries: {clash} would be defined twice"
        result = {**result, **self._popart.options}
        for part in (super(), self._training, self._distributed, self._tensor_locations):
            result = part.update(result)
        if self._show_compilation_progress_bar:
            result["compilation_progress_bar_fn"] = _progress_function()
        return result

    def program_key(self) -> dict[str, Any]:
        """The values that decide what is compiled: the options' part of a cache key."""
        key: dict[str, Any] = {"strategy": repr(self._execution_strategy)}
        if "autoRecomputation" in self._popart.options:
            key["autoRecomputation"] = self._popart.options["autoRecomputation"]
        for row in OPTIONS:
            # Location settings are values of the tensor locations.
            if row.effect is not Effect.PROGRAM or row.section == "TensorLocationSettings":
                continue
            part = self if row.section == "Options" else getattr(self, row.section)
            store = self._popart.options if row.backend else part._values
            if row.key in store:
                key[f"{row.section}.{row.key}"] = repr(store[row.key])
        return key

    def clone(self) -> "Options":
        """An unfrozen deep copy."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Options":
        result = super().__deepcopy__(memo)
        for name in _SUB_OBJECTS.values():
            part = result.__dict__[name]
            object.__setattr__(part, "_is_frozen", False)
        return result

    def _freeze(self) -> None:
        super()._freeze()
        for name in _SUB_OBJECTS.values():
            self.__dict__[name]._freeze()

    def __repr__(self) -> str:
        values = [f"{key}={value!r}" for key, value in self._public().items()]
        parts = [f"{name}={self.__dict__[attr]!r}" for name, attr in _SUB_OBJECTS.items()]
        return f"Options({', '.join(values + parts)})"


class Attribute:
    """Sets backend attributes on the ops captured inside; recorded, no effect on virtual IPUs."""

    _active: dict[str, dict[str, Any]] = {}

    def __init__(self, **kwargs: dict[str, Any]) -> None:
        self._attributes = kwargs
        self._saved: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> "Attribute":
        self._saved = Attribute._active
        Attribute._active = {**self._saved, **self._attributes}
        return self

    def __exit__(self, *exc: object) -> None:
        Attribute._active = self._saved


def _path(path: str | os.PathLike[str]) -> str:
    assert isinstance(path, (str, os.PathLike)), f"Expected a path, got {path!r}"
    return os.fspath(path)


def _environment_number(variable: str, default: int) -> int:
    assert isinstance(variable, str), f"Expected the name of a variable, got {variable!r}"
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"The environment variable {variable} must be a number, not {text!r}"
        ) from None


def _lines(filepath: str) -> list[str]:
    try:
        with open(filepath, encoding="utf-8") as file:
            return file.readlines()
    except UnicodeDecodeError as exc:
        raise ConfigFileError(f"{filepath} is no text file: {exc}") from exc


def _progress_function() -> Callable[[int, int], None]:
    bar: list[ProgressBar] = []

    def progress(done: int, total: int) -> None:
        if not bar:
            bar.append(ProgressBar(True))
        bar[0](done, total)

    return progress


# The strategies belong to the options in the manual, so they are reachable from here as well.
BlockId = strategies.BlockId
_DefaultStageManager = strategies._DefaultStageManager
_IPhasedExecution = strategies._IPhasedExecution
