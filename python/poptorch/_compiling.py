# SPDX-License-Identifier: Apache-2.0
"""From a model, its options and its optimizer to a program: capture, checks, the core's options."""

import json
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from poptorch import _core, _logging, _state, autocasting
from poptorch._batching import Batching
from poptorch._blocks import placing
from poptorch._cpu_ops import collecting
from poptorch._errors import Error, createPoptorchError, raise_core_error
from poptorch._hooks import around_capture
from poptorch._host_calls import bind_host_calls
from poptorch._inspection import Anchor, anchors_of
from poptorch._logging import logger
from poptorch._memory import address, check_memory
from poptorch._optimizer_table import Settings
from poptorch._optimizers import optimizer_lines
from poptorch._placement import check_placement, location_options
from poptorch._replica_groups import Grouping, group_sizes, one_group, warn_if_unused
from poptorch.capture import capture
from poptorch.capture.casting import Casting
from poptorch.capture.errors import excluding
from poptorch.capture.state import lock as capture_lock
from poptorch.enums import (
    HalfFloatCastingBehavior,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
)
from poptorch.options import Options


class Parameters:
    """Parameters of a model by identity: their names, and their values in the captured graph."""

    def __init__(self, model: torch.nn.Module, captured: Any) -> None:
        self._names = {id(tensor): name for name, tensor in model.named_parameters()}
        self._used = {id(info.tensor): info for info in captured.params}

    def name_of(self, parameter: torch.Tensor) -> str:
        """Its name; KeyError if it is not the model's."""
        info = self._used.get(id(parameter))
        return self._names[id(parameter)] if info is None else info.name

    def value_of(self, parameter: torch.Tensor) -> str | None:
        """Its value in the text; None if the loss does not depend on it."""
        name = self._names.get(id(parameter))
        if name is None:
            raise KeyError(
                f"A parameter of the optimizer, of shape {list(parameter.shape)}, does not belong "
                "to the model"
            )
        info = self._used.get(id(parameter))
        return info.value if info is not None and info.trainable else None


@dataclass
class Compiled:
    """A program, and what is needed to call it."""

    program: Any
    captured: Any
    rules: list[tuple[OutputMode, int]]
    anchors: list[Anchor]
    parameters: Parameters


@collecting()
def compile_model(
    model: torch.nn.Module,
    micro: Any,
    options: Options,
    batching: Batching,
    groupings: dict[str, Grouping],
    optimizer: Any,
    settings: Settings | None,
    bar: Any,
) -> Compiled:
    """Compile ``model`` for arguments like ``micro``, those of one micro-batch.

    Args:
        model: the module to capture.
        micro: bound arguments with the shapes of one micro-batch.
        options: how to compile it.
        batching: how many micro-batches a call holds.
        groupings: parameters that have a value per group of replicas.
        optimizer: the one whose update is part of the program.
        settings: how the optimizer is written; None for inference.
        bar: told what has been done.
    """
    training = settings is not None
    with capture_lock:
        groups = group_sizes(groupings, model, batching.replicas)
    with (
        capture_lock,
        around_capture(),
        placing(options._execution_strategy) as begun,
        excluding(options._source_location_excludes),
        _state.plain_tensors(model),
        one_group(model, groups) as standins,
    ):
        captured = capture(
            model,
            micro.args,
            micro.kwargs,
            training=training,
            native_ops=_native_ops(),
            name="training" if training else "inference",
            loss_scaling=training and settings.scales_loss,
            module_scopes=options._module_namescope_enabled,
            casting=_casting(options.Precision),
            progress=bar.capture,
            values_read=options._values_read_in_forward,
        )
    bar.capture(1)
    for info in captured.params:
        if id(info.tensor) in standins:
            info.tensor = standins[id(info.tensor)][1]
    for info in (*captured.params, *captured.buffers):
        check_memory(info.tensor, info.name)
    warn_if_unused(groupings, captured)
    with capture_lock:
        check_placement(model, options, batching, training, begun, captured)
        _check_buffers(model, options, captured, batching)
        parameters = Parameters(model, captured)
    states = {name for info in (*captured.params, *captured.buffers) for name in info.all_names}
    anchors = anchors_of(options, batching, states)
    rules = _output_rules(captured, batching, anchors)
    text = captured.text
    if training:
        text = captured.with_optimizer(optimizer_lines(optimizer, settings, parameters.value_of))
    if _logging.shows_ir:
        logger.debug("The captured model:\n%s", text)
    blobs = {name: t.contiguous() for name, t in captured.constants.items()}
    what = "A tensor that forward uses, and that is neither an argument nor part of the model,"
    constants = {name: (address(blob, what), blob.nbytes) for name, blob in blobs.items()}
    try:
        core_options = _core_options(options, training, batching, rules, anchors, groups)
        program = _core.compile(text, core_options, constants, bar.core)
    except _core.Error as exc:
        raise_core_error(exc)
    bind_host_calls(program)
    return Compiled(program, captured, rules, anchors, parameters)


