# SPDX-License-Identifier: Apache-2.0
"""The keys that ``Options._Popart.set`` may be given, by the type of their value, checked when a
model is compiled. Programs set them to tune PopART: most of them change nothing on virtual IPUs, as
the log of a compilation says of those that are set."""

from typing import Any

from poptorch.base.errors import CPP_ERROR_TYPE, Error
from poptorch.options.table import OPTIONS, Effect

#: key -> (name of its enumeration, number of members); the value is a member's index.
ENUMS = {
    "accumulationAndReplicationReductionType": ("ReductionType", 3),
    "autoRecomputation": ("RecomputationType", 5),
    "autodiffSettings.stitchStrategy": ("AutodiffStitchStrategy", 4),
    "automaticLossScalingSettings.gradientTensorTrackingMethod": (
        "GradientTensorTrackingMethod",
        3,
    ),
    "batchSerializationSettings.batchSchedule": ("BatchSerializationBatchSchedule", 4),
    "batchSerializationSettings.method": ("BatchSerializationMethod", 3),
    "batchSerializationSettings.transformContext": ("BatchSerializationTransformContext", 2),
    "meanAccumulationAndReplicationReductionStrategy": ("MeanReductionStrategy", 2),
    "mergeVarUpdate": ("MergeVarUpdateType", 4),
    "subgraphCopyingStrategy": ("SubgraphCopyingStrategy", 2),
    "syntheticDataMode": ("SyntheticDataMode", 4),
    "virtualGraphMode": ("VirtualGraphMode", 4),
}

KEYS = {
    "bool": """
        aliasZeroCopy auto_round_num_ipus automaticLossScalingSettings.enabled
        batchSerializationSettings.concatOnExecutionPhaseChange
        batchSerializationSettings.concatOnPipelineStageChange
        batchSerializationSettings.concatOnVirtualGraphChange broadcast_buffers compileEngine
        constantWeights decomposeGradSum delayVarUpdates disableGradAccumulationTensorStreams
        disableOptimizerStateTensorStreams dotOpNames enableDistributedReplicatedGraphs
        enableEngineCaching enableExplicitIR enableExplicitMainLoops enableFloatingPointChecks
        enableFullyConnectedPass enableGradientAccumulation enableInplaceAmbiguityChecking
        enableLoadAndOffloadRNGState enableMergeExchange enableNonStableSoftmax enableOutlining
        enableOutliningCopyCostPruning enablePipelining enablePrefetchDatastreams
        enableReplicatedGraphs enableSerializedMatmuls enableStableNorm enableStochasticRounding
        enableSupportedDataTypeCasting ensureFp32LossScaleTensor explicitRecomputation
        exportPoplarComputationGraph exportPoplarVertexGraph groupHostSync
        groupNormStridedChannelGrouping instrumentWithHardwareCycleCounter opxAliasChecking
        opxModifyChecking rearrangeAnchorsOnHost rearrangeStreamsOnHost
        replicatedCollectivesSettings.mergeAllReduceCollectives
        replicatedCollectivesSettings.prepareScheduleForMergingCollectives
        scheduleNonWeightUpdateGradientConsumersEarly separateCallOpPdfs separate_backward_phase
        serial_phases_execution strictOpVersions useHostCopyOps use_model
    """,
    "uint64": """
        accumulateOuterFragmentSettings.schedule accumulationFactor
        accumulation_and_replication_reduction_type automaticLossScalingSettings.updatePeriod
        batchSerializationSettings.factor compilationProgressTotal connection_type
        defaultBufferingDepth defaultPrefetchBufferingDepth device_iterations
        distributed_process_id executionPhaseSettings.phases executionPhaseSettings.stages
        execution_mode finalDotOp firstDotOp globalReplicaOffset globalReplicationFactor
        gradient_accumulation input_cgt input_group_size ipu_id ipu_version looseThresholdAtPeak
        max_repeat_logs mergeVarUpdateMemThreshold numIOTiles num_distributed_processes
        output_mode output_return_period random_seed replication_factor swapLimitScheduler
        sync_pattern tensors_liveness transitiveClosureOptimizationThreshold
    """,
    "floating point": """
        automaticLossScalingSettings.binEdgeLocation
        automaticLossScalingSettings.thresholdUpperCountProportion outlineSequenceBreakCost
        outlineThreshold timeLimitScheduler
    """,
    "string": """
        cachePath customCodeletCompileFlags kahnTieBreaker logDir log_dir model_name
        partialsTypeMatMuls saveInitializersToFile serializedPoprithmsShiftGraphsDir
    """,
    "map": """
        convolutionOptions engineOptions gclOptions lstmOptions matmulOptions reportOptions
    """,
    "set / vector": """
        accumulateOuterFragmentSettings.excludedVirtualGraphs customCodelets dotChecks
        hardwareInstrumentations updatableNamedBuffers
    """,
}
_KNOWN = {kind: frozenset(keys.split()) for kind, keys in KEYS.items()}

#: Keys that do what they say, beside those of rows of the options table.
EFFECTS = {
    "autoRecomputation": "0 keeps the activations of pipelines, other values recompute them; 1 and "
    "4 also recompute what lies between tensors of recomputationCheckpoint, on any IPU"
}

#: Set by every program from other options, which decide.
CHOSEN = frozenset(
    "accumulationFactor enableDistributedReplicatedGraphs enableGradientAccumulation "
    "enablePipelining enableReplicatedGraphs globalReplicaOffset globalReplicationFactor "
    "virtualGraphMode".split()
)


def _kind(value: Any) -> str:
    """The group of keys that take such a value; a bool is no number."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "uint64"
    if isinstance(value, float):
        return "floating point"
    if isinstance(value, str):
        return "string"
    return "map" if isinstance(value, dict) else "set / vector"


def without_effect(backend: dict[str, Any]) -> list[str]:
    """The keys among those that are set which change nothing."""
    rows = {row.key: row for row in OPTIONS if row.backend}
    return sorted(
        key
        for key, value in backend.items()
        if key not in EFFECTS
        and (key not in rows or rows[key].effect is Effect.RECORDED)
        and not (key in rows and value == rows[key].default)
    )


def check_key(key: str, value: Any) -> None:
    """Raise if PopART would not know ``key`` with a value of this type."""
    if key in ("patterns", "patterns_level"):
        return
    group = _kind(value)
    if group == "uint64" and key in ENUMS:
        name, count = ENUMS[key]
        if not 0 <= value < count:
            raise Error(f"Value for {name} out of range: {value}", type=CPP_ERROR_TYPE)
    elif key not in _KNOWN[group]:
        raise Error(f"Unknown {group} option {key}", type=CPP_ERROR_TYPE)
