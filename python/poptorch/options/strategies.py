# SPDX-License-Identifier: Apache-2.0
"""Execution strategies: how blocks of a model become stages and phases, and on which IPUs."""

from collections.abc import Iterable
from typing import Any

from poptorch.base.suggest import no_member
from poptorch.enums import AutoStage, Liveness

BlockId = str


class Stage:
    """A group of blocks that run one after the other on one IPU."""

    def __init__(self, *block_ids: BlockId) -> None:
        for block in block_ids:
            assert isinstance(block, str), (
                f"Block IDs are supposed to be strings but got {type(block)}"
            )
        self._blocks = list(block_ids)
        self._stage_id = -1
        self._phase_id = -1
        self._ipu: int | None = None

    @property
    def blocks(self) -> list[BlockId]:
        """The ids of the blocks of this stage."""
        return self._blocks

    def ipu(self, ipu: int) -> "Stage":
        """Run this stage on IPU ``ipu``."""
        assert isinstance(ipu, int), f"Expected an IPU number, got {ipu!r}"
        self._ipu = ipu
        return self

    def __repr__(self) -> str:
        ipu = "" if self._ipu is None else f".ipu({self._ipu})"
        return f"Stage({', '.join(map(repr, self._blocks))}){ipu}"


class Phase:
    """Stages that run in parallel in one phase of phased execution."""

    def __init__(self, *arg: Any) -> None:
        if len(arg) == 1 and isinstance(arg[0], (list, tuple)):
            arg = tuple(arg[0])
        if all(isinstance(item, Stage) for item in arg):
            self.stages = list(arg)
        else:
            assert all(isinstance(item, str) for item in arg), (
                "All arguments must either be block IDs (strings) or Stages"
            )
            self.stages = [Stage(*arg)]

    def stage(self, idx: int) -> Stage:
        """The stage number ``idx``."""
        return self.stages[idx]

    def __repr__(self) -> str:
        return f"Phase({', '.join(map(repr, self.stages))})"

    def ipus(self, *ipus: int) -> "Phase":
        """Give each stage of the phase its IPU."""
        assert len(ipus) == len(self.stages), (
            f"Phase contains {len(self.stages)} stages but you provided {len(ipus)} ipus"
        )
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)
        return self


class _DefaultStageManager:
    """Stages of blocks that no strategy lists: numbered by their IPU or by their order."""

    def __init__(self, auto_stage: AutoStage) -> None:
        self._auto_stage = auto_stage
        self._stages: dict[BlockId, Stage] = {}
        self._next_id = 1

    def getStage(self, block_id: BlockId, ipu_id: int | None = None) -> Stage:
        """The stage of ``block_id``, made on its first use."""
        stage = self._stages.get(block_id)
        if stage is None:
            stage = Stage(block_id)
            if self._auto_stage == AutoStage.SameAsIpu:
                assert ipu_id is not None, (
                    "poptorch.AutoStage.SameAsIpu was selected but no IPU was specified for "
                    f"block {block_id}"
                )
                stage._stage_id = ipu_id
            else:
                stage._stage_id = self._next_id
                self._next_id += 1
            self._stages[block_id] = stage
        return stage


class _ListedStageManager:
    """Stages that the strategy lists."""

    def __init__(self, block_map: dict[BlockId, Stage]) -> None:
        self._block_map = block_map

    def getStage(self, block_id: BlockId, ipu_id: int | None = None) -> Stage:
        """The stage of ``block_id``."""
        assert block_id in self._block_map, (
            f"Unknown Block '{block_id}' list of expected Blocks: {list(self._block_map)}"
        )
        return self._block_map[block_id]


class _IExecutionStrategy:
    """What all strategies share: the map from block to stage, and reset before each capture."""

    def __init__(
        self,
        stages_manager: AutoStage | None = None,
        block_map: dict[BlockId, Stage] | None = None,
    ) -> None:
        self._auto_stage = stages_manager
        self._block_map = block_map or {}
        self.onStartTracing()

    def stage(self, block_id: BlockId) -> Stage:
        """The stage that lists ``block_id``."""
        assert block_id in self._block_map, f"Unknown block {block_id}"
        return self._block_map[block_id]

    def onStartTracing(self) -> None:
        """Forget the automatic stages of an earlier capture."""
        self._manager: Any = (
            _ListedStageManager(self._block_map)
            if self._auto_stage is None
            else _DefaultStageManager(self._auto_stage)
        )

    def onEndTracing(self) -> None:
        """Called after a capture."""

    def getStage(self, block_id: BlockId, ipu_id: int | None = None) -> tuple[int, int, int]:
        """(stage id, phase id, IPU) of a block that starts now."""
        stage = self._manager.getStage(block_id, ipu_id)
        ipu = stage._ipu if stage._ipu is not None else ipu_id
        return stage._stage_id, stage._phase_id, stage._stage_id if ipu is None else ipu

    def backendOptions(self) -> dict[str, Any]:
        """What the strategy adds to ``Options.toDict()``."""
        raise NotImplementedError

    #: The core's name of the strategy.
    _core = "one"

    def core_options(self) -> dict[str, Any]:
        """What the core is told of the strategy."""
        return {"strategy": self._core}

    def __repr__(self) -> str:
        # Complete, because it is part of the key of compiled programs.
        if self._auto_stage is not None:
            return (
                f"{type(self).__name__}({type(self._auto_stage).__name__}.{self._auto_stage.name})"
            )
        stages = dict.fromkeys(self._block_map.values())
        return f"{type(self).__name__}({', '.join(map(repr, stages))})"