def _check_buffers(
    model: torch.nn.Module, options: Options, captured: Any, batching: Batching
) -> None:
    """Raise if replicas would change buffers that are meant to be equal on all of them."""
    if not options.broadcast_buffers or batching.replicas == batching.group_size:
        return
    exempt = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, torch.nn.modules.batchnorm._NormBase)
        for name, _ in module.named_buffers(recurse=False)
    }
    for info in captured.buffers:
        if info.updated and not exempt.intersection(info.all_names):
            raise createPoptorchError(
                f"PopTorch does not support broadcasting buffers: {info.name} is changed by "
                "the model and would differ between replicas. If each replica may keep its own "
                "copy, set Options.broadcastBuffers(False)."
            )


def _core_options(
    options: Options,
    training: bool,
    batching: Batching,
    rules: list[tuple[OutputMode, int]],
    anchors: list[Anchor],
    groups: dict[str, tuple[int, bool]],
) -> str:
    reduction, strategy = ReductionType.Mean, MeanReductionStrategy.Post
    if training:
        reduction = options.Training.accumulation_and_replication_reduction_type
        strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
        if strategy == MeanReductionStrategy.PostAndLoss:
            raise Error(
                "Value for MeanReductionStrategy out of range: PostAndLoss does not exist any "
                "more, use Post.",
                type="popart_exception",
            )
    return json.dumps(
        {
            **batching.core_options(reduction, rules),
            "grouped": [(name, *group) for name, group in groups.items()],
            "anchors": [a.name for a in anchors if not a.is_state],
            "running_mean": strategy == MeanReductionStrategy.Running,
            **options._execution_strategy.core_options(),
            **location_options(options),
            # PopART's enumeration has 0 for "no recomputation".
            "recompute": options._Popart.options.get("autoRecomputation") != 0,
            **_precision_options(options._Popart.options),
            "threads": _thread_count(),
            "seed": options.random_seed if options.exists("random_seed") else 0,
            "training": training,
        }
    )


def _output_rules(
    captured: Any, batching: Batching, anchors: list[Anchor]
) -> list[tuple[OutputMode, int]]:
    """What is returned of each output: the model's, inputs changed in place, checks, anchors."""
    rules = [(batching.mode, batching.period)] * len(captured.outputs)
    first = len(captured.outputs) - len(captured.checks)
    for index in (*(i for _, i in captured.input_writebacks), *range(first, len(rules))):
        rules[index] = (OutputMode.All, 1)
    return rules + [(a.mode, a.period) for a in anchors if not a.is_state]


_team_process: int | None = None


def _thread_count() -> int:
    """As many as torch uses; one in a forked child, which has none of its parent's threads."""
    global _team_process
    if _team_process is None:
        _team_process = os.getpid()
    return torch.get_num_threads() if _team_process == os.getpid() else 1


def _precision_options(backend: dict[str, Any]) -> dict[str, bool]:
    return {
        "check_floats": bool(backend.get("enableFloatingPointChecks")),
        "half_partials": backend.get("partialsTypeMatMuls") == "half",
        "stochastic_rounding": bool(backend.get("enableStochasticRounding")),
    }


def _casting(precision: Any) -> Casting:
    policy = precision._values.get("autocast_policy") or autocasting.default
    half_wins = precision.half_float_casting != HalfFloatCastingBehavior.HalfUpcastToFloat
    return Casting(
        policy, precision.autocast_enabled, half_wins, precision.running_statistics_always_float
    )


@cache
def _native_ops() -> list[str]:
    return list(_core.native_ops())
