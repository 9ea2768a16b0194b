# SPDX-License-Identifier: Apache-2.0
"""Tensors made from numbers that are themselves captured tensors: they follow the data.

Eager PyTorch reads such numbers; `torch.tensor([a, b])` is a stack of them here.
"""

import inspect
from typing import Any

import torch

from poptorch.capture import _torch_private as private
from poptorch.capture.calls.handler import Args, Function, Handler, Kwargs, Mode
from poptorch.capture.values import constants
from poptorch.capture.values.constants import is_dynamic


def _is_unknown(value: Any) -> bool:
    return isinstance(value, private.FakeTensor) and constants.value_of(value) is None


def mentions_unknown(data: Any) -> bool:
    """Whether a nested list has captured tensors in it."""
    if isinstance(data, (list, tuple)):
        return any(map(mentions_unknown, data))
    return _is_unknown(data)


def _numbers(data: Any) -> list[Any]:
    if isinstance(data, (list, tuple)):
        return [n for item in data for n in _numbers(item)]
    return [data]


def _dtype_of(value: Any) -> torch.dtype:
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, bool):
        return torch.bool
    return torch.int64 if isinstance(value, int) else torch.get_default_dtype()


def stacked(data: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A nested list of numbers as a tensor, in the type that torch.tensor gives it."""
    if dtype is None:
        numbers = _numbers(data)
        dtype = _dtype_of(numbers[0])
        for number in numbers[1:]:
            dtype = torch.promote_types(dtype, _dtype_of(number))

    def build(item: Any) -> torch.Tensor:
        if isinstance(item, (list, tuple)):
            return torch.stack([build(i) for i in item])
        if isinstance(item, torch.Tensor):
            return item.detach().to(dtype)
        return torch.full((), item, dtype=dtype)

    return build(data)


def _of_one_size(data: Any) -> bool:
    """Whether the tensors in a nested list are numbers; other lists are eager's to refuse."""
    return all(not isinstance(n, torch.Tensor) or n.dim() == 0 for n in _numbers(data))


def _tensor(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def run(data: Any, dtype: torch.dtype | None = None, *_place: Any, **_other: Any) -> Any:
        if not isinstance(data, (list, tuple)) or not mentions_unknown(data):
            return NotImplemented
        return stacked(data, dtype) if _of_one_size(data) else NotImplemented

    return run(*args, **kwargs)


def _new_tensor(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    x, *rest = args
    return _tensor(mode, func, tuple(rest), {**kwargs, "dtype": kwargs.get("dtype") or x.dtype})


def _full(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def run(
        size: Any,
        fill_value: Any,
        *,
        dtype: torch.dtype | None = None,
        out: Any = None,
        **_other: Any,
    ) -> Any:
        if not _is_unknown(fill_value) or fill_value.numel() != 1 or out is not None:
            return NotImplemented
        kind = fill_value.dtype
        kind = torch.get_default_dtype() if kind.is_floating_point else kind
        kind = kind if kind is torch.bool or kind.is_floating_point else torch.int64
        return fill_value.detach().reshape(()).to(dtype or kind).expand(size).clone()

    return run(*args, **kwargs)


def _full_like(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def run(
        input: torch.Tensor, fill_value: Any, *, dtype: torch.dtype | None = None, **_other: Any
    ) -> Any:
        if not _is_unknown(fill_value) or fill_value.numel() != 1:
            return NotImplemented
        number = fill_value.detach().reshape(()).to(dtype or input.dtype)
        return number.expand(input.shape).clone()

    return run(*args, **kwargs)


def _new_full(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def run(
        input: torch.Tensor,
        size: Any,
        fill_value: Any,
        *,
        dtype: torch.dtype | None = None,
        **_other: Any,
    ) -> Any:
        if not _is_unknown(fill_value) or fill_value.numel() != 1:
            return NotImplemented
        number = fill_value.detach().reshape(()).to(dtype or input.dtype)
        return number.expand(size).clone()

    return run(*args, **kwargs)


def _arange(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Between integers that differ by a constant."""

    def run(*bounds: Any, dtype: torch.dtype | None = None, **_other: Any) -> Any:
        if len(bounds) < 2 or not is_dynamic(bounds[0]) or not is_dynamic(bounds[1]):
            return NotImplemented
        step = bounds[2] if len(bounds) > 2 else 1
        size = mode.session.views.differences.between(bounds[0], bounds[1])
        if size is None or size < 0 or not isinstance(step, int) or step < 1:
            return NotImplemented
        found = bounds[0].detach().reshape(()).to(torch.int64) + torch.arange(0, size, step)
        return found if dtype is None else found.to(dtype)

    return NotImplemented if "start" in kwargs or "end" in kwargs else run(*args, **kwargs)


def _roll(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def run(input: torch.Tensor, shifts: Any, dims: Any = ()) -> Any:
        if not is_dynamic(shifts):
            return NotImplemented
        dims = [dims] if isinstance(dims, int) else list(dims)
        if len(dims) > 1 or (dims and not isinstance(dims[0], int)):
            return NotImplemented
        x, dim = (input, dims[0]) if dims else (input.reshape(-1), 0)
        length = x.shape[dim]
        if not length:
            return NotImplemented
        rows = (torch.arange(length) - shifts.detach().reshape(1).to(torch.int64)) % length
        return x.index_select(dim, rows).reshape(input.shape)

    return run(*args, **kwargs)


HANDLERS: dict[Function, Handler] = {
    # weights/doors.py may have wrapped them.
    **dict.fromkeys(map(inspect.unwrap, (torch.tensor, torch.as_tensor)), _tensor),
    inspect.unwrap(torch.Tensor.new_tensor): _new_tensor,
    torch.full: _full,
    torch.full_like: _full_like,
    torch.Tensor.new_full: _new_full,
    torch.arange: _arange,
    **dict.fromkeys((torch.roll, torch.Tensor.roll), _roll),
}
