# SPDX-License-Identifier: Apache-2.0
"""Labels that a mask selects: their number depends on the data.

ctc_loss is given the lengths in an argument of their own, so it can read such labels from the start
of a tensor that has room for all. Whoever else uses them would see the unused rest: that is the
error of a shape that depends on data.
"""

from typing import Any, NamedTuple

import torch

from poptorch.capture.calls.handler import Args, Function, Kwargs, Mode
from poptorch.capture.errors import Where, data_dependent, user_frame
from poptorch.capture.values import constants

_INTEGERS = (torch.int32, torch.int64)


class _Labels(NamedTuple):
    tensor: torch.Tensor
    longest: int  # of one sample
    what: str  # the call that selected them
    where: Where


class RaggedLabels:
    """The selected labels of one capture."""

    def __init__(self) -> None:
        self._found: dict[int, _Labels] = {}

    @property
    def exist(self) -> bool:
        """Whether there are any."""
        return bool(self._found)

    def select(self, x: torch.Tensor, mask: torch.Tensor, what: str) -> torch.Tensor:
        """x where the mask holds; what comes after that is not defined."""
        indices = torch.nonzero_static(mask.reshape(-1), size=mask.numel(), fill_value=0)
        labels = x.reshape(-1).index_select(0, indices.reshape(-1))
        self._found[id(labels)] = _Labels(labels, mask.shape[-1], what, user_frame())
        return labels

    def longest(self, tensor: torch.Tensor) -> int | None:
        """The most labels of a sample; None if the tensor is an ordinary one."""
        found = self._found.get(id(tensor))
        return None if found is None else found.longest

    def check(self, func: Function, args: Args, kwargs: Kwargs) -> None:
        """Raise unless `func` may be called with these arguments."""
        if func in _ALLOWED or func in _PASSED_ON:
            return
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, (list, tuple)) else [value]:
                self.refuse(item)

    def pass_on(self, func: Function, args: Args, out: Any) -> None:
        """The result of a copy or a cast of selected labels is selected labels too."""
        if func in _PASSED_ON and id(args[0]) in self._found:
            self._found[id(out)] = self._found[id(args[0])]._replace(tensor=out)

    def refuse(self, tensor: Any) -> None:
        """Raise if the tensor is one of selected labels."""
        found = self._found.get(id(tensor))
        if found is not None:
            raise data_dependent("shape", found.what, found.where)


def _selects_labels(x: Any, mask: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and isinstance(mask, torch.Tensor)
        and x.dtype in _INTEGERS
        and mask.dtype is torch.bool
        and 0 < x.dim()
        and x.shape == mask.shape
        and constants.value_of(mask) is None
    )


def masked_select(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """torch.masked_select, for labels."""

    def run(input: Any, mask: Any) -> Any:
        if not _selects_labels(input, mask):
            return NotImplemented
        return mode.session.ragged.select(input, mask, "torch.masked_select")

    return run(*args, **kwargs)


def getitem(mode: Mode, x: Any, index: Any) -> Any:
    """x[mask], for labels."""
    if not _selects_labels(x, index):
        return NotImplemented
    return mode.session.ragged.select(x, index, "torch.nonzero (or indexing with a boolean mask)")


_PASSED_ON = {
    getattr(torch.Tensor, name)
    for name in ("to", "int", "long", "detach", "clone", "contiguous", "cpu")
}
_ALLOWED = {
    torch.nn.functional.ctc_loss,
    torch.ctc_loss,
    torch.Tensor.dim,
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("dtype", "device", "layout", "ndim", "requires_grad", "is_cuda", "is_sparse")
    ),
}