def _add_stage(block_map: dict[BlockId, Stage], stage: Stage) -> None:
    for block in stage.blocks:
        assert block not in block_map, f"{block} associated with more than one stage"
        block_map[block] = stage


class PipelinedExecution(_IExecutionStrategy):
    """Stages of the model run as a pipeline over micro-batches. The default strategy.

    Args:
        args: nothing or one :class:`AutoStage`; or stages, each a :class:`Stage`, a block id or
            a list of block ids.
    """

    _mode = 0
    _core = "pipelined"

    def __init__(self, *args: Any) -> None:
        if len(args) == 1 and isinstance(args[0], AutoStage):
            super().__init__(args[0])
        elif not args:
            super().__init__(AutoStage.SameAsIpu)
        else:
            block_map: dict[BlockId, Stage] = {}
            for position, arg in enumerate(args):
                if isinstance(arg, AutoStage):
                    raise TypeError("An AutoStage can't be combined with other arguments")
                stage = _as_stage(arg)
                stage._stage_id = position
                _add_stage(block_map, stage)
            super().__init__(None, block_map)

    def backendOptions(self) -> dict[str, Any]:
        return {"execution_mode": self._mode}


class ShardedExecution(PipelinedExecution):
    """IPUs run one after the other, without pipelining."""

    _mode = 1
    _core = "sharded"


class _IPhasedExecution(_IExecutionStrategy):
    """Phases run one after the other; tensors may leave the chip between them."""

    _serial = True
    _core = "phased"

    def core_options(self) -> dict[str, Any]:
        return {
            **super().core_options(),
            "separate_backward": self._separate_backward_phase,
            "liveness": int(self._tensors_liveness),
        }

    def __init__(self, *phases: Any) -> None:
        assert phases, "There is currently no AutoStage for PhasedExecution"
        self._tensors_liveness = Liveness.AlwaysLive
        self._separate_backward_phase = False
        self._phases = [_as_phase(phase) for phase in phases]
        block_map: dict[BlockId, Stage] = {}
        next_stage = 0
        for number, phase in enumerate(self._phases):
            for stage in phase.stages:
                stage._phase_id = number
                stage._stage_id = next_stage
                next_stage += 1
                _add_stage(block_map, stage)
        super().__init__(None, block_map)

    def phase(self, phase: int) -> Phase:
        """The phase number ``phase``."""
        assert isinstance(phase, int) and phase >= 0, "Phases are identified by positive integers"
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> "_IPhasedExecution":
        """Whether the backward pass begins in a phase of its own."""
        self._separate_backward_phase = use
        return self

    def __repr__(self) -> str:
        rest = f"{self._tensors_liveness.name}, separate={self._separate_backward_phase}"
        return f"{type(self).__name__}({', '.join(map(repr, self._phases))}; {rest})"

    def backendOptions(self) -> dict[str, Any]:
        return {
            "execution_mode": 2,
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": int(self._tensors_liveness),
            "serial_phases_execution": self._serial,
        }


class ParallelPhasedExecution(_IPhasedExecution):
    """Phases alternate between two groups of IPUs."""

    _serial = False

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> "ParallelPhasedExecution":
        """Whether tensors leave the chip after the forward pass."""
        self._tensors_liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self


class SerialPhasedExecution(_IPhasedExecution):
    """All phases run on the same IPUs."""

    def setTensorsLiveness(self, liveness: Liveness) -> "SerialPhasedExecution":
        """How long tensors stay on chip."""
        assert isinstance(liveness, Liveness), no_member(Liveness, liveness)
        self._tensors_liveness = liveness
        return self


def _as_stage(arg: Any) -> Stage:
    if isinstance(arg, Stage):
        return arg
    if isinstance(arg, str):
        return Stage(arg)
    if isinstance(arg, Iterable):
        return Stage(*arg)
    raise TypeError(f"Expected a Stage, a block id or a list of block ids, got {arg!r}")


def _as_phase(arg: Any) -> Phase:
    if isinstance(arg, Phase):
        return arg
    if isinstance(arg, (str, Stage)):
        return Phase(arg)
    return Phase(*arg)
