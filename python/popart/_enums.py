# SPDX-License-Identifier: Apache-2.0
"""PopART's enumerations, with its members and their numbers."""

from enum import IntEnum


class AccumulateOuterFragmentSchedule(IntEnum):
    """How what follows the accumulation loop is ordered over virtual graphs."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class AutodiffStitchStrategy(IntEnum):
    """How a backward graph gets the forward values that it needs."""

    RecomputeMinimal = 0
    RecomputeAllNonInputs = 1
    AddFwdOutputs = 2
    SafeAddFwdOutputs = 3


class BatchSerializationBatchSchedule(IntEnum):
    """How the parts of a serialised batch are ordered."""

    Scheduler = 0
    Isomorphic = 1
    OverlapOnIo = 2
    OverlapOnCompute = 3


class BatchSerializationMethod(IntEnum):
    """How a batch is serialised."""

    UnrollDynamic = 0
    UnrollStatic = 1
    Loop = 2


class BatchSerializationTransformContext(IntEnum):
    """Whether batches are serialised before or after the backward graph is made."""

    Fwd = 0
    Bwd = 1


class ExecutionPhaseIOSchedule(IntEnum):
    """When the transfers of a phase happen."""

    Preload = 0
    OnDemand = 1


class ExecutionPhaseSchedule(IntEnum):
    """How the ops of a phase are ordered."""

    Interleaving = 0
    Batch = 1
    BatchClusteredIO = 2


class GradientTensorTrackingMethod(IntEnum):
    """Whose statistics automatic loss scaling follows."""

    AllNonViewChangingGradientTensors = 0
    ConvAndMatmulGradients = 1
    GradientsOfUserSpecifiedTensors = 2


class Instrumentation(IntEnum):
    """Which loop cycles are counted in."""

    Outer = 0
    Inner = 1


class MeanReductionStrategy(IntEnum):
    """When the division of a mean reduction happens."""

    Running = 0
    Post = 1


class MergeVarUpdateType(IntEnum):
    """Which updates of weights are merged into one op."""

    Off = 0
    All = 1
    AutoLoose = 2
    AutoTight = 3


class RecomputationType(IntEnum):
    """Which activations are computed again in the backward pass."""

    NoRecompute = 0
    Standard = 1
    NormOnly = 2
    Pipeline = 3
    RecomputeAll = 4


class ReductionType(IntEnum):
    """How values are reduced."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class ReplicatedTensorSharding(IntEnum):
    """Whether a tensor is shared out to replicas."""

    Off = 0
    On = 1


class SubgraphCopyingStrategy(IntEnum):
    """When the inputs and outputs of a subgraph are copied."""

    OnEnterAndExit = 0
    JustInTime = 1


class SyntheticDataMode(IntEnum):
    """What inputs are made of on the device instead of being transferred."""

    Off = 0
    Zeros = 1
    RandomNormal = 2
    RandomUniform = 3


class TensorStorage(IntEnum):
    """Where a tensor is stored."""

    OffChip = 0
    OnChip = 1


class VirtualGraphMode(IntEnum):
    """How ops are assigned to virtual graphs."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3
