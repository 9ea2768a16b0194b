# SPDX-License-Identifier: Apache-2.0
"""Rules for blocks and for the number of IPUs, checked when a model is compiled. Every error names
the block and the user's line."""

from typing import Any

import torch

from poptorch.base.device import number_of_ipus
from poptorch.base.errors import CPP_ERROR_TYPE, Error
from poptorch.base.logging import logger
from poptorch.capture.errors import describe
from poptorch.compiling.batching import Batching
from poptorch.enums import ConnectionType, Liveness, OutputMode
from poptorch.ops.blocks import Begin, annotations
from poptorch.options import Options
from poptorch.options.check import uses_ipu_model
from poptorch.options.strategies import (
    ParallelPhasedExecution,
    PipelinedExecution,
    ShardedExecution,
)

_LARGEST = 64  # IPUs of one process
# PopART's defaults, in elements.


def check_placement(
    model: torch.nn.Module,
    options: Options,
    batching: Batching,
    training: bool,
    begun: list[Begin],
    captured: Any,
) -> int:
    """Raise if the blocks of a captured model can't be placed; returns how many IPUs to reserve."""
    strategy = options._execution_strategy
    pipelined = type(strategy) is PipelinedExecution
    _check_used(model, training, begun)
    _check_written_order(begun)
    _check_membership(captured)
    _check_parallel_phases(strategy, begun)
    if isinstance(strategy, ShardedExecution):
        _check_shared_weights(captured)
    if pipelined:
        _check_stage_order(captured)
        _check_pipeline(_stages(begun), batching, training)
    reserved = _check_count(options, _ipus(begun) * batching.replicas)
    if captured.overlapped is not None:
        _check_overlap(options, batching, pipelined, captured.overlapped)
    return reserved


def _error(text: str, where: tuple[str, int] = ("", 0), kind: str = CPP_ERROR_TYPE) -> Error:
    file, line = where
    if not file:
        return Error(text, type=kind)
    return Error(f"{text}\n  at {describe(where)}", type=kind, location=f"{file}:{line}")


def _name(tag: Any) -> str:
    return f"Block {tag.block!r}" if tag.block else "the ops before the first Block"


def _check_used(model: torch.nn.Module, training: bool, begun: list[Begin]) -> None:
    """Warn of parts that have a block and are not called: the block does not begin.

    Programs have them on purpose too, such as an embedding whose weight is read without a call.
    Inference leaves out losses, which have no weights.
    """
    ran = {id(block.by) for block in begun}
    for name, module, block in annotations(model):
        if id(block) in ran or not (training or next(module.parameters(), None) is not None):
            continue
        logger.warning(
            "Block %r was given to %s (%s), which never runs in forward: the block does not begin, "
            "and what reads the weights belongs to the block in which it runs.\n  at %s",
            block._user_id or name,
            name or "the model",
            type(module).__name__,
            describe(block._where),
        )


def _check_written_order(begun: list[Begin]) -> None:
    """Where the model's layers A, B run in this order, BeginBlock was called for A first."""
    earlier: list[Begin] = []
    for block in begun:
        if not hasattr(block.by, "_order") or any(block.by is other.by for other in earlier):
            continue
        for other in earlier:
            if other.by._order > block.by._order and other.stage != block.stage:
                raise _error(
                    f"Block {other.block!r} runs before Block {block.block!r}, but its BeginBlock "
                    "was written after: write BeginBlock in the order in which layers run.\n"
                    f"  Block {block.block!r} at {describe(block.by._where)}",
                    other.by._where,
                )
        earlier.append(block)


def _check_membership(captured: Any) -> None:
    for op in captured.placed:
        if op.tag is not None and op.tag.block is None:
            raise _error(
                "No active Block, all the ops must belong to a Block: this op runs after a Block "
                "was left and before the next one begins.",
                op.tag[:2],
            )
    for tag in captured.dead_blocks.values():
        raise _error(
            f"{_name(tag)} has no op that the results of the model or its loss need: remove unused "
            "layers from blocks.",
            tag[:2],
        )


def _check_stage_order(captured: Any) -> None:
    for op in captured.placed:
        if op.tag is None or op.tag.backward:
            continue
        for index in op.operands:
            before = captured.placed[index].tag
            if before is not None and not before.backward and before.stage > op.tag.stage:
                raise _error(
                    f"{_name(op.tag)} is in pipeline stage {op.tag.stage} but needs the result of "
                    f"{_name(before)} in stage {before.stage}: stages must ascend in the order in "
                    "which blocks run. Use poptorch.AutoStage.AutoIncrement, or list the stages in "
                    f"poptorch.PipelinedExecution.\n  {_name(before)} at {describe(before[:2])}",
                    op.tag[:2],
                )


