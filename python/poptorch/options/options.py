# SPDX-License-Identifier: Apache-2.0
"""``Options``. Plain setters come from the rows of ``table``; here are the methods that set several
values at once, loading from texts, copying and freezing."""

import copy
import os
from typing import Any, Self

import torch

from poptorch.base.logging import logger
from poptorch.base.naming import found_in
from poptorch.base.progress import progress_function
from poptorch.base.suggest import no_member
from poptorch.enums import CommGroupType, ConnectionType, OutputMode
from poptorch.options.backend import _PopartOptions
from poptorch.options.sections import (
    _DistributedOptions,
    _JitOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)
from poptorch.options.storage import OptionsDict, option_setter
from poptorch.options.strategies import PipelinedExecution, _IExecutionStrategy
from poptorch.options.table import OPTIONS, Effect
from poptorch.options.text import apply_file, apply_json

_SUB_OBJECTS = {
    "TensorLocations": "_tensor_locations",
    "Distributed": "_distributed",
    "Jit": "_jit",
    "Precision": "_graphProcessing",
    "Training": "_training",
    "_Popart": "_popart",
}


@found_in("poptorch.options")
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
        period: int | None = 1
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
        apply_file(self, filepath)
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
        result = super().update(result)
        for part in (self._training, self._distributed, self._tensor_locations):
            result = part.update(result)
        if self._show_compilation_progress_bar:
            result["compilation_progress_bar_fn"] = progress_function()
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
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


def _path(path: str | os.PathLike[str]) -> str:
    assert isinstance(path, (str, os.PathLike)), f"Expected a path, got {path!r}"
    return os.fspath(path)
