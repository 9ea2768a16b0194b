# SPDX-License-Identifier: Apache-2.0
"""One option = one row. Setter, check, documentation, repr and cache key come from the row; an
option that takes several values at once has rows for them and a method in ``options.py``."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from poptorch.enums import (
    CommGroupType,
    ConnectionType,
    HalfFloatCastingBehavior,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
    SyncPattern,
)


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"

    def __copy__(self) -> "_Unset":
        return self

    def __deepcopy__(self, memo: Any) -> "_Unset":
        return self


UNSET = _Unset()


class Effect(Enum):
    """What an option changes; only the first kind is part of the key of a compiled program."""

    PROGRAM = "changes the compiled program"
    HOST = "changes what the host does, not the compiled program"
    RECORDED = "recorded, no effect on virtual IPUs"


@dataclass(frozen=True)
class Option:
    """A row: where the value is stored, how it is set and checked, and what it changes."""

    section: str
    key: str
    effect: Effect
    doc: str
    #: UNSET: the key exists only once it has been set.
    default: Any = UNSET
    #: Name of the generated method; empty when the value is set by a method in options.py.
    setter: str = ""
    argument: str = ""
    argument_default: Any = UNSET
    #: Takes the value, raises if it is wrong, returns what to store.
    check: Callable[[Any], Any] | None = None
    #: The setter takes a member of this; an int is stored, the form that programs read back.
    enum: type[Enum] | None = None
    #: Stored among the backend options (``_Popart``) under ``key``.
    backend: bool = False
    #: What is still missing for the option to do what it says; a model compiled with it warns.
    pending: str = ""
    #: Whether a value asks for what is pending.
    is_missed: Callable[[Any], bool] = bool
    #: The method of options.py that sets the value, if it has no setter of its own.
    method: str = ""

    @property
    def shown_setter(self) -> str:
        """The method that sets the value; the key if there is none."""
        return self.setter or self.method or self.key


# Checks -------------------------------------------------------------------------------------------


def instance_of(kind: type) -> Callable[[Any], Any]:
    """An instance of ``kind``."""

    def check(value: Any) -> Any:
        assert isinstance(value, kind), f"Expected {kind.__name__}, got {value!r}"
        return value

    return check


def _reduction(value: Any) -> Any:
    if value not in (ReductionType.Mean, ReductionType.Sum) or not isinstance(value, ReductionType):
        raise ValueError(
            "accumulationAndReplicationReductionType must be set to "
            "poptorch.ReductionType.Mean or poptorch.ReductionType.Sum"
        )
    return value


def _bool_named(what: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        assert isinstance(value, bool), f"{what} needs to be set to a bool, got {value!r}"
        return value

    return check


def _switch(value: Any) -> bool:
    assert isinstance(value, int), f"Expected a bool, got {value!r}"
    return bool(value)


def _texts(value: Any) -> list[str]:
    plain = isinstance(value, (list, tuple, set, frozenset))
    assert plain and all(isinstance(item, str) for item in value), (
        f"Expected a list of strings, got {value!r}"
    )
    return list(value)


def _seed(value: Any) -> int:
    assert isinstance(value, int), f"Expected an int as seed, got {value!r}"
    assert -(2**63) <= value < 2**64, f"A seed has 64 bits, {value} has more"
    return int(value)


def _repeat_limit(value: Any) -> int:
    return 2**64 - 1 if value is None else value


def _memory_proportions(value: dict[Any, float]) -> dict[int, float]:
    assert isinstance(value, dict), f'Expected a dict such as {{"IPU0": 0.5}}, got {value!r}'
    result = {}
    for key, proportion in value.items():
        assert isinstance(proportion, (int, float)), f"Expected a number, got {proportion!r}"
        if isinstance(key, int):
            result[key] = proportion
            continue
        text = str(key)
        assert text.startswith("IPU") and text[3:].isdigit(), (
            f"Invalid key: {key}. Keys are IPU followed by a number, such as IPU0."
        )
        result[int(text[3:])] = proportion
    return result


def _values_read(value: Any) -> str:
    if value not in ("freeze", "check", "error"):
        raise ValueError(f'valuesReadInForward needs "freeze", "check" or "error", got {value!r}')
    return value


def _io_tiles(value: int) -> int:
    assert isinstance(value, int) and 32 <= value <= 192 and value % 2 == 0, (
        "numIOTiles must be an even number between 32 and 192."
    )
    return value


def _location(value: Any) -> dict[str, Any]:
    # A dict is the stored form; the settings object knows how to become one.
    if not isinstance(value, dict):
        assert hasattr(value, "minElementsForOffChip"), (
            f"Expected a poptorch.TensorLocationSettings, got {value!r}"
        )
        return value.toDict()
    rows = {row.key: row for row in OPTIONS if row.section == "TensorLocationSettings"}
    unknown = sorted(str(key) for key in value if key not in rows)
    assert not unknown, f"poptorch.TensorLocationSettings has no {', '.join(unknown)}"
    return {key: rows[key].check(setting) for key, setting in value.items()}


def partials_name(dtype: Any) -> str:
    """The backend's word for an accumulation type."""
    if dtype not in (torch.float, torch.half):
        raise ValueError("parameter to setPartialsType should be torch.float or torch.half")
    return "half" if dtype == torch.half else "float"


