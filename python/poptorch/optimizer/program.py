# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a compiled program: its lines in the graph, the values it reads while running,
its state, and the warnings about what changes on the object."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from poptorch.base.errors import Error
from poptorch.base.logging import logger
from poptorch.optimizer import torch_state
from poptorch.optimizer.table import Settings, Value, initial_states
from poptorch.weights.transfer import read_state, write_state

_LOSS_SCALE = "loss_scale"
_SCALING = "velocity_scaling"
# Entries of a group that torch itself has for every optimizer; anything else is reported.
_IGNORED_IN_GROUPS = frozenset(
    ("params", "foreach", "fused", "capturable", "differentiable", "maximize")
    + ("velocity_scaling", "max_weight_norm")
)
# Values of the whole optimizer, which PopTorch does not look for in groups.
_NOT_IN_GROUPS = frozenset(
    ("loss_scaling", "accum_type", "velocity_accum_type", "bias_correction", "max_grad_norm")
    + ("first_order_momentum_accum_type", "second_order_momentum_accum_type")
    + ("use_combined_accum", "use_tf_variant")
)
# Kinds of states that are the optimizer's own.
_KEPT = frozenset(("accumulator", "loss_steps", "micro_count", "optimizer"))
_IPU_PARAM_NAMES = {
    "lr": "learningRate",
    "weight_decay": "weightDecay",
    "velocity_scaling": "velocityScaling",
    "max_weight_norm": "maxWeightNorm",
}


def _shown(name: str, group: int) -> str:
    """The API's name of a value of a group."""
    where = "default" if group == 0 else f"group{group}"
    return f"{_IPU_PARAM_NAMES.get(name, name)}___{where}___FLOAT"


def optimizer_lines(
    optimizer: Any, settings: Settings, value_of: Callable[[torch.Tensor], str | None]
) -> list[str]:
    """The graph's ``optimize`` lines, one per group.

    Args:
        optimizer: whose groups they are.
        settings: its values.
        value_of: parameter -> its value in the graph (``%3``); None if the graph does not use it.
            Raises KeyError for a tensor that is no parameter of the model.
    """
    lines = []
    for number, group in enumerate(optimizer.param_groups):
        names = [value_of(param) for param in group["params"]]
        used = ", ".join(name for name in names if name is not None)
        flags = ", ".join(f"{key}={value}" for key, value in settings.flags[number].items())
        lines.append(f'optimize "{settings.algorithm.name}" {number} [{used}] {{{flags}}}')
    return lines


def _owner(state: Any) -> Any:
    return state.group if state.param is None else state.param


def _popart_error(text: str) -> Error:
    return Error(text, type="popart_exception")


