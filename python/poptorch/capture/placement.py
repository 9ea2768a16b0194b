# SPDX-License-Identifier: Apache-2.0
"""Where the ops being captured are to run: blocks set it, every node carries it."""

from typing import NamedTuple

from . import state


class Placement(NamedTuple):
    """IPU, pipeline stage and phase of a node; phase -1 means no phased execution."""

    ipu: int = 0
    stage: int = 0
    phase: int = -1


DEFAULT = Placement()
_current = DEFAULT


def set_placement(ipu, stage, phase=-1):
    """Places every op captured from now on; does nothing while no model is being captured."""
    global _current
    if state.running_on_ipu():
        _current = Placement(int(ipu), int(stage), int(phase))


def reset_placement():
    """Back to IPU 0, stage 0."""
    global _current
    _current = DEFAULT


def current_placement():
    """The placement of ops captured now."""
    return _current
