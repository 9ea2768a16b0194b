# SPDX-License-Identifier: Apache-2.0
"""Loops and branches inside a model."""

import operator
from collections.abc import Callable
from typing import Any

import torch

from poptorch.base.logging import logger
from poptorch.capture import running_on_ipu


def _error(message: str) -> Exception:
    from poptorch.capture.errors import make_error, user_frame

    return make_error(message, user_frame())


def _turns(count: Any) -> int:
    """The number of turns, which must be known when the model is captured."""
    if isinstance(count, (bool, torch.Tensor)) or not hasattr(type(count), "__index__"):
        raise _error(
            f"for_loop: count must be an int that is known when the model is captured, not "
            f"{type(count).__name__}"
        )
    found = operator.index(count)
    if found < 0:
        raise _error(f"for_loop: count must not be negative, but is {found}")
    if found >= 1 << 63:
        raise _error(f"for_loop: count must fit into 64 bits, but is {found}")
    return found


def for_loop(
    count: int, body: Callable[..., Any], inputs: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Run ``body`` ``count`` times, each time on the results of the time before.

    In a captured model it is a loop of the program: the body is captured once, whatever the count.
    It may use tensors from outside, and buffers that it changes in place keep their values from
    turn to turn. Loops have gradients, and may be nested.

    Outside of a captured model the body is called once, as in PopTorch.

    Args:
        count: an int.
        body: takes as many tensors as it returns, of the same shapes and types. It returns a
            tensor, or a list or tuple of tensors.
        inputs: what the first turn gets; copies, so that changes in place stay inside.

    Returns:
        What the last turn returned, as a list.
    """
    if not isinstance(inputs, list):
        raise ValueError("for_loop: Object is not list")
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"for_loop: Object of type {type(value)} is not torch.tensor")
    turns = _turns(count)
    if running_on_ipu():
        from poptorch.capture.flow.loop import for_loop as captured_loop

        return captured_loop(turns, body, inputs)
    if turns > 1:
        logger.warning(
            "poptorch.for_loop is called outside of a captured model: the body runs once there, "
            "not %d times",
            turns,
        )
    from poptorch.capture.flow.results import loop_results

    types = [(value.shape, value.dtype) for value in inputs]
    return loop_results(body(*[value.clone() for value in inputs]), types)


def cond(
    condition: torch.Tensor,
    then_body: Callable[..., Any],
    then_inps: list[torch.Tensor],
    else_body: Callable[..., Any],
    else_inps: list[torch.Tensor],
) -> list[torch.Tensor]:
    """The results of ``then_body`` if the boolean tensor ``condition`` is true, else of
    ``else_body``, as a list.

    In a captured model both bodies are captured, and each run of the program computes one of them.
    They may use tensors from outside. Buffers keep what the chosen body writes to them; no other
    change in place leaves a body. Branches have gradients, and may be nested.

    Args:
        condition: one boolean.
        then_body: called with ``then_inps``.
        then_inps: a list of tensors, which may be empty.
        else_body: called with ``else_inps``; returns as many tensors as ``then_body``. Outputs of
            ``then_body`` are given the shapes of those of ``else_body``.
        else_inps: a list of tensors, which may be empty.
    """
    if not isinstance(then_inps, list) or not isinstance(else_inps, list):
        raise ValueError("poptorch.cond expects then_inps and else_inps tensors in lists")
    if not running_on_ipu():
        from poptorch.capture.flow.results import as_list

        return as_list(then_body(*then_inps) if bool(condition) else else_body(*else_inps))
    for value in [*then_inps, *else_inps]:
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                "poptorch.cond expects then_inps and else_inps tensors, but one is of type "
                f"{type(value)}"
            )
    if not isinstance(condition, torch.Tensor) or condition.dtype != torch.bool:
        raise _error("poptorch.cond: the condition must be a boolean tensor")
    if condition.numel() != 1:
        raise _error(
            "poptorch.cond: the condition must be a boolean tensor of one element, not of shape "
            f"{list(condition.shape)}"
        )
    from poptorch.capture.flow.branch import cond as captured_cond

    return captured_cond(condition, (then_body, else_body), (then_inps, else_inps))
