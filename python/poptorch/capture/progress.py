# SPDX-License-Identifier: Apache-2.0
"""How far a capture is: counted in modules entered, then in nodes of autograd run backward."""

# Shares of the time; forward without a backward takes both.
_FORWARD, _BACKWARD = 0.5, 0.4


class Progress:
    """Calls `report` with the fraction that is done, whenever it has grown by a hundredth."""

    def __init__(self, model=None, training=False, report=None):
        self._report = report
        self._total = sum(1 for _ in model.modules()) if report is not None else 1
        self._forward = _FORWARD if training else _FORWARD + _BACKWARD
        self._entered = set()
        self._first = self._last = 0
        self._shown = 0.0

    def _at(self, fraction):
        if fraction >= self._shown + 0.01:
            self._shown = fraction
            self._report(fraction)

    def enter_module(self, module):
        """Forward has come to `module`."""
        self._entered.add(id(module))
        if self._report is not None:
            self._at(self._forward * min(1.0, len(self._entered) / self._total))

    def has_entered(self, module):
        """Whether forward has called `module`."""
        return id(module) in self._entered

    def begin_backward(self, first, last):
        """Nodes of autograd are numbered; backward goes from `last` to `first`."""
        self._first, self._last = first, last

    def backward(self, number):
        """Backward has come to the node with this number."""
        if self._report is not None:
            nodes = max(1, self._last - self._first)
            self._at(_FORWARD + _BACKWARD * min(1.0, (self._last - number) / nodes))
