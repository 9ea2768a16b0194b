# SPDX-License-Identifier: Apache-2.0
"""Indices and slice bounds that are tensors: slices and updates that follow the data in each call.

`x[i]` reads the value of `i` in eager PyTorch. Here it becomes a gather of one row, `x[i:i + 2]`
one of two rows. Eager's results are views; ours are copies, and a write to one of the two is
carried over to the other.
"""

from collections.abc import Callable
from typing import Any

import torch

from poptorch.capture import _torch_private as private
from poptorch.capture.calls.handler import Args, Function, Handler, Kwargs, Mode
from poptorch.capture.values import ragged
from poptorch.capture.values.affine import Differences
from poptorch.capture.values.constants import is_dynamic
from poptorch.capture.values.follow import mentions_unknown, stacked

_Take = Callable[[torch.Tensor, int, torch.Tensor], torch.Tensor]  # (x, dim, rows) -> these rows


def _wrapped(start: torch.Tensor, length: int) -> torch.Tensor:
    """An index that counts from the end if it is negative; the gather refuses one out of range."""
    start = start.detach().reshape(1).to(torch.int64)
    return torch.where(start < 0, start + length, start)


def _slice_indices(start: torch.Tensor, size: int, step: int, length: int) -> torch.Tensor:
    """The indices of start : start + size : step.

    Where eager would shorten the result they are out of range, because the size of ours is fixed.
    """
    start = start.detach().reshape(1).to(torch.int64)
    inside = torch.where(start < -size, start + length, length)
    return torch.where(start < 0, inside, start) + torch.arange(0, size, step)


class _View:
    """A copy of rows of `base`, kept equal to them."""

    def __init__(
        self, base: torch.Tensor, dim: int, rows: torch.Tensor, copy: torch.Tensor
    ) -> None:
        self.base, self.dim, self.rows = base, dim, rows
        self._copy = private.weak(copy)
        # Lies in the same memory, and stays when only views of the copy are left.
        self.memory = copy.detach()
        self.seen()

    @property
    def copy(self) -> torch.Tensor:
        found = self._copy()
        return self.memory if found is None else found

    def seen(self) -> None:
        self.versions = self.memory._version, self.base._version

    def write_back(self) -> None:
        """Carry a write to the copy over to the base."""
        if self.memory._version != self.versions[0]:
            # A copy, because autograd keeps what is written, and this memory may change again.
            self.base.index_copy_(self.dim, self.rows, self.copy.clone())
            self.seen()

    def refresh(self) -> None:
        """Carry a write to the base over to the copy."""
        if self.base._version != self.versions[1]:
            self.copy.copy_(self.base.index_select(self.dim, self.rows))
            self.seen()


class DynamicViews:
    """The views of one capture whose index is a tensor."""

    def __init__(self) -> None:
        self.differences = Differences()
        self._views: list[_View] = []
        self._limit = 64

    def take(self, x: torch.Tensor, dim: int, rows: torch.Tensor) -> torch.Tensor:
        """The rows of x along a dim at these indices, as if it were a view."""
        copy = x.index_select(dim, rows)
        self._views.append(_View(x, dim, rows, copy))
        if len(self._views) > self._limit:
            self._forget()
            self._limit = max(64, 2 * len(self._views))
        return copy

    def sync(self) -> None:
        """After a call that may have written to a tensor."""
        if all(v.versions == (v.memory._version, v.base._version) for v in self._views):
            return
        self._forget()
        for view in reversed(self._views):  # a view of a view comes before it
            view.write_back()
        for view in self._views:
            view.refresh()

    def _forget(self) -> None:
        """Drop views that nobody can see any more; those that were written to stay."""
        before = len(self._views) + 1
        while len(self._views) < before:  # a view of a view that is gone may go too
            before = len(self._views)
            own = {id(v.memory) for v in self._views}
            alive = private.live_storages(private.running_tracer(), own)
            self._views = [
                v
                for v in self._views
                if v.memory._version != v.versions[0] or private.storage_id(v.memory) in alive
            ]

    @property
    def exist(self) -> bool:
        """Whether there are any."""
        return bool(self._views)


# Indices ------------------------------------------------------------------------------------------


def _in_tuple(index: Any) -> list[Any]:
    """The entries of an index; a list that has tensors in it counts as a tuple, as in eager."""
    several = isinstance(index, tuple)
    several = several or (isinstance(index, list) and any(map(torch.is_tensor, index)))
    return list(index) if several else [index]


def _has_tensors(index: Any) -> bool:
    """Whether an index may have something in it that depends on data; most have not."""
    if isinstance(index, (tuple, list)):
        return any(map(_has_tensors, index))
    if isinstance(index, slice):
        return isinstance(index.start, torch.Tensor)
    return isinstance(index, torch.Tensor)


