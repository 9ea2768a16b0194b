# SPDX-License-Identifier: Apache-2.0
"""The enumerations of the public API, with the values programs may have stored as integers."""

from enum import Enum, IntEnum

__all__ = [
    "AnchorMode",
    "AutoStage",
    "CommGroupType",
    "ConnectionType",
    "DataLoaderMode",
    "HalfFloatCastingBehavior",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "OutputMode",
    "OverlapMode",
    "ReductionType",
    "SharingStrategy",
    "SyncPattern",
    "VariableRetrievalMode",
]


class OutputMode(IntEnum):
    """Which of the outputs of one call are returned to the host.

    ``Default`` becomes ``Final`` for training and ``All`` for inference when a model is wrapped.
    """

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4


#: The name up to PopTorch 2.4.
AnchorMode = OutputMode


class ReductionType(IntEnum):
    """How gradients are reduced over accumulation steps and replicas."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(IntEnum):
    """When the division of a mean reduction happens."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class DataLoaderMode(IntEnum):
    """Where :class:`poptorch.DataLoader` prepares batches."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(IntEnum):
    """How the dataset reaches the worker process of an asynchronous loader."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class ConnectionType(IntEnum):
    """When an executor attaches to its devices."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(IntEnum):
    """Synchronisation pattern of a multi-IPU program; recorded only."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class CommGroupType(IntEnum):
    """How replicas are divided into groups."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(IntEnum):
    """Which copies of a grouped parameter are read back."""

    OnePerGroup = 0
    AllReplicas = 2


class AutoStage(IntEnum):
    """How blocks become pipeline stages when no stages are listed."""

    SameAsIpu = 0
    AutoIncrement = 1


class Liveness(IntEnum):
    """How long tensors stay on chip in phased execution."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class HalfFloatCastingBehavior(IntEnum):
    """What an op with operands of float16 and float32 does: compute in float16, or follow
    PyTorch, which computes most in float32. The default is the first."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class MultiConvPlanType(IntEnum):
    """How the convolutions of a ``MultiConv`` scope are planned."""

    Parallel = 0
    Serial = 1


class MatMulSerializationMode(Enum):
    """Which dimension ``serializedMatMul`` cuts."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class OverlapMode(Enum):
    """How far host I/O may overlap with computation."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"
