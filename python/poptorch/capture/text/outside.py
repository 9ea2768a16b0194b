# SPDX-License-Identifier: Apache-2.0
"""Tensors that forward uses although they are neither arguments nor part of the model. They are
constants of the program, unless they are other names for the memory of a state."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from poptorch.base.logging import logger
from poptorch.capture.errors import describe
from poptorch.capture.slots import overlap, place_of, storage_of

if TYPE_CHECKING:
    from poptorch.capture.slots import StateSlot
    from poptorch.capture.text.value import Value


def line_of(node: torch.fx.Node) -> tuple[str, int]:
    """(file, line) that a node comes from, ("", 0) if it is not known."""
    tag = (node.meta.get("custom") or {}).get("tag")
    return ("", 0) if tag is None else (tag.file, tag.line)


def _line_of_use(node: torch.fx.Node) -> str:
    user = next(iter(node.users), None)
    return "unknown line" if user is None else describe(line_of(user))


def state_sharing_memory(
    tensor: torch.Tensor,
    node: torch.fx.Node,
    states: "Sequence[tuple[StateSlot, Value]]",
    written: Sequence[object],
) -> "Value | None":
    """The value of the state whose memory a tensor is, or None.

    Args:
        tensor: a constant of the graph.
        node: stands for it.
        states: those of the model.
        written: values of those that the program writes: what they were before can't be followed.
    """
    storage = storage_of(tensor)
    for slot, value in states if storage is not None else ():
        if storage_of(slot.tensor) != storage or not overlap(slot.tensor, tensor):
            continue
        if place_of(slot.tensor) == place_of(tensor) and not any(v is value for v in written):
            return value
        logger.warning(
            "A tensor that shares the memory of %s is used in forward but is no part of the model: "
            "it keeps the value that it has now. Use register_buffer for it.\n  at %s",
            slot.names[0],
            _line_of_use(node),
        )
    return None


def warn_of_parameters(module: torch.fx.GraphModule, followed: set[torch.fx.Node]) -> None:
    """Warns of parameters that are used as constants: they belong to no state of the model."""
    for node in module.graph.nodes:
        if node.op != "get_attr" or node in followed:
            continue
        tensor = getattr(module, node.target, None)
        if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad:
            warnings.warn(
                "A parameter that does not belong to the model is used as a constant and will "
                f"not be trained, at {_line_of_use(node)}",
                stacklevel=2,
            )
