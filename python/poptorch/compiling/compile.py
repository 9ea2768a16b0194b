# SPDX-License-Identifier: Apache-2.0
"""From a model, its options and its optimizer to a program: capture, checks, the core's options."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from poptorch import _core, autocasting
from poptorch._version import __version__
from poptorch.base import logging
from poptorch.base.errors import Error, createPoptorchError, raise_core_error
from poptorch.base.logging import core_logger, logger
from poptorch.base.memory import address, check_memory
from poptorch.capture import capture
from poptorch.capture.casting import Casting
from poptorch.capture.errors import excluding
from poptorch.capture.state import lock as capture_lock
from poptorch.compiling.batching import Batching
from poptorch.compiling.hooks import around_capture
from poptorch.compiling.inspection import Anchor, anchors_of
from poptorch.compiling.placement import check_placement
from poptorch.enums import (
    HalfFloatCastingBehavior,
    MeanReductionStrategy,
    OutputMode,
)
from poptorch.ops.blocks import placing
from poptorch.ops.cpu import collecting
from poptorch.optimizer.program import optimizer_lines
from poptorch.optimizer.table import Settings
from poptorch.options import Options
from poptorch.options.check import uses_ipu_model
from poptorch.options.table import OPTIONS
from poptorch.running.host_calls import bind_host_calls
from poptorch.weights import state as _state
from poptorch.weights.replica_groups import Grouping, group_sizes, one_group, warn_if_unused


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


#: From the text, the core's options and the capture to a program.
Make = Callable[[str, dict[str, Any], Any], Any]


@dataclass
class Compiled:
    """A program, and what is needed to call it."""

    program: Any
    captured: Any
    rules: list[tuple[OutputMode, int]]
    anchors: list[Anchor]
    parameters: Parameters
    core_options: dict[str, Any]
    after_failure: list[Callable[[], None]]  # to be called after a run that has failed


def _facts(options: Options, batching: Batching) -> dict[str, int]:
    """What ops of libraries may ask of the program; patterns that are switched on or off."""
    patterns = options._Popart.options.get("patterns") or {}
    named = {f"pattern {name}": int(bool(on)) for name, on in patterns.items()}
    literal = int(options._custom_ops_in_place)
    return {"accumulation": batching.accumulation, "literal in place": literal, **named}


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
    reserve: Callable[[int], None],
    make: Make | None = None,
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
        reserve: told how many IPUs it needs, when no lock is held.
        make: makes the program, from the text, the core's options and what was captured, where it
            is not to be compiled.
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
            rows=_rows(),
            name="training" if training else "inference",
            loss_scaling=settings is not None and settings.scales_loss,
            module_scopes=options._module_namescope_enabled,
            casting=_casting(options.Precision),
            progress=bar.capture,
            values_read=options._values_read_in_forward,
            replicas=batching.replicas,
            facts=_facts(options, batching),
        )
    bar.capture(1)
    for info in captured.params:
        if id(info.tensor) in standins:
            info.tensor = standins[id(info.tensor)][1]
    for info in (*captured.params, *captured.buffers):
        check_memory(info.tensor, info.name)
    warn_if_unused(groupings, captured)
    with capture_lock:
        ipus = check_placement(model, options, batching, training, begun, captured)
        _check_buffers(model, options, captured, batching)
        parameters = Parameters(model, captured)
    states = {name for info in (*captured.params, *captured.buffers) for name in info.all_names}
    anchors = anchors_of(options, batching, states)
    rules = _output_rules(captured, batching, anchors)
    text = captured.text
    if settings is not None:
        text = captured.with_optimizer(optimizer_lines(optimizer, settings, parameters.value_of))
    if logging.shows_ir:
        logger.debug("The captured model:\n%s", text)
    core_options = _core_options(options, training, batching, rules, anchors, groups)
    reserve(ipus)
    if make is None:
        program = _compiled_text(text, core_options, captured.constants, cache_of(options), bar)
    else:
        program = make(text, core_options, captured)
    _log_program(program)
    after_failure = bind_host_calls(program)
    return Compiled(program, captured, rules, anchors, parameters, core_options, after_failure)


def _compiled_text(
    text: str,
    core_options: dict[str, Any],
    constants: dict[str, torch.Tensor],
    cache: str,
    bar: Any,
) -> Any:
    blobs = {name: t.contiguous() for name, t in constants.items()}
    what = "A tensor that forward uses, and that is neither an argument nor part of the model,"
    given = {name: (address(blob, what), blob.nbytes) for name, blob in blobs.items()}
    try:
        program = _core.compile(
            text, core_options, given, bar.core, os.fsencode(cache), __version__
        )
    except _core.Error as exc:
        raise_core_error(exc)
    tell_notes(program)
    return program


def tell_notes(program: Any) -> None:
    """Log what the core has to say of a program."""
    for warning, text in program.notes:
        (logger.warning if warning else logger.info)("%s", text)


def cache_of(options: Options) -> str:
    """The directory of compiled programs; empty if there is none."""
    backend = options._Popart.options
    if not backend.get("enableEngineCaching"):
        return ""
    if uses_ipu_model(options):
        logger.warning("enableExecutableCaching doesn't work with the IPU model")
        return ""
    return str(backend.get("cachePath", ""))


def _log_program(program: Any) -> None:
    if not core_logger.isEnabledFor(logging.DEBUG):
        return
    made = json.loads(program.summary())
    core_logger.debug(
        "Compiled %s in %.1f ms: %d steps, %d host calls, %d bytes of weights, %d of memory",
        made["name"],
        made["compile_ms"],
        len(made["steps"]),
        len(made["host_calls"]),
        made["state_bytes"],
        made["arena_bytes"],
    )
    if not core_logger.isEnabledFor(logging.TRACE):
        return
    for row in made["passes"]:
        core_logger.log(logging.TRACE, "%-24s %8.2f ms", row["name"], row["ms"])
    for step in made["steps"]:
        core_logger.log(
            logging.LEVELS["TRACE_ALL"], "%s: %s %s", step["where"], step["op"], step["shapes"]
        )


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
        if info.updated and not info.once and not exempt.intersection(info.all_names):
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
) -> dict[str, Any]:
    strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
    if training and strategy == MeanReductionStrategy.PostAndLoss:
        raise Error(
            "Value for MeanReductionStrategy out of range: PostAndLoss does not exist any "
            "more, use Post.",
            type="popart_exception",
        )
    return {
        **_rows_for_core(options),
        **batching.core_options(rules),
        **options._execution_strategy.core_options(),
        "grouped": [(name, *group) for name, group in groups.items()],
        "anchors": [a.name for a in anchors if not a.is_state],
        # PopART's enumeration has 0 for "no recomputation".
        "recompute": options._Popart.options.get("autoRecomputation") != 0,
        # Standard and RecomputeAll: what lies between the tensors that a program marks.
        "recompute_all": options._Popart.options.get("autoRecomputation") in (1, 4),
        "threads": thread_count(),
        "training": training,
    }


def _rows_for_core(options: Options) -> dict[str, Any]:
    """What the core is told of the options that are set, by their rows."""
    result = {}
    for row in (row for row in OPTIONS if row.core):
        section = options if row.section == options.section else getattr(options, row.section)
        values = options._Popart.options if row.backend else section._values
        if row.key in values:
            result[row.core] = row.core_value(values[row.key])
    return result


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


def thread_count() -> int:
    """As many as torch uses; one in a forked child, which has none of its parent's threads."""
    global _team_process
    if _team_process is None:
        _team_process = os.getpid()
    return torch.get_num_threads() if _team_process == os.getpid() else 1


def _casting(precision: Any) -> Casting:
    policy = precision._values.get("autocast_policy") or autocasting.default
    half_wins = precision.half_float_casting != HalfFloatCastingBehavior.HalfUpcastToFloat
    return Casting(
        policy, precision.autocast_enabled, half_wins, precision.running_statistics_always_float
    )


@cache
def _rows() -> dict[str, Any]:
    return {row.name: row for row in _core.rows()}
