# SPDX-License-Identifier: Apache-2.0
"""From optimizer objects to the compiled program: one row per algorithm says which lines it adds to
the graph, which values it reads while running, and what its state is called."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from poptorch import optim
from poptorch._errors import Error, not_yet
from poptorch._logging import logger
from poptorch._state import read_state, write_state

HYPER_SLOTS = 8


@dataclass(frozen=True)
class Algorithm:
    """A row: the core's name, its run-time values in the order of their slots, its switches."""

    name: str
    torch_class: type
    poptorch_class: type
    slots: tuple[str, ...]
    #: Value -> whether the part of the update that needs it is there at all.
    switches: tuple[str, ...]
    #: Core's prefix of a state tensor -> the API's.
    states: dict[str, str]
    #: For torch's own classes: the values that are constants as long as they equal these.
    constants: dict[str, float]
    in_core: bool = True


_LOSS_SCALING = {"loss_scaling": 1.0}

ALGORITHMS = (
    # AdamW before Adam: torch derives one from the other.
    Algorithm(
        "adamw",
        torch.optim.AdamW,
        optim.AdamW,
        ("lr", "beta1", "beta2", "eps", "weight_decay", "loss_scaling"),
        ("weight_decay",),
        {"exp_avg": "Accl1___", "exp_avg_sq": "Accl2___", "max_exp_avg_sq": "Accl3___"},
        {"weight_decay": 0.01, "eps": 1e-8, **_LOSS_SCALING},
    ),
    Algorithm(
        "adam",
        torch.optim.Adam,
        optim.Adam,
        ("lr", "beta1", "beta2", "eps", "weight_decay", "loss_scaling"),
        ("weight_decay",),
        {"exp_avg": "Accl1___", "exp_avg_sq": "Accl2___", "max_exp_avg_sq": "Accl3___"},
        {"weight_decay": 0.0, "eps": 1e-8, **_LOSS_SCALING},
    ),
    Algorithm(
        "sgd",
        torch.optim.SGD,
        optim.SGD,
        ("lr", "momentum", "dampening", "weight_decay", "loss_scaling", "velocity_scaling"),
        ("momentum", "dampening", "weight_decay"),
        {"momentum": "Accl___"},
        {"weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, **_LOSS_SCALING},
    ),
    Algorithm(
        "rmsprop",
        torch.optim.RMSprop,
        optim.RMSprop,
        ("lr", "alpha", "eps", "weight_decay", "momentum", "loss_scaling"),
        ("weight_decay", "momentum"),
        {"square_avg": "Accl1___", "momentum": "Accl2___", "grad_avg": "Accl3___"},
        {"weight_decay": 0.0, "momentum": 0.0, "eps": 1e-8, **_LOSS_SCALING},
    ),
    Algorithm(
        "lamb",
        optim.LAMB,
        optim.LAMB,
        ("lr", "beta1", "beta2", "eps", "weight_decay", "loss_scaling"),
        ("weight_decay",),
        {"exp_avg": "Accl1___", "exp_avg_sq": "Accl2___"},
        {"weight_decay": 0.01, "eps": 1e-8, **_LOSS_SCALING},
        in_core=False,
    ),
)

_ALWAYS_CONSTANT = ("alpha", "beta1", "beta2", "velocity_scaling")
# Entries of a group that torch itself has for every optimizer; anything else is reported.
_IGNORED_IN_GROUPS = frozenset(
    ("params", "foreach", "fused", "capturable", "differentiable", "maximize", "velocity_scaling")
)
_IPU_PARAM_NAMES = {
    "lr": "learningRate",
    "weight_decay": "weightDecay",
    "velocity_scaling": "velocityScaling",
}


def algorithm_of(optimizer: Any) -> Algorithm:
    """The row of an optimizer, by its class."""
    row = next((row for row in ALGORITHMS if isinstance(optimizer, row.torch_class)), None)
    assert row is not None, (
        f"Unsupported optimizer type: {type(optimizer)}. "
        "Use SGD, Adam, AdamW or RMSprop of torch.optim, or one of poptorch.optim."
    )
    if type(optimizer) not in (row.torch_class, row.poptorch_class):
        logger.warning(
            "%s is a subclass of %s: it is unlikely to behave as intended, because its step() "
            "method never runs.",
            type(optimizer),
            row.torch_class.__name__,
        )
    return row


@dataclass(frozen=True)
class Value:
    """A value of an optimizer, and whether it is fixed once the program is compiled."""

    value: float
    constant: bool


@dataclass(frozen=True)
class Settings:
    """All that the program needs of an optimizer, taken at one moment."""

    algorithm: Algorithm
    groups: tuple[dict[str, Value], ...]
    flags: tuple[dict[str, int], ...]

    def hyper(self, group: int) -> torch.Tensor:
        """The run-time values of a group, in the order of their slots."""
        values = torch.zeros(HYPER_SLOTS, dtype=torch.float32)
        for slot, name in enumerate(self.algorithm.slots):
            values[slot] = self.groups[group][name].value
        return values


def settings_of(optimizer: Any) -> Settings:
    """Read and check an optimizer."""
    row = algorithm_of(optimizer)
    _check(optimizer, row)
    groups = tuple(_group_values(optimizer, row, group) for group in optimizer.param_groups)
    flags = tuple(
        _flags(optimizer, row, group, values)
        for group, values in zip(optimizer.param_groups, groups, strict=True)
    )
    return Settings(row, groups, flags)


def _check(optimizer: Any, row: Algorithm) -> None:
    if not row.in_core:
        raise not_yet(f"The optimizer {type(optimizer).__name__}")
    if getattr(optimizer, "use_tf_variant", False):
        raise not_yet("RMSprop with use_tf_variant=True")
    limit = getattr(optimizer, "max_grad_norm", math.inf)
    if math.isnan(limit):
        raise Error("Maximum norm of gradients cannot be NaN", type="poptorch_cpp_error")
    if not math.isinf(limit):
        raise not_yet("max_grad_norm")
    if getattr(optimizer, "loss_scaling", 1.0) == 0:
        raise Error("Loss scaling cannot be 0", type="popart_exception")
    if row.name == "rmsprop":
        assert len({bool(group["centered"]) for group in optimizer.param_groups}) == 1, (
            "All parameter groups must have the same value for the 'centered' attribute"
        )


def _group_values(optimizer: Any, row: Algorithm, group: dict[str, Any]) -> dict[str, Value]:
    ours = isinstance(optimizer, optim.Optimizer)
    result = {}
    for name in row.slots:
        attribute = "betas" if name in ("beta1", "beta2") else name
        if name == "loss_scaling":
            raw = getattr(optimizer, "loss_scaling", 1.0)
        elif attribute == "betas":
            betas = group["betas"]
            assert isinstance(betas, (tuple, list)) and len(betas) == 2, (
                f"betas must be a tuple of two numbers, got {betas!r}"
            )
            raw = betas[0 if name == "beta1" else 1]
        else:
            raw = group.get(name, 1.0)
        assert isinstance(raw, (int, float)) and not isinstance(raw, bool), (
            f"Expected a number for {attribute}, got {raw!r}"
        )
        if ours:
            constant = optimizer.variable_attrs.isConstant(attribute)
        else:
            constant = name in _ALWAYS_CONSTANT or row.constants.get(name) == raw
        result[name] = Value(float(raw), constant)
    return result


def _flags(
    optimizer: Any, row: Algorithm, group: dict[str, Any], values: dict[str, Value]
) -> dict[str, int]:
    # A part whose value is a constant zero is left out of the program; a variable may become more.
    flags = {
        name: int(values[name].value != 0 or not values[name].constant) for name in row.switches
    }
    flags["maximize"] = int(bool(group.get("maximize")))
    if row.name == "sgd":
        flags["nesterov"] = int(bool(group["nesterov"]))
    elif row.name == "rmsprop":
        flags["centered"] = int(bool(group["centered"]))
    else:
        decoupled = row.name == "adamw" or bool(group.get("decoupled_weight_decay"))
        flags["decoupled"] = int(decoupled)
        flags["amsgrad"] = int(bool(group.get("amsgrad")))
        flags["bias_correction"] = int(bool(getattr(optimizer, "bias_correction", True)))
    return flags


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


# Values and state of a program --------------------------------------------------------------------


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
        self._states = {name: (dtype, shape) for name, dtype, shape in program.states}
        self._compiled = settings
        self._sent: list[torch.Tensor | None] = [None] * len(settings.groups)
        self._groups = [[name_of(p) for p in group["params"]] for group in optimizer.param_groups]
        self.send(settings)

    def check(self, settings: Settings) -> None:
        """Raise unless ``settings`` may replace those that were compiled."""
        old = self._compiled
        if settings.algorithm is not old.algorithm:
            raise Error(
                f"Can not replace optimizer of type {old.algorithm.name} with one of type "
                f"{settings.algorithm.name}",
                type="popart_exception",
            )
        if len(settings.groups) != len(old.groups):
            raise Error(
                f"The model was compiled with {len(old.groups)} parameter groups but the "
                f"optimizer has {len(settings.groups)}: call destroy() first.",
            )
        for number, (before, now) in enumerate(zip(old.groups, settings.groups, strict=True)):
            for name, value in now.items():
                if not before[name].constant:
                    continue
                what = f"{name} of group {number}"
                if value.value != before[name].value:
                    raise Error(
                        f"Values are constant but do not match. {what} was compiled as "
                        f"{before[name].value} and is now {value.value}: mark it as variable "
                        "before compiling.",
                        type="popart_exception",
                    )
                if not value.constant:
                    raise Error(
                        f"Can not replace a constant value with a non constant value ({what}).",
                        type="popart_exception",
                    )
        if settings.flags != old.flags:
            raise Error(
                "An attribute that is fixed at compilation (such as nesterov or amsgrad) has "
                "changed: call destroy() first.",
                type="popart_exception",
            )

    def send(self, settings: Settings) -> int:
        """Write the values that differ from those on the device; returns how many groups did."""
        count = 0
        for number in range(len(settings.groups)):
            name = f"hyper:{number}"
            values = settings.hyper(number)
            sent = self._sent[number]
            if name not in self._states or (sent is not None and torch.equal(sent, values)):
                continue
            self._program.write_state(name, values.data_ptr(), values.nbytes)
            self._sent[number] = values
            count += 1
        return count

    def forget(self) -> None:
        """The device may have lost its values: send them all next time."""
        self._sent = [None] * len(self._sent)

    # State -----------------------------------------------------------------------------------

    def _entries(self) -> list[tuple[str, str]]:
        """(name of the API, name of the core) of every state tensor."""
        result = []
        for number, params in enumerate(self._groups):
            for param in params:
                for core, prefix in self._compiled.algorithm.states.items():
                    if f"{core}:{param}" in self._states:
                        result.append((prefix + param, f"{core}:{param}"))
                if f"step:{number}" in self._states:
                    result.append((f"Step___{param}", f"step:{number}"))
        return result

    def read(self) -> dict[str, Any]:
        """The state and the values, in the form of ``state_dict()``."""
        cache: dict[str, torch.Tensor] = {}
        state = {}
        for name, core in self._entries():
            if core not in cache:
                cache[core] = read_state(self._program, core, *self._states[core])
            state[name] = cache[core].clone()
        values = {}
        for number in range(len(self._groups)):
            group = "default" if number == 0 else f"group{number}"
            sent = self._sent[number]
            if sent is None:
                continue
            for slot, name in enumerate(self._compiled.algorithm.slots):
                shown = _IPU_PARAM_NAMES.get(name, name)
                if name == "loss_scaling":
                    values["lossScaling_FLOAT"] = sent[slot].clone()
                else:
                    values[f"{shown}___{group}___FLOAT"] = sent[slot].clone()
        return {"ipu_state": state, "ipu_param": values}

    def write(self, state: dict[str, torch.Tensor]) -> None:
        """Send the state tensors of a ``state_dict()``."""
        for name, core in self._entries():
            if name not in state:
                logger.warning("writeOptimizerState: ignoring missing state %s", name)
                continue
            value = state[name]
            dtype, shape = self._states[core]
            if list(value.shape) != list(shape):
                raise Error(
                    f"The optimizer state {name} has shape {list(value.shape)}, the model needs "
                    f"{list(shape)}"
                )
            write_state(self._program, core, dtype, shape, value)


class AttributeWatch:
    """Reports, once each, attributes that appeared after the optimizer was first seen."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] | None = None
        self._reported: set[tuple[str, str]] = set()

    def __call__(self, optimizer: Any, relaxed: bool) -> None:
        """Compare ``optimizer`` with what it looked like at first."""
        now = self._attributes(optimizer)
        if self._known is None:
            self._known = now
            return
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
