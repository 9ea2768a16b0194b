# SPDX-License-Identifier: Apache-2.0
"""Tensors whose transfer to or from the host is to overlap with computation.

They must be inputs that no other op uses, or outputs that are returned once.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.fx

from poptorch.base.errors import Error
from poptorch.capture import errors
from poptorch.capture.errors import Where


class Overlap:
    """Those tensors of one capture."""

    def __init__(self) -> None:
        self.inputs: Sequence[torch.Tensor] = ()  # what forward was called with
        self.where: Where | None = None  # the line of the first that really overlaps
        self._marked_inputs: list[tuple[int, Where]] = []  # by index
        self._marked_outputs: list[tuple[torch.Tensor, Where]] = []

    def mark_input(self, tensor: torch.Tensor, overlaps: bool) -> torch.Tensor:
        """Marks an input; returns a view of it, so that any other op on the input itself shows."""
        where = self._seen(overlaps)
        index = next((i for i, t in enumerate(self.inputs) if t is tensor), None)
        if index is None:
            raise _error(
                "input", "applied on a node which is not a tensor input to the model", where
            )
        self._marked_inputs.append((index, where))
        return tensor.view_as(tensor)

    def mark_output(self, tensor: torch.Tensor, overlaps: bool) -> torch.Tensor:
        """Marks a tensor that forward is going to return."""
        self._marked_outputs.append((tensor, self._seen(overlaps)))
        return tensor

    def _seen(self, overlaps: bool) -> Where:
        where = errors.user_frame()
        if overlaps and self.where is None:
            self.where = where
        return where

    def check_outputs(self, leaves: Sequence[torch.Tensor]) -> None:
        """Raises unless every marked output is one of the tensors that forward returned."""
        for tensor, where in self._marked_outputs:
            count = sum(leaf is tensor for leaf in leaves)
            if count == 0:
                text = "applied on a node which is not a tensor output to the model"
                raise _error("output", text, where)
            if count > 1:
                raise _error("output", "cannot be used with a tensor that is returned twice", where)

    def check_inputs(self, placeholders: Sequence[torch.fx.Node]) -> None:
        """Raises if another op uses a marked input."""
        for index, where in self._marked_inputs:
            if len(placeholders[index].users) > 1:
                raise _error("input", "must be the only op applied to an input", where)


def _error(what: Literal["input", "output"], text: str, where: Where) -> Error:
    return errors.make_error(f"poptorch.set_overlap_for_{what} {text}", where)
