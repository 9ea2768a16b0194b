# SPDX-License-Identifier: Apache-2.0
"""Checks of values: each takes a value, raises if it is wrong, and returns what to store."""

from collections.abc import Callable
from typing import Any

import torch

from poptorch.enums import HalfFloatCastingBehavior, ReductionType


def instance_of(kind: type) -> Callable[[Any], Any]:
    """An instance of ``kind``."""

    def check(value: Any) -> Any:
        assert isinstance(value, kind), f"Expected {kind.__name__}, got {value!r}"
        return value

    return check


def reduction(value: Any) -> Any:
    """Mean or Sum."""
    if value not in (ReductionType.Mean, ReductionType.Sum) or not isinstance(value, ReductionType):
        raise ValueError(
            "accumulationAndReplicationReductionType must be set to "
            "poptorch.ReductionType.Mean or poptorch.ReductionType.Sum"
        )
    return value


def bool_named(what: str) -> Callable[[Any], Any]:
    """A bool; ``what`` names it in the message."""

    def check(value: Any) -> Any:
        assert isinstance(value, bool), f"{what} needs to be set to a bool, got {value!r}"
        return value

    return check


def switch(value: Any) -> bool:
    """A bool, or a number that stands for one."""
    assert isinstance(value, int), f"Expected a bool, got {value!r}"
    return bool(value)


def texts(value: Any) -> list[str]:
    """A list of strings."""
    plain = isinstance(value, (list, tuple, set, frozenset))
    assert plain and all(isinstance(item, str) for item in value), (
        f"Expected a list of strings, got {value!r}"
    )
    return list(value)


def seed(value: Any) -> int:
    """A number of 64 bits."""
    assert isinstance(value, int), f"Expected an int as seed, got {value!r}"
    assert -(2**63) <= value < 2**64, f"A seed has 64 bits, {value} has more"
    return int(value)


def repeat_limit(value: Any) -> int:
    """How often a message is repeated; None is without end."""
    return 2**64 - 1 if value is None else value


def memory_proportions(value: dict[Any, float]) -> dict[int, float]:
    """IPU -> share of its memory."""
    assert isinstance(value, dict), f'Expected a dict such as {{"IPU0": 0.5}}, got {value!r}'
    result = {}
    for key, proportion in value.items():
        assert isinstance(proportion, (int, float)), f"Expected a number, got {proportion!r}"
        if isinstance(key, int):
            result[key] = proportion
            continue
        text = str(key)
        assert text.startswith("IPU") and text[3:].isdigit(), (
            f"Invalid key: {key}. Keys are IPU followed by a number, such as IPU0."
        )
        result[int(text[3:])] = proportion
    return result


def values_read(value: Any) -> str:
    """What is done about values that Python reads in forward."""
    if value not in ("freeze", "check", "error"):
        raise ValueError(f'valuesReadInForward needs "freeze", "check" or "error", got {value!r}')
    return value


def io_tiles(value: int) -> int:
    """A number of tiles."""
    assert isinstance(value, int) and 32 <= value <= 192 and value % 2 == 0, (
        "numIOTiles must be an even number between 32 and 192."
    )
    return value


def partials_name(dtype: Any) -> str:
    """The backend's word for an accumulation type."""
    if dtype not in (torch.float, torch.half):
        raise ValueError("parameter to setPartialsType should be torch.float or torch.half")
    return "half" if dtype == torch.half else "float"


def autocast_enabled(value: Any) -> bool:
    """A bool."""
    if not isinstance(value, bool):
        raise ValueError(f"autocastEnabled needs a bool, got {value!r}")
    return value


def running_statistics(value: Any) -> bool:
    """A bool."""
    if not isinstance(value, bool):
        raise ValueError(f"runningStatisticsAlwaysFloat needs a bool, got {value!r}")
    return value


def half_float_casting(value: Any) -> HalfFloatCastingBehavior:
    """A member of the enumeration."""
    if not isinstance(value, HalfFloatCastingBehavior):
        raise ValueError(f"halfFloatCasting needs a HalfFloatCastingBehavior, got {value!r}")
    return value


def autocast_policy(value: Any) -> Any:
    """A policy."""
    from poptorch.autocasting import Policy

    if not isinstance(value, Policy):
        raise ValueError(f"autocastPolicy needs a poptorch.autocasting.Policy, got {value!r}")
    return value


def synthetic_mode(enabled: Any) -> int:
    """The backend's number for it."""
    return 2 if switch(enabled) else 0
