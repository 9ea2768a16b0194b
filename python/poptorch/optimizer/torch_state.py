# SPDX-License-Identifier: Apache-2.0
"""The state of torch's own optimizers in the form that torch has it: what a checkpoint of an
optimizer holds, whether its steps were run by torch or by a program."""

from collections.abc import Iterator
from typing import Any

import torch

from poptorch.weights.transfer import read_state, write_state

# The core's name of a state -> torch's, where they differ.
_KEYS = {"momentum": "momentum_buffer"}
_STEP = "step"


def _entries(states: list[Any], names: list[str], group: int) -> Iterator[tuple[int, str, Any]]:
    """(position of the parameter, torch's key, the core's state) of the states of a group."""
    for state in states:
        if state.kind != "optimizer":
            continue
        key = _KEYS.get(state.what, state.what)
        if state.param in names:
            yield names.index(state.param), key, state
        elif state.group == group:
            for position in range(len(names)):
                yield position, key, state


def read(program: Any, optimizer: Any, groups: list[list[str]], updates: int) -> None:
    """Set ``optimizer.state`` from a program.

    Args:
        program: that has the state.
        optimizer: of torch.
        groups: names of the parameters of each of its groups.
        updates: number of updates so far, for rules that do not count but whose class does.
    """
    states = program.states
    counts = not isinstance(optimizer, torch.optim.SGD)
    # Groups that were added to the optimizer since have no state yet.
    for number, (names, group) in enumerate(zip(groups, optimizer.param_groups, strict=False)):
        entries = list(_entries(states, names, number))
        counted = any(key == _STEP for _, key, _ in entries)
        for position, key, state in entries:
            parameter = group["params"][position]
            value = read_state(program, state)
            if value.dim() == 0:
                value = value.float()
            if key != _STEP or counts:
                optimizer.state[parameter][key] = value
                if counts and not counted:
                    optimizer.state[parameter][_STEP] = torch.tensor(float(updates), device="cpu")
                if isinstance(optimizer, torch.optim.ASGD):  # which the core derives
                    weight = 1 / max(1, updates - group["t0"])
                    optimizer.state[parameter]["mu"] = torch.tensor(weight, device="cpu")


def write(program: Any, optimizer: Any, groups: list[list[str]]) -> None:
    """Set the state of a program from ``optimizer.state``; what that has not is left alone."""
    states = program.states
    for number, (names, group) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        for position, key, state in _entries(states, names, number):
            known = optimizer.state.get(group["params"][position], {})
            value = known.get(key)
            if value is None and key == _STEP and known.get("momentum_buffer") is not None:
                value = 1.0  # SGD does not count: it only matters that this is not the first step
            if value is not None:
                write_state(program, state, torch.as_tensor(value))