def _check_shared_weights(captured: Any) -> None:
    users: dict[str, Any] = {}
    for op in captured.placed:
        if op.tag is None or op.tag.backward:
            continue
        for name in op.weights:
            first = users.setdefault(name, op.tag)
            if first.ipu != op.tag.ipu:
                raise _error(
                    f"{name} is used by {_name(first)} on IPU {first.ipu} and by {_name(op.tag)} "
                    f"on IPU {op.tag.ipu}: layers that share weights must be on the same IPU in "
                    f"poptorch.ShardedExecution.\n  {_name(first)} at {describe(first[:2])}",
                    op.tag[:2],
                )


def _check_parallel_phases(strategy: Any, begun: list[Begin]) -> None:
    if not isinstance(strategy, ParallelPhasedExecution):
        return
    if strategy._tensors_liveness not in (Liveness.AlwaysLive, Liveness.OffChipAfterFwd):
        raise _error(
            f"poptorch.Liveness.{strategy._tensors_liveness.name}: This is only supported for "
            "serial phase execution"
        )
    for block in begun:
        if block.phase % 2 != block.ipu % 2:
            raise _error(
                f"Block {block.block!r} of phase {block.phase} is on IPU {block.ipu}: even phases "
                "must run on even IPUs and odd phases on odd IPUs",
                block.where,
            )


def _stages(begun: list[Begin]) -> int:
    """Stages of a pipeline: one more than the changes of IPU in the order of execution."""
    stages, ipu = 1, 0
    for block in begun:
        stages += block.ipu != ipu
        ipu = block.ipu
    return stages


def _check_pipeline(stages: int, batching: Batching, training: bool) -> None:
    if training:
        need, have, name = 2 * stages - 1, batching.accumulation, "gradientAccumulation"
        detail = f"{stages} forward and {stages - 1} backward"
    else:
        need, have, name = stages, batching.iterations, "deviceIterations"
        detail = f"{stages}"
    if have < need:
        raise _error(
            f"{name} must be greater than or equal to the number of pipeline stages ({need}: "
            f"{detail}), but is {have}"
        )
    if stages > 1 and batching.mode == OutputMode.EveryN:
        raise _error(
            "AnchorReturnType::EVERYN is not valid for pipelined models", kind="popart_exception"
        )


def _check_overlap(
    options: Options, batching: Batching, pipelined: bool, where: tuple[str, int]
) -> None:
    if pipelined:
        raise _error(
            "Overlapped IO is not supported with poptorch.PipelinedExecution. Set another one with "
            "poptorch.Options().setExecutionStrategy, e.g. poptorch.ShardedExecution().",
            where,
        )
    if not options.TensorLocations._values.get("numIOTiles"):
        raise _error(
            "No IO tiles allocated. Allocate some with "
            "poptorch.Options().TensorLocations.numIOTiles().",
            where,
        )
    if batching.mode not in (OutputMode.All, OutputMode.Sum):
        raise _error(
            "Unsupported output mode for overlapped IO: use poptorch.OutputMode.All or Sum, not "
            f"{batching.mode.name}.",
            where,
        )


def _ipus(begun: list[Begin]) -> int:
    ids = {block.ipu for block in begun} or {0}
    return max(len(ids), max(ids) + 1)


def _check_count(options: Options, total: int) -> int:
    offline = options.connection_type == ConnectionType.Never or uses_ipu_model(options)
    if total > _LARGEST:
        raise _error(
            f"Too many IPUs requested ({total}). Experiments that need more than {_LARGEST} IPUs "
            "need several processes"
        )
    reserved = 1 << (total - 1).bit_length()
    if reserved != total and not offline:
        if not options.auto_round_num_ipus:
            raise _error(
                f"The model specifies the use of {total} IPUs, however PopTorch must reserve a "
                f"minimum of {reserved}: IPUs are reserved in powers of two. Annotate the "
                "model for another number of IPUs, or let the rest be idle with "
                "poptorch.Options().autoRoundNumIPUs(True)."
            )
        logger.warning(
            "Reserving %d IPUs when the model specifices the use of only %d: the others are idle.",
            reserved,
            total,
        )
        total = reserved
    limit = number_of_ipus()
    if total > limit and not offline:
        raise _error(
            f"Failed to acquire {total} IPU(s): the partition has {limit}. Set the environment "
            f"variable TESSERA_IPUS={total} to enlarge it."
        )
    return total
