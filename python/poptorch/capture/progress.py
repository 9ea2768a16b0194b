# SPDX-License-Identifier: Apache-2.0
"""How far a capture is: counted in modules entered, then in nodes of autograd run backward."""

from collections.abc import Callable

import torch

# Shares of the time; forward without a backward takes both.
_FORWARD, _BACKWARD = 0.5, 0.4


class Progress:
    """Calls `report` with the fraction that is done, whenever it has grown by a hundredth."""

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        training: bool = False,
        report: Callable[[float], None] | None = None,
    ) -> None:
        self._report = report
        self._total = 1 if model is None or report is None else sum(1 for _ in model.modules())
        self._forward = _FORWARD if training else _FORWARD + _BACKWARD
        self._entered: set[int] = set()
        self._first = self._last = 0
        self._shown = 0.0

    def _at(self, fraction: float) -> None:
        if self._report is not None and fraction >= self._shown + 0.01:
            self._shown = fraction
            self._report(fraction)

    def enter_module(self, module: torch.nn.Module) -> None:
        """Forward has come to `module`."""
        self._entered.add(id(module))
        self._at(self._forward * min(1.0, len(self._entered) / self._total))

    def has_entered(self, module: torch.nn.Module) -> bool:
        """Whether forward has called `module`."""
        return id(module) in self._entered

    def begin_backward(self, first: int, last: int) -> None:
        """Nodes of autograd are numbered; backward goes from `last` to `first`."""
        self._first, self._last = first, last

    def backward(self, number: int) -> None:
        """Backward has come to the node with this number."""
        nodes = max(1, self._last - self._first)
        self._at(_FORWARD + _BACKWARD * min(1.0, (self._last - number) / nodes))
