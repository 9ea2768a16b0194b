# SPDX-License-Identifier: Apache-2.0
"""The names of PopART that PopTorch programs use: enumerations, whose members are values for
``Options._Popart.set``, and the version. PopART's own API is not part of this package."""

import sys
from enum import IntEnum
from typing import Any, NoReturn

from popart._enums import (
    AccumulateOuterFragmentSchedule,
    AutodiffStitchStrategy,
    BatchSerializationBatchSchedule,
    BatchSerializationMethod,
    BatchSerializationTransformContext,
    ExecutionPhaseIOSchedule,
    ExecutionPhaseSchedule,
    GradientTensorTrackingMethod,
    Instrumentation,
    MeanReductionStrategy,
    MergeVarUpdateType,
    RecomputationType,
    ReductionType,
    ReplicatedTensorSharding,
    SubgraphCopyingStrategy,
    SyntheticDataMode,
    TensorStorage,
    VirtualGraphMode,
)

__all__ = [
    "AccumulateOuterFragmentSchedule",
    "AnchorReturnType",
    "AutodiffStitchStrategy",
    "BatchSerializationBatchSchedule",
    "BatchSerializationMethod",
    "BatchSerializationTransformContext",
    "ExecutionPhaseIOSchedule",
    "ExecutionPhaseSchedule",
    "GradientTensorTrackingMethod",
    "Instrumentation",
    "MeanReductionStrategy",
    "MergeVarUpdateType",
    "RecomputationType",
    "ReductionType",
    "ReplicatedTensorSharding",
    "SubgraphCopyingStrategy",
    "SyntheticDataMode",
    "TensorStorage",
    "VirtualGraphMode",
    "versionString",
]

# The release whose names these are, then the version of this project.
__version__ = "3.4.0+tessera0.1.0"


def versionString() -> str:
    """The version of PopART that this package stands for."""
    return __version__


class AnchorReturnType:
    """Which values of a tensor are returned: ``AnchorReturnType("EveryN", 2)``.

    Args:
        anchorReturnTypeString: "Final", "EveryN", "All" or "Sum".
        returnPeriod: of EveryN.
    """

    class _Id(IntEnum):
        Final = 0
        EveryN = 1
        All = 2
        Sum = 3

    def __init__(self, anchorReturnTypeString: str, returnPeriod: int = 0) -> None:
        names = {name.lower(): member for name, member in self._Id.__members__.items()}
        text = str(anchorReturnTypeString).lower()
        if text not in names:
            raise ValueError(
                f"AnchorReturnType is one of {', '.join(self._Id.__members__)}, "
                f"not {anchorReturnTypeString!r}"
            )
        self._id = names[text]
        every = self._id is self._Id.EveryN
        if every and returnPeriod < 1:
            raise ValueError(f"The period of EveryN must be positive, not {returnPeriod}")
        if not every and returnPeriod:
            raise ValueError(f"{self._id.name} takes no period")
        self._period = returnPeriod

    def id(self) -> IntEnum:
        """The kind: 0 Final, 1 EveryN, 2 All, 3 Sum."""
        return self._id

    def rp(self) -> int:
        """The period of EveryN."""
        return self._period

    def __int__(self) -> int:
        return int(self._id)

    def __repr__(self) -> str:
        period = f", {self._period}" if self._period else ""
        return f"AnchorReturnType({self._id.name!r}{period})"


def _not_part_of_this(name: str) -> str:
    return (
        f"{name}: PopART's own API is not part of this package, which runs PopTorch programs "
        f"without PopART. It has only the names that these programs use: {', '.join(__all__)}."
    )


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(_not_part_of_this(f"popart.{name}"), name=name)


class _Submodules:
    """The last finder: says why ``import popart.ir`` and ``from popart import Builder`` fail."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.startswith("popart."):
            # Without the name of the module, or `from popart import` would go on without the text.
            raise ModuleNotFoundError(_not_part_of_this(name))


sys.meta_path.append(_Submodules())