class DeviceOptimizer:
    """The optimizer of a compiled program: its values and its state tensors."""

    def __init__(
        self,
        program: Any,
        optimizer: Any,
        settings: Settings,
        name_of: Callable[[torch.Tensor], str],
    ) -> None:
        self._program = program
        # States of the optimizer by what they are and whose: a parameter's, a group's or nobody's.
        self._states: dict[tuple[str, Any], Any] = {
            (state.what if state.kind == "optimizer" else state.kind, _owner(state)): state
            for state in program.states
            if state.kind != "hyper"
        }
        self._hyper = [state for state in program.states if state.kind == "hyper"]
        self._compiled = self._current = settings
        self._name_of = name_of
        self.forget()
        self._groups = self._names(optimizer)
        self._initialise(optimizer)
        self.send(settings)

    def restart(self, optimizer: Any) -> None:
        """Set the state to what it was before the first step; values are sent next time."""
        for state in self._program.states:
            if state.kind in _KEPT:
                zero = torch.zeros((), device="cpu").expand(state.shape)
                write_state(self._program, state, zero)
        self.forget()
        self._initialise(optimizer)

    def _names(self, optimizer: Any) -> list[list[str]]:
        return [[self._name_of(p) for p in group["params"]] for group in optimizer.param_groups]

    def _initialise(self, optimizer: Any) -> None:
        row = self._compiled.algorithm
        for names, group in zip(self._groups, optimizer.param_groups, strict=True):
            for what, start in initial_states(optimizer, row, group).items():
                for state in self._of(what, names):
                    value = torch.full(tuple(state.shape), start, device="cpu")
                    write_state(self._program, state, value)

    def _of(self, what: str, owners: Iterable[Any]) -> list[Any]:
        """The states of that kind that the owners have."""
        found = (self._states.get((what, owner)) for owner in owners)
        return [state for state in found if state is not None]

    # Values --------------------------------------------------------------------------------------

    def check(self, optimizer: Any, settings: Settings) -> None:
        """Raise unless ``optimizer`` may replace the one that was compiled."""
        old = self._compiled
        if settings.algorithm is not old.algorithm:
            raise _popart_error(
                f"Can not replace optimizer of type {old.algorithm.name} with one of type "
                f"{settings.algorithm.name}"
            )
        if len(settings.groups) != len(old.groups):
            raise Error(
                f"The model was compiled with {len(old.groups)} parameter groups but the "
                f"optimizer has {len(settings.groups)}: call destroy() first.",
            )
        if settings.max_grad_norm != old.max_grad_norm:
            raise _popart_error(
                f"Clip norm settings do not match: the model was compiled with max_grad_norm="
                f"{old.max_grad_norm}, the optimizer has {settings.max_grad_norm}."
            )
        self._check_constant("loss_scaling", old.loss_scaling, settings.loss_scaling)
        for number, (before, now) in enumerate(zip(old.groups, settings.groups, strict=True)):
            for name, value in now.items():
                self._check_constant(f"{name} of group {number}", before[name], value)
        if settings.switches != old.switches:
            raise _popart_error(
                "An attribute that is fixed at compilation (such as nesterov, amsgrad or a type "
                "of an accumulator) has changed: call destroy() first."
            )
        if self._names(optimizer) != self._groups:
            raise Error(
                "The parameter groups of the optimizer hold other parameters than those that were "
                "compiled: call destroy() first."
            )

    @staticmethod
    def _check_constant(what: str, before: Any, now: Any) -> None:
        if not before.constant:
            return
        if now.value != before.value:
            raise _popart_error(
                f"Values are constant but do not match. {what} was compiled as {before.value} and "
                f"is now {now.value}: mark it as variable before compiling."
            )
        if not now.constant:
            raise _popart_error(
                f"Can not replace a constant value with a non constant value. {what} was compiled "
                "as a constant: mark it as variable before compiling."
            )

    def send(self, settings: Settings) -> int:
        """Write the values that differ from those on the device; returns how many states did."""
        scale = torch.tensor(settings.loss_scaling.value, dtype=torch.float64, device="cpu")
        values = [(state, scale) for state in self._of(_LOSS_SCALE, [None])]
        values += [(state, settings.hyper(state.group)) for state in self._hyper]
        self._scale_velocities(
            [group.get(_SCALING) for group in self._current.groups],
            [group.get(_SCALING) for group in settings.groups],
        )
        count = 0
        for state, value in values:
            sent = self._sent.get(state.name)
            if sent is not None and torch.equal(sent, value):
                continue
            write_state(self._program, state, value)
            self._sent[state.name] = value
            count += 1
        self._current = settings
        return count

    def _scale_velocities(self, before: list[Any], now: list[Any]) -> None:
        """Keep the values of velocities whose scaling changes; they are stored times that."""
        for number, (old, new) in enumerate(zip(before, now, strict=True)):
            if _SCALING not in self._compiled.flags[number] or old is None:
                continue
            if old.value == new.value:
                continue
            for state in self._of("momentum", self._groups[number]):
                stored = read_state(self._program, state)
                write_state(self._program, state, stored * (new.value / old.value))

    def forget(self) -> None:
        """The device may have lost its values: send them all next time."""
        self._sent: dict[str, torch.Tensor] = {}

    # State ---------------------------------------------------------------------------------------

    def _entries(self) -> list[tuple[str, Any]]:
        """(name of the API, state of the core) of every state tensor."""
        prefixes = {**self._compiled.algorithm.states, "accumulator": "Accum___"}
        result = []
        for number, params in enumerate(self._groups):
            for param in params:
                for what, prefix in prefixes.items():
                    result += [(prefix + param, state) for state in self._of(what, [param])]
                result += [(f"Step___{param}", state) for state in self._of("step", [number])]
        return result

    def _parameters(self) -> dict[str, torch.Tensor]:
        """The values of the groups under the API's names."""
        result = {}
        for number, values in enumerate(self._current.groups):
            for name, value in values.items():
                result[_shown(name, number)] = torch.tensor(value.value, device="cpu")
        scale = self._of(_LOSS_SCALE, [None]) if self._current.automatic_loss_scaling else []
        result["lossScaling_FLOAT"] = (
            read_state(self._program, scale[0])
            if scale
            else torch.tensor(self._current.loss_scaling.value, device="cpu")
        )
        return result

    def read(self) -> dict[str, Any]:
        """The state and the values, in the form of ``state_dict()``."""
        cache: dict[str, torch.Tensor] = {}
        state = {}
        for name, core in self._entries():
            if core.name not in cache:
                cache[core.name] = read_state(self._program, core)
            state[name] = cache[core.name].clone()
        return {"ipu_state": state, "ipu_param": self._parameters()}

    def write(self, state: dict[str, Any]) -> None:
        """Send the state tensors of a ``state_dict()``; the values are those of the groups."""
        for name in self._parameters():
            if name not in (state["ipu_param"] or {}):
                logger.warning("writeOptimizerState: ignoring missing parameter %s", name)
        for name, core in self._entries():
            value = state["ipu_state"].get(name)
            if value is None:
                logger.warning("writeOptimizerState: ignoring missing state %s", name)
                continue
            if list(value.shape) != list(core.shape):
                raise Error(
                    f"The optimizer state {name} has shape {list(value.shape)}, the model needs "
                    f"{list(core.shape)}"
                )
            write_state(self._program, core, value)
        saved = state["ipu_param"] or {}
        now = [group.get(_SCALING) for group in self._current.groups]
        names = [_shown(_SCALING, number) for number in range(len(now))]
        before = [Value(float(saved[n]), False) if n in saved else None for n in names]
        self._scale_velocities(before, now)
        scale = saved.get("lossScaling_FLOAT")
        if self._current.automatic_loss_scaling and scale is not None:
            write_state(self._program, self._states[_LOSS_SCALE, None], scale)

    def read_torch(self, optimizer: Any, updates: int) -> None:
        """Set the state of an optimizer of torch's after so many updates."""
        torch_state.read(self._program, optimizer, self._groups, updates)

    def write_torch(self, optimizer: Any) -> None:
        """Send the state of an optimizer of torch's."""
        torch_state.write(self._program, optimizer, self._groups)