def _autocast_enabled(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"autocastEnabled needs a bool, got {value!r}")
    return value


def _running_statistics(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"runningStatisticsAlwaysFloat needs a bool, got {value!r}")
    return value


def _half_float_casting(value: Any) -> HalfFloatCastingBehavior:
    if not isinstance(value, HalfFloatCastingBehavior):
        raise ValueError(f"halfFloatCasting needs a HalfFloatCastingBehavior, got {value!r}")
    return value


def _autocast_policy(value: Any) -> Any:
    from poptorch.autocasting import Policy

    if not isinstance(value, Policy):
        raise ValueError(f"autocastPolicy needs a poptorch.autocasting.Policy, got {value!r}")
    return value


def _synthetic_mode(enabled: Any) -> int:
    return 2 if _switch(enabled) else 0


P, H, R = Effect.PROGRAM, Effect.HOST, Effect.RECORDED

OPTIONS: tuple[Option, ...] = (
    # General -------------------------------------------------------------------------------------
    Option(
        "Options",
        "replication_factor",
        P,
        "Number of copies of the model in this process.",
        default=1,
        setter="replicationFactor",
    ),
    Option(
        "Options",
        "input_group_size",
        P,
        "How many replicas share one slice of the inputs.",
        default=1,
        method="inputReplicaGrouping",
    ),
    Option(
        "Options",
        "input_cgt",
        P,
        "Which replicas share one slice of the inputs.",
        default=CommGroupType.Consecutive,
        method="inputReplicaGrouping",
    ),
    Option(
        "Options",
        "broadcast_buffers",
        P,
        "Whether all replicas hold one common value of each buffer.",
        default=True,
        setter="broadcastBuffers",
        argument_default=True,
    ),
    Option(
        "Options",
        "device_iterations",
        P,
        "Steps run on the device per call before control returns to the host.",
        default=1,
        setter="deviceIterations",
    ),
    Option(
        "Options",
        "log_dir",
        R,
        "Where log files of the backend go.",
        default=".",
        setter="logDir",
    ),
    Option(
        "Options",
        "max_repeat_logs",
        H,
        "How often one log line may be repeated; None for no limit.",
        default=4,
        setter="maxRepeatLogs",
        argument="max_lines",
        check=_repeat_limit,
    ),
    Option(
        "Options",
        "auto_round_num_ipus",
        H,
        "Allow reserving the next power of two of IPUs.",
        default=False,
        setter="autoRoundNumIPUs",
        argument_default=True,
    ),
    Option(
        "Options",
        "anchored_tensors",
        P,
        "Internal tensors that are returned after each call.",
        default={},
        method="anchorTensor",
    ),
    Option(
        "Options",
        "output_mode",
        P,
        "Which outputs of a call are returned.",
        default=int(OutputMode.Default),
        enum=OutputMode,
        method="outputMode",
    ),
    Option(
        "Options",
        "output_return_period",
        P,
        "The period of OutputMode.EveryN.",
        default=1,
        method="outputMode",
    ),
    Option(
        "Options",
        "connection_type",
        H,
        "When the executor attaches to its devices.",
        default=int(ConnectionType.Always),
        setter="connectionType",
        enum=ConnectionType,
    ),
    Option(
        "Options",
        "sync_pattern",
        R,
        "Synchronisation pattern between IPUs.",
        default=int(SyncPattern.Full),
        setter="syncPattern",
        enum=SyncPattern,
    ),
    Option(
        "Options",
        "available_memory_proportion",
        R,
        'Share of tile memory that large ops may use as scratch, per IPU: `{"IPU0": 0.5}`.',
        default={},
        setter="setAvailableMemoryProportion",
        check=_memory_proportions,
    ),
    Option(
        "Options",
        "model_name",
        H,
        "Name of the model in reports.",
        setter="modelName",
        argument="name",
        check=instance_of(str),
    ),
    Option(
        "Options",
        "use_model",
        H,
        "Target the IPU Model; overrides the environment variable POPTORCH_IPU_MODEL.",
        setter="useIpuModel",
        check=instance_of(bool),
    ),
    Option(
        "Options",
        "ipu_id",
        R,
        "Use the IPU device with this id.",
        setter="useIpuId",
        check=instance_of(int),
    ),
    Option(
        "Options",
        "ipu_version",
        H,
        "Version of the IPU that is compiled for.",
        check=instance_of(int),
        method="useOfflineIpuTarget",
    ),
    Option(
        "Options",
        "random_seed",
        H,
        "Seed of the random numbers drawn on the device.",
        check=_seed,
        method="randomSeed",
    ),
    Option(
        "Options",
        "_values_read_in_forward",
        P,
        "What happens when forward reads the value of a tensor, as `.item()` and `if tensor` do: "
        '"freeze" computes it from the first inputs and freezes the program to it, with a warning; '
        '"check" also raises an error for a call that has another value; "error" refuses it.',
        default="freeze",
        setter="valuesReadInForward",
        argument="mode",
        check=_values_read,
    ),
    Option(
        "Options",
        "updatableNamedBuffers",
        H,
        "Buffers that copyNamedBuffersToDevice may refresh alone.",
        setter="updatableNamedBuffers",
        argument="buffers",
        check=_texts,
        backend=True,
    ),
    Option(
        "Options",
        "_relax_optimizer_checks",
        H,
        "Report unexpected optimizer attributes at debug level instead of as warnings.",
        default=False,
        setter="relaxOptimizerAttributesChecks",
        argument="relax",
        argument_default=True,
    ),
    Option(
        "Options",
        "_show_compilation_progress_bar",
        H,
        "Show the progress of a compilation.",
        default=True,
        setter="showCompilationProgressBar",
        argument="show",
        argument_default=True,
    ),
    Option(
        "Options",
        "_module_namescope_enabled",
        H,
        "Prefix the names of ops with the path of their module.",
        default=True,
        method="disableModuleNamescope",
    ),
    Option(
        "Options",
        "_source_location_excludes",
        H,
        "Fragments of paths that are hidden from reported source locations.",
        default=["install/poptorch", "site-packages/torch", "site-packages/poptorch"],
        setter="sourceLocationExcludes",
        argument="excludes",
        check=_texts,
    ),
    Option(
        "Options",
        "enableStableNorm",
        R,
        "Slower, more accurate normalisation; ours is always the accurate one.",
        setter="enableStableNorm",
        argument="enabled",
        check=_switch,
        backend=True,
    ),
    Option(
        "Options",
        "syntheticDataMode",
        H,
        "Generate inputs on the device instead of transferring them.",
        setter="enableSyntheticData",
        argument="enabled",
        check=_synthetic_mode,
        backend=True,
        pending="the inputs of the call are used",
    ),
    Option(
        "Options",
        "instrumentWithHardwareCycleCounter",
        H,
        "Measure the cycles of a call; needed by cycleCount().",
        default=False,
        setter="logCycleCount",
        argument="log_cycle_count",
        check=_switch,
        backend=True,
    ),
    Option(
        "Options",
        "rearrangeAnchorsOnHost",
        R,
        "Rearrange outputs on the host instead of on the device.",
        default=False,
        backend=True,
    ),
    Option(
        "Options",
        "enableEngineCaching",
        H,
        "Keep compiled programs in a directory and use them again.",
        method="enableExecutableCaching",
        backend=True,
        pending="every program is compiled anew",
    ),
    Option(
        "Options",
        "cachePath",
        H,
        "The directory of compiled programs.",
        method="enableExecutableCaching",
        backend=True,
    ),
    Option(
        "Options",
        "engineOptions",
        H,
        "Engine options, among them those of profiling.",
        method="enableProfiling",
        backend=True,
        pending="no reports are written",
        is_missed=lambda engine: any(str(key).startswith("autoReport.") for key in engine or ()),
    ),
    # Training ------------------------------------------------------------------------------------
    Option(
        "Training",
        "gradient_accumulation",
        P,
        "Micro-batches whose gradients are accumulated before one weight update.",
        default=1,
        setter="gradientAccumulation",
    ),
    Option(
        "Training",
        "accumulation_and_replication_reduction_type",
        P,
        "Whether gradients are summed or averaged over accumulation steps and replicas.",
        default=ReductionType.Mean,
        setter="accumulationAndReplicationReductionType",
        argument="reduction_type",
        check=_reduction,
    ),
    Option(
        "Training",
        "meanAccumulationAndReplicationReductionStrategy",
        P,
        "When the division of a mean reduction happens.",
        default=MeanReductionStrategy.Post,
        setter="setMeanAccumulationAndReplicationReductionStrategy",
        argument="mean_reduction_strategy",
    ),
    Option(
        "Training",
        "automaticLossScalingSettings.enabled",
        P,
        "Let the device adjust the loss scale during training.",
        setter="setAutomaticLossScaling",
        argument="enabled",
        check=_switch,
        backend=True,
    ),
    # Precision -----------------------------------------------------------------------------------
    Option(
        "Precision",
        "enableFloatingPointChecks",
        P,
        "Fail a run that computes a NaN, an overflow or a division by zero.",
        setter="enableFloatingPointExceptions",
        argument="enabled",
        check=_bool_named("enableFloatingPointExceptions"),
        backend=True,
    ),
    Option(
        "Precision",
        "enableStochasticRounding",
        P,
        "Round to float16 at random, keeping the expectation.",
        setter="enableStochasticRounding",
        argument="enabled",
        check=_bool_named("enableStochasticRounding"),
        backend=True,
    ),
    Option(
        "Precision",
        "partialsTypeMatMuls",
        P,
        "The type in which matrix products accumulate.",
        method="setPartialsType",
        backend=True,
    ),
    Option(
        "Precision",
        "convolutionOptions",
        P,
        "The type in which convolutions accumulate, and hints about their layout.",
        method="setPartialsType",
        backend=True,
    ),
    Option(
        "Precision",
        "autocast_enabled",
        P,
        "Whether regions marked by poptorch.autocast are cast.",
        default=True,
        setter="autocastEnabled",
        check=_autocast_enabled,
    ),
    Option(
        "Precision",
        "autocast_policy",
        P,
        "Which ops are cast to which type in such regions; poptorch.autocasting.default if unset.",
        setter="autocastPolicy",
        check=_autocast_policy,
    ),
    Option(
        "Precision",
        "half_float_casting",
        P,
        "The type of an op whose operands are float16 and float32: float16, or with "
        "HalfUpcastToFloat what PyTorch chooses.",
        default=HalfFloatCastingBehavior.FloatDowncastToHalf,
        setter="halfFloatCasting",
        argument="half_float_casting",
        check=_half_float_casting,
    ),
    Option(
        "Precision",
        "running_statistics_always_float",
        P,
        "Whether the program keeps running statistics in float32 when the model has them in half "
        "precision.",
        default=True,
        setter="runningStatisticsAlwaysFloat",
        argument="value",
        check=_running_statistics,
    ),
    # Tensor locations ----------------------------------------------------------------------------
    Option(
        "TensorLocations",
        "numIOTiles",
        R,
        "Tiles set aside for I/O.",
        setter="numIOTiles",
        argument="num_tiles",
        check=_io_tiles,
    ),
    Option(
        "TensorLocations",
        "location_activation",
        P,
        "Where activations are stored.",
        setter="setActivationLocation",
        argument="location",
        check=_location,
    ),
    Option(
        "TensorLocations",
        "location_weight",
        P,
        "Where weights are stored.",
        setter="setWeightLocation",
        argument="location",
        check=_location,
    ),
    Option(
        "TensorLocations",
        "location_optimizer",
        P,
        "Where optimizer state is stored.",
        setter="setOptimizerLocation",
        argument="location",
        check=_location,
    ),
    Option(
        "TensorLocations",
        "location_accumulator",
        P,
        "Where gradient accumulators are stored.",
        setter="setAccumulatorLocation",
        argument="location",
        check=_location,
    ),
    # Distributed ---------------------------------------------------------------------------------
    Option(
        "Distributed",
        "num_distributed_processes",
        P,
        "Number of processes; training needs 1 so far.",
        default=1,
        method="configureProcessId",
    ),
    Option(
        "Distributed",
        "distributed_process_id",
        H,
        "Index of this process.",
        default=0,
        method="configureProcessId",
    ),
    Option("Distributed", "ipuof_configs", R, "Partition configurations.", default={}),
    # Backend -------------------------------------------------------------------------------------
    Option(
        "_Popart",
        "patterns",
        R,
        "Which rewrite patterns are on or off.",
        method="setPatterns",
        backend=True,
    ),
    Option(
        "_Popart",
        "patterns_level",
        R,
        "Which patterns are on by default.",
        method="setPatterns",
        backend=True,
    ),
    # Location settings ---------------------------------------------------------------------------
    Option(
        "TensorLocationSettings",
        "minElementsForOffChip",
        P,
        "Smaller tensors stay on chip.",
        setter="minElementsForOffChip",
        argument="min_elements",
        check=instance_of(int),
    ),
    Option(
        "TensorLocationSettings",
        "minElementsForReplicatedTensorSharding",
        P,
        "Smaller tensors are not sharded over replicas.",
        setter="minElementsForReplicatedTensorSharding",
        argument="min_elements",
        check=instance_of(int),
    ),
    Option(
        "TensorLocationSettings",
        "onChip",
        P,
        "Keep the tensors on chip.",
        method="useOnChipStorage",
        check=lambda use: int(instance_of(int)(use)),
    ),
    Option(
        "TensorLocationSettings",
        "useReplicatedTensorSharding",
        P,
        "Shard the tensors over replicas.",
        setter="useReplicatedTensorSharding",
        argument="use",
        argument_default=True,
        check=lambda use: int(instance_of(int)(use)),
    ),
    Option(
        "TensorLocationSettings",
        "useIOTilesToLoad",
        R,
        "Load through I/O tiles.",
        setter="useIOTilesToLoad",
        argument="use",
        argument_default=True,
        check=lambda use: int(instance_of(int)(use)),
    ),
    Option(
        "TensorLocationSettings",
        "useIOTilesToStore",
        R,
        "Store through I/O tiles.",
        setter="useIOTilesToStore",
        argument="use",
        argument_default=True,
        check=lambda use: int(instance_of(int)(use)),
    ),
)
