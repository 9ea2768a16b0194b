# SPDX-License-Identifier: Apache-2.0
"""The optimizers that a program can have: one row per algorithm says which values of a parameter
group it reads, which parts of its rule they switch on, and what its state is called."""

import inspect
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from poptorch import optim
from poptorch.base.errors import Error
from poptorch.base.logging import logger
from poptorch.optimizer.base import marked_variable

HYPER_SLOTS = 16
# Limits of all gradients: of their common norm, and of each element (which only Lightning sets).
_LIMITS = ("max_grad_norm", "max_grad_value")


@dataclass(frozen=True)
class Algorithm:
    """A row.

    Attributes:
        name: the rule's name in the core.
        classes: torch's class, and ours if there is one.
        values: numbers of a group, read while the program runs.
        switches: values whose part of the rule is left out if they are a constant zero.
        derived: further numbers for the core, named after the value they are made from.
        flags: switches of a group, fixed at compilation.
        states: what a state tensor is in the core -> its prefix in the API.
    """

    name: str
    classes: tuple[type[torch.optim.Optimizer], ...]
    values: tuple[str, ...]
    switches: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    states: dict[str, str] = field(default_factory=dict)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the run-time numbers, in the order of their slots."""
        return (*self.values, *self.derived, *_LIMITS)


_MOMENTS = ("lr", "beta1", "beta2", "eps", "weight_decay")
_MOMENTS_DERIVED = ("one_minus_beta1", "one_minus_beta2")
_MOMENTS_STATES = {"exp_avg": "Accl1___", "exp_avg_sq": "Accl2___", "max_exp_avg_sq": "Accl3___"}
_DECAY = ("weight_decay",)
_ADAM = (_MOMENTS, _DECAY, _MOMENTS_DERIVED, ("amsgrad",), _MOMENTS_STATES)

# A class comes before those that torch derives it from.
ALGORITHMS = (
    Algorithm("adamw", (torch.optim.AdamW, optim.AdamW), *_ADAM),
    Algorithm("adam", (torch.optim.Adam, optim.Adam), *_ADAM),
    Algorithm(
        "lamb",
        (optim.LAMB,),
        (*_MOMENTS, "max_weight_norm"),
        _DECAY,
        _MOMENTS_DERIVED,
        (),
        _MOMENTS_STATES,
    ),
    Algorithm(
        "sgd",
        (torch.optim.SGD, optim.SGD),
        ("lr", "momentum", "dampening", "weight_decay", "velocity_scaling"),
        ("momentum", "dampening", "weight_decay"),
        ("one_minus_dampening", "inverse_velocity_scaling"),
        ("nesterov",),
        {"momentum": "Accl___"},
    ),
    Algorithm(
        "rmsprop",
        (torch.optim.RMSprop, optim.RMSprop),
        ("lr", "alpha", "eps", "weight_decay", "momentum"),
        ("weight_decay", "momentum"),
        ("one_minus_alpha",),
        ("centered",),
        {"square_avg": "Accl1___", "momentum": "Accl2___", "grad_avg": "Accl3___"},
    ),
    Algorithm(
        "adagrad",
        (torch.optim.Adagrad,),
        ("lr", "lr_decay", "eps", "weight_decay"),
        ("lr_decay", "weight_decay"),
    ),
    Algorithm(
        "adadelta",
        (torch.optim.Adadelta,),
        ("lr", "rho", "eps", "weight_decay"),
        _DECAY,
        ("one_minus_rho",),
    ),
    Algorithm("adamax", (torch.optim.Adamax,), _MOMENTS, _DECAY, _MOMENTS_DERIVED),
    Algorithm(
        "nadam", (torch.optim.NAdam,), (*_MOMENTS, "momentum_decay"), _DECAY, _MOMENTS_DERIVED
    ),
    Algorithm("radam", (torch.optim.RAdam,), _MOMENTS, _DECAY, _MOMENTS_DERIVED),
    Algorithm(
        "rprop", (torch.optim.Rprop,), ("lr", "eta_minus", "eta_plus", "step_min", "step_max")
    ),
    Algorithm(
        "asgd",
        (torch.optim.ASGD,),
        ("lr", "lambd", "alpha", "t0", "weight_decay"),
        _DECAY,
    ),
    Algorithm(
        "adafactor",
        (torch.optim.Adafactor,),
        ("lr", "beta2_decay", "eps1", "eps2", "d", "weight_decay"),
        _DECAY,
    ),
)

# Numbers that a group has as parts of a pair.
_PAIRS = {
    "beta1": ("betas", 0),
    "beta2": ("betas", 1),
    "eta_minus": ("etas", 0),
    "eta_plus": ("etas", 1),
    "step_min": ("step_sizes", 0),
    "step_max": ("step_sizes", 1),
    "eps1": ("eps", 0),
    "eps2": ("eps", 1),
}
# Of torch's own optimizers; what is no default is variable there.
_ALWAYS_CONSTANT = ("alpha", "betas")
# Accumulators that may be kept in float16: switch in the core -> attribute.
_HALF = {
    "accum_f16": "accum_type",
    "velocity_f16": "velocity_accum_type",
    "first_f16": "first_order_momentum_accum_type",
    "second_f16": "second_order_momentum_accum_type",
}


def algorithm_of(optimizer: Any) -> Algorithm:
    """The row of an optimizer, by its class."""
    row = next((row for row in ALGORITHMS if isinstance(optimizer, row.classes)), None)
    known = sorted({cls.__name__ for row in ALGORITHMS for cls in row.classes})
    advice = ""
    if isinstance(optimizer, type):
        advice = f" Pass an object: {optimizer.__name__}(model.parameters(), ...)."
    assert row is not None, (
        f"Unsupported optimizer type: {type(optimizer)}. Supported are {', '.join(known)}.{advice}"
    )
    return row


def warn_of_subclass(optimizer: Any) -> None:
    """Say that the code of a class derived from a known one does not run."""
    row = algorithm_of(optimizer)
    if type(optimizer) not in row.classes:
        logger.warning(
            "%s is a subclass of %s: it is unlikely to behave as intended, because its step() "
            "method never runs.",
            type(optimizer),
            row.classes[0].__name__,
        )


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
    loss_scaling: Value
    max_grad_norm: float
    max_grad_value: float
    automatic_loss_scaling: bool

    @property
    def scales_loss(self) -> bool:
        """Whether the program multiplies the loss's gradient, and divides the weights' by it."""
        return not self.loss_scaling.constant or self.loss_scaling.value != 1.0

    @property
    def switches(self) -> tuple[dict[str, int], ...]:
        """The flags that are no slots of values: what can't change after compilation."""
        slots = self.algorithm.slots
        return tuple({k: v for k, v in group.items() if k not in slots} for group in self.flags)

    def hyper(self, group: int) -> torch.Tensor:
        """The run-time numbers of a group, in the order of their slots, in float64."""
        values = {name: value.value for name, value in self.groups[group].items()}
        numbers = torch.zeros(HYPER_SLOTS, dtype=torch.float64, device="cpu")
        for slot, name in enumerate(self.algorithm.slots):
            if name in _LIMITS:
                numbers[slot] = getattr(self, name)
            elif name.startswith("one_minus_"):
                numbers[slot] = 1.0 - values[name.removeprefix("one_minus_")]
            elif name.startswith("inverse_"):
                numbers[slot] = 1.0 / values[name.removeprefix("inverse_")]
            else:
                numbers[slot] = values[name]
        return numbers