class AttributeWatch:
    """Reports, once each, attributes that appeared after the optimizer was first seen."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] | None = None
        self._reported: set[tuple[str, str]] = set()

    def __call__(self, optimizer: Any, relaxed: bool) -> None:
        """Compare ``optimizer`` with what it looked like at first."""
        now = self._attributes(optimizer)
        if self._known is None:
            wide = _NOT_IN_GROUPS - optimizer.defaults.keys()
            self._known = {k: v - wide if "group " in k else v for k, v in now.items()}
        for kind, names in now.items():
            new = sorted(
                name
                for name in names - self._known.get(kind, set())
                if (kind, name) not in self._reported
            )
            if not new:
                continue
            self._reported.update((kind, name) for name in new)
            log = logger.debug if relaxed else logger.warning
            log("Ignoring unexpected %s in %s optimizer: %s", kind, type(optimizer).__name__, new)

    @staticmethod
    def _attributes(optimizer: Any) -> dict[str, set[str]]:
        found = {"default group variable": set(optimizer.defaults)}
        for number, group in enumerate(optimizer.param_groups):
            found[f"group {number} attribute"] = set(group) - _IGNORED_IN_GROUPS
        found["optimizer attribute"] = {
            # Schedulers put their own `step` on the object.
            name
            for name in optimizer.__dict__
            if not name.startswith("_") and name != "step"
        }
        return found
