# SPDX-License-Identifier: Apache-2.0
"""The state of torch's own optimizers in the form that torch has it: what a checkpoint of an
optimizer holds, whether its steps were run by torch or by a program."""

from collections.abc import Iterator
from typing import Any

import torch

from poptorch._weights import read_state, write_state

# The core's name of a state -> torch's, where they differ.
_KEYS = {"momentum": "momentum_buffer"}
_NOT_STATE = ("hyper", "hyper64", "accum")
_STEP = "step"


def _entries(
    states: dict[str, Any], names: list[str], group: int
) -> Iterator[tuple[int, str, str]]:
    """(position of the parameter, torch's key, the core's name) of the states of a group."""
    for core in states:
        what, _, owner = core.partition(":")
        if what in _NOT_STATE or not owner:
            continue
        key = _KEYS.get(what, what)
        if owner in names:
            yield names.index(owner), key, core
        elif owner == str(group):
            for position in range(len(names)):
                yield position, key, core


def read(program: Any, optimizer: Any, groups: list[list[str]], updates: int) -> None:
    """Set ``optimizer.state`` from a program.

    Args:
        program: that has the state.
        optimizer: of torch.
        groups: names of the parameters of each of its groups.
        updates: number of updates so far, for rules that do not count but whose class does.
    """
    states = {name: (dtype, shape) for name, dtype, shape in program.states}
    counts = not isinstance(optimizer, torch.optim.SGD)
    # Groups that were added to the optimizer since have no state yet.
    for number, (names, group) in enumerate(zip(groups, optimizer.param_groups, strict=False)):
        for position, key, core in _entries(states, names, number):
            parameter = group["params"][position]
            value = read_state(program, core, *states[core])
            if value.dim() == 0:
                value = value.float()
            if key != _STEP or counts:
                optimizer.state[parameter][key] = value
                if counts and f"{_STEP}:{number}" not in states:
                    optimizer.state[parameter][_STEP] = torch.tensor(float(updates), device="cpu")
                if isinstance(optimizer, torch.optim.ASGD):  # which the core derives
                    weight = 1 / max(1, updates - group["t0"])
                    optimizer.state[parameter]["mu"] = torch.tensor(weight, device="cpu")


def write(program: Any, optimizer: Any, groups: list[list[str]]) -> None:
    """Set the state of a program from ``optimizer.state``; what that has not is left alone."""
    states = {name: (dtype, shape) for name, dtype, shape in program.states}
    for number, (names, group) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        for position, key, core in _entries(states, names, number):
            known = optimizer.state.get(group["params"][position], {})
            value = known.get(key)
            if value is None and key == _STEP and known.get("momentum_buffer") is not None:
                value = 1.0  # SGD does not count: it only matters that this is not the first step
            if value is not None:
                write_state(program, core, *states[core], torch.as_tensor(value))