def settings_of(optimizer: Any, automatic_loss_scaling: bool = False) -> Settings:
    """Read and check an optimizer.

    Args:
        optimizer: of torch or of this package.
        automatic_loss_scaling: whether the program adjusts the loss scaling.
    """
    row = algorithm_of(optimizer)
    limits = {name: float(getattr(optimizer, name, math.inf)) for name in _LIMITS}
    scaling = _loss_scaling(optimizer, automatic_loss_scaling)
    _check(optimizer, row, limits, scaling)
    groups = tuple(_group_values(optimizer, row, group) for group in optimizer.param_groups)
    flags = tuple(
        _flags(optimizer, row, group, values, limits)
        for group, values in zip(optimizer.param_groups, groups, strict=True)
    )
    if automatic_loss_scaling:
        flags = tuple({**group, "automatic_loss_scaling": 1} for group in flags)
    return Settings(
        row, groups, flags, scaling, **limits, automatic_loss_scaling=automatic_loss_scaling
    )


def needs_running_mean(optimizer: Any) -> bool:
    """Whether its gradient accumulators are too narrow for a sum."""
    half = getattr(optimizer, "accum_type", None) is torch.float16
    return half and not getattr(optimizer, "use_combined_accum", False)


def initial_states(optimizer: Any, row: Algorithm, group: dict[str, Any]) -> dict[str, float]:
    """The states that do not start at zero -> what they start at."""
    if row.name == "rmsprop" and getattr(optimizer, "use_tf_variant", False):
        return {"square_avg": 1.0}
    if row.name == "adagrad" and group["initial_accumulator_value"]:
        return {"sum": float(group["initial_accumulator_value"])}
    return {}