def _mentions(entry: Any) -> bool:
    if isinstance(entry, slice):
        return is_dynamic(entry.start) and is_dynamic(entry.stop)
    return is_dynamic(entry) and entry.dim() == 0


def _width(entry: Any) -> int:
    """How many dims of the tensor an entry of an index stands for."""
    if entry is None or isinstance(entry, bool) or entry is Ellipsis:
        return 0
    if isinstance(entry, torch.Tensor) and entry.dtype in (torch.bool, torch.uint8):
        return entry.dim()
    return 1


def _taken(
    views: DynamicViews, x: torch.Tensor, entries: list[Any], take: _Take
) -> tuple[torch.Tensor, tuple[Any, ...]] | None:
    """(x with the rows of all dynamic entries, the index that is left).

    None if there are no such entries that can be followed.
    """
    rank = sum(map(_width, entries))
    dim, done = 0, False
    for i, entry in enumerate(entries):
        if entry is Ellipsis:
            dim += x.dim() - rank
        if isinstance(entry, list) and mentions_unknown(entry):
            entries[i], done = stacked(entry), True
        if _mentions(entry) and dim < x.dim():
            length = x.shape[dim]
            if isinstance(entry, slice):
                rows = _rows_of_slice(views, entry, length)
                entries[i] = entry if rows is None else slice(None)
            else:
                rows, entries[i] = _wrapped(entry, length), 0
            if rows is not None:
                x, done = take(x, dim, rows), True
        dim += _width(entry)
    return (x, tuple(entries)) if done else None


def _rows_of_slice(views: DynamicViews, given: slice, length: int) -> torch.Tensor | None:
    """The indices of a slice between two tensors; None unless they differ by a constant."""
    step = 1 if given.step is None else given.step
    size = views.differences.between(given.start, given.stop)
    if size is None or not 0 < size <= length or not isinstance(step, int) or step < 1:
        return None
    return _slice_indices(given.start, size, step, length)


def _getitem(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    x, index = args
    if not _has_tensors(index):
        return NotImplemented
    views = mode.session.views
    found = _taken(views, x, _in_tuple(index), views.take)
    return ragged.getitem(mode, x, index) if found is None else found[0][found[1]]


def _setitem(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    x, index, value = args
    if not _has_tensors(index):
        return NotImplemented
    parts: list[tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]] = []

    def take(x: torch.Tensor, dim: int, rows: torch.Tensor) -> torch.Tensor:
        part = x.index_select(dim, rows)
        parts.append((x, dim, rows, part))
        return part

    found = _taken(mode.session.views, x, _in_tuple(index), take)
    if found is None:
        return NotImplemented
    found[0][found[1]] = value
    for whole, dim, rows, part in reversed(parts):
        whole.index_copy_(dim, rows, part)
    return None


def _select(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def run(input: torch.Tensor, dim: int, index: Any) -> Any:
        if not is_dynamic(index) or not isinstance(dim, int):
            return NotImplemented
        dim %= input.dim()
        rows = _wrapped(index, input.shape[dim])
        return mode.session.views.take(input, dim, rows).select(dim, 0)

    return run(*args, **kwargs)


def _narrow(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def run(input: torch.Tensor, dim: int, start: Any, length: int) -> Any:
        if not is_dynamic(start) or not isinstance(length, int):
            return NotImplemented
        dim %= input.dim()
        rows = _wrapped(start, input.shape[dim]) + torch.arange(length)
        taken = mode.session.views.take(input, dim, rows)
        return taken.clone() if func in _COPIES else taken

    return run(*args, **kwargs)


def _select_scatter(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def run(input: torch.Tensor, src: torch.Tensor, dim: int, index: Any) -> Any:
        if not is_dynamic(index):
            return NotImplemented
        dim %= input.dim()
        rows = _wrapped(index, input.shape[dim])
        return input.index_copy(dim, rows, src.unsqueeze(dim))

    return run(*args, **kwargs)


_COPIES: set[Function] = {torch.narrow_copy, torch.Tensor.narrow_copy}
HANDLERS: dict[Function, Handler] = {
    torch.Tensor.__getitem__: _getitem,
    torch.Tensor.__setitem__: _setitem,
    **dict.fromkeys((torch.select, torch.Tensor.select, torch.select_copy), _select),
    **dict.fromkeys((torch.narrow, torch.Tensor.narrow, *_COPIES), _narrow),
    **dict.fromkeys((torch.select_scatter, torch.Tensor.select_scatter), _select_scatter),
}
