# SPDX-License-Identifier: Apache-2.0
"""The enumerations of the public API, with the values programs may have stored as integers."""

from enum import Enum, EnumMeta, IntEnum
from typing import Any

from poptorch.base.suggest import did_you_mean

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


class _Members(EnumMeta):
    """Names the member that was meant."""

    def __getattr__(cls, name: str) -> Any:
        members = cls.__dict__.get("_member_map_", {})
        if name in members:
            return members[name]
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"poptorch.{cls.__name__} has no member {name}, only {', '.join(members)}."
            f"{did_you_mean(name, members)}"
        )


class OutputMode(IntEnum, metaclass=_Members):
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


class ReductionType(IntEnum, metaclass=_Members):
    """How gradients are reduced over accumulation steps and replicas."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(IntEnum, metaclass=_Members):
    """When the division of a mean reduction happens."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class DataLoaderMode(IntEnum, metaclass=_Members):
    """Where :class:`poptorch.DataLoader` prepares batches."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(IntEnum, metaclass=_Members):
    """How the dataset reaches the worker process of an asynchronous loader."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class ConnectionType(IntEnum, metaclass=_Members):
    """When an executor attaches to its devices."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(IntEnum, metaclass=_Members):
    """Synchronisation pattern of a multi-IPU program; recorded only."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class CommGroupType(IntEnum, metaclass=_Members):
    """How replicas are divided into groups."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(IntEnum, metaclass=_Members):
    """Which copies of a grouped parameter are read back."""

    OnePerGroup = 0
    AllReplicas = 2


class AutoStage(IntEnum, metaclass=_Members):
    """How blocks become pipeline stages when no stages are listed."""

    SameAsIpu = 0
    AutoIncrement = 1


class Liveness(IntEnum, metaclass=_Members):
    """How long tensors stay on chip in phased execution."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class HalfFloatCastingBehavior(IntEnum, metaclass=_Members):
    """What an op with operands of float16 and float32 does: compute in float16, or follow
    PyTorch, which computes most in float32. The default is the first."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class MultiConvPlanType(IntEnum, metaclass=_Members):
    """How the convolutions of a ``MultiConv`` scope are planned."""

    Parallel = 0
    Serial = 1


class MatMulSerializationMode(Enum, metaclass=_Members):
    """Which dimension ``serializedMatMul`` cuts."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class OverlapMode(Enum, metaclass=_Members):
    """How far host I/O may overlap with computation."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"