def _loss_scaling(optimizer: Any, automatic: bool) -> Value:
    raw = _number("loss_scaling", getattr(optimizer, "loss_scaling", 1.0))
    if isinstance(optimizer, optim.Optimizer):
        constant = optimizer.variable_attrs.isConstant("loss_scaling")
    else:
        constant = raw == 1.0
    return Value(raw, constant and not automatic)


def _check(optimizer: Any, row: Algorithm, limits: dict[str, float], scaling: Value) -> None:
    if any(math.isnan(limit) for limit in limits.values()):
        raise Error("Maximum norm of gradients cannot be NaN", type="poptorch_cpp_error")
    if scaling.value == 0:
        raise Error("Loss scaling cannot be 0", type="popart_exception")
    if getattr(optimizer, "use_combined_accum", False):
        if any(group.get("velocity_scaling") == 0 for group in optimizer.param_groups):
            raise Error("Velocity scaling cannot be 0", type="popart_exception")
    if row.name == "rmsprop":
        assert len({bool(group["centered"]) for group in optimizer.param_groups}) == 1, (
            "All parameter groups must have the same value for the 'centered' attribute"
        )


def _number(name: str, raw: Any) -> float:
    assert isinstance(raw, (int, float)) and not isinstance(raw, bool), (
        f"Expected a number for {name}, got {raw!r}"
    )
    return float(raw)


def _group_values(optimizer: Any, row: Algorithm, group: dict[str, Any]) -> dict[str, Value]:
    defaults = inspect.signature(row.classes[0].__init__).parameters
    result = {}
    for name in row.values:
        attribute, index = name, None
        if name in _PAIRS and _PAIRS[name][0] in group:
            attribute, index = _PAIRS[name]
        raw = group.get(attribute, 1.0)
        if name == "velocity_scaling" and not getattr(optimizer, "use_combined_accum", False):
            result[name] = Value(1.0, True)  # the loss's is used, whatever the group says
            continue
        if index is not None:
            assert isinstance(raw, (tuple, list)) and len(raw) == 2, (
                f"{attribute} must be a tuple of two numbers, got {raw!r}"
            )
            raw = raw[index]
        if name == "eps1" and raw is None:
            raw = torch.finfo(group["params"][0].dtype).eps
        if isinstance(optimizer, optim.Optimizer):
            constant = optimizer.variable_attrs.isConstant(attribute)
        else:
            constant = attribute not in ("lr", *marked_variable(optimizer)) and (
                attribute in _ALWAYS_CONSTANT
                or (attribute in defaults and defaults[attribute].default == group.get(attribute))
            )
        result[name] = Value(_number(attribute, raw), constant)
    return result


def _flags(
    optimizer: Any,
    row: Algorithm,
    group: dict[str, Any],
    values: dict[str, Value],
    limits: dict[str, float],
) -> dict[str, int]:
    """The entries of an `optimize` line: slots of the values that count, and switches."""
    ours = isinstance(optimizer, optim.Optimizer)
    # A part whose value is a constant zero is left out of the program; a variable may become more.
    off = {n for n in row.switches if values[n].constant and values[n].value == 0}
    if row.name == "sgd":
        scaling = values["velocity_scaling"]
        combined = bool(getattr(optimizer, "use_combined_accum", False))
        if not combined or (scaling.constant and scaling.value == 1):
            off.add("velocity_scaling")
    off |= {name for name, limit in limits.items() if math.isinf(limit)}
    off |= {f"one_minus_{name}" for name in off} | {f"inverse_{name}" for name in off}
    flags = {name: slot for slot, name in enumerate(row.slots) if name not in off}

    on = {name for name in row.flags if group.get(name)}
    on |= {name for name, attribute in _HALF.items() if _is_half(optimizer, attribute)}
    if group.get("maximize"):
        on.add("maximize")
    if row.name == "adamw" or group.get("decoupled_weight_decay"):
        on.add("decoupled")
    if row.name in ("adam", "adamw", "lamb") and getattr(optimizer, "bias_correction", True):
        on.add("bias_correction")
    if getattr(optimizer, "use_tf_variant", False):
        on.add("tf_variant")
    if row.name == "sgd":
        if combined:
            on.add("combined")
            if "accum_f16" in on:  # they are one tensor
                on.add("velocity_f16")
        if not ours and "dampening" not in off:
            on.add("plain_first")
    flags.update(dict.fromkeys(sorted(on), 1))
    return flags


def _is_half(optimizer: Any, attribute: str) -> bool:
    return getattr(optimizer, attribute, None) is torch.float16
