# SPDX-License-Identifier: Apache-2.0
"""Looking into a program: anchored tensors, and when the micro-batches of a call came and went."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.compiling.batching import Batching
from poptorch.enums import OutputMode
from poptorch.options import Options
from poptorch.weights.transfer import read_state

#: Tensors that exist once per weight update; they are read after the call.
STATE_PREFIXES = ("UpdatedVar___", "Accl", "Accum___", "Step___", "MaxSquared___")
UPDATED = "UpdatedVar___"
GRADIENT = "Gradient___"
#: Of the tiles of an IPU-M2000.
CLOCK_HZ = 1.33e9


@dataclass(frozen=True)
class Anchor:
    """A tensor asked for with ``Options.anchorTensor``."""

    short: str
    name: str
    mode: OutputMode
    period: int

    @property
    def is_state(self) -> bool:
        """Whether it is read after the call instead of being an output of the program."""
        return self.name.startswith(STATE_PREFIXES)


def anchors_of(options: Options, batching: Batching, states: set[str]) -> list[Anchor]:
    """The anchors of ``options``.

    Programs of older versions write "Gradient___model.fc.weight" for a parameter "fc.weight";
    ``states`` are the names that there are.
    """
    found = []
    for short, (name, model_mode, mode, period) in options.anchored_tensors.items():
        if model_mode:
            mode, period = batching.mode, batching.period
        kind, _, state = name.rpartition("___")
        if state not in states and (plain := state.removeprefix("model.")) in states:
            name = f"{kind}___{plain}" if kind else plain
        # A period longer than the call: the values of its last iteration.
        period = min(period, batching.iterations)
        found.append(Anchor(short, name, OutputMode(mode), period))
    return found


# When things happened -----------------------------------------------------------------------------

_EVENTS = ("input", "input_complete", "output", "output_complete")


def perf_counters(executable: Any) -> dict[str, list[list[float]]]:
    """Seconds of each event by tensor; nothing if there is no program or it has not run."""
    if executable is None:
        return {event: [[]] for event in _EVENTS}
    program, batching = executable.program, executable.batching
    times, replicas = program.times, batching.replicas
    every_step = range(batching.steps)
    inputs = [every_step for _ in program.inputs]
    outputs = [batching.returned_steps(*rule) for rule in executable.visible_rules]
    counters = {}
    for column, event in enumerate(_EVENTS):
        # A run that was stopped has the times of its first micro-batches only.
        counters[event] = [
            [row[column] for i in steps for row in times[i * replicas : (i + 1) * replicas]]
            for steps in (inputs if column < 2 else outputs)
        ] or [[]]
    return counters


_Side = tuple[str, Callable[[list[float]], float]]


def latency(program: Any, iterations: int, begin: _Side, end: _Side) -> tuple[float, float, float]:
    """Minimum, maximum and average seconds over the device iterations of the last call.

    ``begin`` and ``end`` say which event of an iteration counts, and of several whether the first
    (min) or the last (max).
    """
    times = [] if program is None else program.times
    if not times:
        return (0.0, 0.0, 0.0)
    rows = len(times) // iterations
    spans = []
    for i in range(iterations):
        part = times[i * rows : (i + 1) * rows]
        first, last = (
            reduce([row[_EVENTS.index(event)] for row in part]) for event, reduce in (begin, end)
        )
        spans.append(last - first)
    return (min(spans), max(spans), sum(spans) / len(spans))


class Inspection:
    """The methods of an executor that look into its program."""

    # Of the executor that inherits them.
    _executable: Any
    _device_optimizer: Any
    _options: Options
    _anchors: list[Anchor]
    _training: bool

    def getTensorNames(self) -> list[str]:
        """Names of the tensors that ``Options.anchorTensor`` may ask for."""
        assert self._executable is not None, "Model must be compiled before calling getTensorNames"
        names = list(self._executable.program.tensor_names)
        if self._training:
            trained = [n.removeprefix(GRADIENT) for n in names if n.startswith(GRADIENT)]
            names += [UPDATED + name for name in trained]
            names += self._device_optimizer.read()["ipu_state"]
        return names

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """The value in the last call of a tensor named with ``Options.anchorTensor``."""
        anchor = next((a for a in self._anchors if a.short == short_name), None)
        assert anchor is not None and self._executable is not None, (
            f"No tensor with name {short_name} found. Name it with Options.anchorTensor before the "
            "model is wrapped, and call the model"
        )
        if anchor.is_state:
            return self._state_anchor(anchor.name)
        outputs = [a.short for a in self._anchors if not a.is_state]
        assert self._executable.anchored, (
            f"No tensor with name {short_name} found: the model has not been called yet"
        )
        return self._executable.anchored[outputs.index(short_name)]

    def _state_anchor(self, name: str) -> torch.Tensor:
        program = self._executable.program
        if name.startswith(UPDATED):
            updated = name.removeprefix(UPDATED)
            found = next((s for s in program.states if s.name == updated), None)
            assert found is not None, f"No tensor with name {name} found."
            return read_state(program, found)
        state = self._device_optimizer.read()["ipu_state"] if self._training else {}
        assert name in state, f"No tensor with name {name} found."
        return state[name]

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """When inputs were asked for and there, and outputs ready and written, in the last call.

        Seconds by event and tensor: of an input one per micro-batch, of an output as many as its
        output mode returns.
        """
        return perf_counters(self._executable)

    def getLatency(self) -> tuple[float, float, float]:
        """From the first input asked for to the last output written: min, max, average."""
        return self._latency(("input", min), ("output_complete", max))

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """From the first input asked for to the last one there: min, max, average."""
        return self._latency(("input", min), ("input_complete", max))

    def getComputeLatency(self) -> tuple[float, float, float]:
        """From the last input there to the last output ready: min, max, average."""
        return self._latency(("input_complete", max), ("output", max))

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """From the first output ready to the last one written: min, max, average."""
        return self._latency(("output", min), ("output_complete", max))

    def cycleCount(self) -> int:
        """The time of the last call as cycles of an IPU's clock, for one replica.

        It is time on this machine: the IPU Model says what real hardware would take.
        """
        if not self._options._Popart.options.get("instrumentWithHardwareCycleCounter", False):
            raise createPoptorchError(
                "Cycle count logging is disabled. Please set option logCycleCount to True to "
                "enable."
            )
        if self._program is None or not self._program.times:
            raise createPoptorchError(
                "Please run the model at least once before obtaining cycle count."
            )
        seconds = self._program.last_run_seconds / self._options.replication_factor
        return round(seconds * CLOCK_HZ)

    def getProgramSummary(self) -> dict[str, Any]:
        """What the compiled program is made of: its steps, host calls and bytes of memory."""
        if self._program is None:
            raise createPoptorchError("Please compile the model before obtaining its summary.")
        return json.loads(self._program.summary())

    def _debugGetPopartIR(self) -> str:
        """What the compiled program is made of, as JSON."""
        return "unavailable (not compiled)" if self._program is None else self._program.summary()

    @property
    def _program(self) -> Any:
        return None if self._executable is None else self._executable.program

    def _latency(self, begin: _Side, end: _Side) -> tuple[float, float, float]:
        return latency(self._program, self._options.device_iterations, begin, end)
