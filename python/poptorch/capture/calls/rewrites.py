# SPDX-License-Identifier: Apache-2.0
"""Functions that capture computes by other ops than ATen: dropout, padding, one_hot, index_fill."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from poptorch.capture import library
from poptorch.capture.calls.handler import Args, Function, Handler, Kwargs, Mode


def _dropout(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def bind(
        input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> tuple[Tensor, float, bool, bool]:
        return input, p, training, inplace

    def bind_builtin(input: Tensor, p: float, train: bool) -> tuple[Tensor, float, bool, bool]:
        return input, p, train, func is torch.dropout_

    x, p, training, inplace = (bind if func is F.dropout else bind_builtin)(*args, **kwargs)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0.0:
        return x
    # With nothing kept eager multiplies by zero, which keeps NaN.
    out = torch.native_dropout(x, float(p), True)[0] if p < 1.0 else x * 0
    return x.copy_(out) if inplace else out


def _pad(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    def bind(
        input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
    ) -> tuple[Tensor, list[int], str]:
        return input, list(pad), mode

    x, pad, how = bind(*args, **kwargs)
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    if how != "circular" or x.dtype not in dtypes or "resample" not in mode.session.rows:
        return NotImplemented
    spatial = len(pad) // 2
    fits = x.dim() == spatial + 2 and 1 <= spatial <= 3 and x.numel() > 0
    for i, amount in enumerate(pad):
        fits = fits and 0 <= amount <= x.shape[-1 - i // 2]
    return library.CircularPad.apply(x, pad) if fits else NotImplemented


def _one_hot(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """By a scatter, which checks its indices; ATen compares, so that a wrong one goes unseen."""

    def run(input: Tensor, num_classes: int = -1) -> Any:
        if num_classes < 1 or input.dtype is not torch.int64 or not input.numel():
            return NotImplemented
        zeros = torch.zeros(*input.shape, num_classes, dtype=torch.int64, device=input.device)
        return zeros.scatter(-1, input.unsqueeze(-1), 1)

    return run(*args, **kwargs)


def _index_fill(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """With a value that has a gradient: ATen sums it over unique indices, this over a mask."""

    def run(input: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Any:
        if not (isinstance(value, Tensor) and value.requires_grad):
            return NotImplemented
        shape = [1] * input.dim()
        if shape:
            shape[dim] = input.shape[dim]
        size = input.shape[dim] if shape else 1
        mask = torch.zeros(size, dtype=torch.bool).index_fill(0, index, True).reshape(shape)
        out = torch.where(mask, value.to(input.dtype), input)
        return input.copy_(out) if func is torch.Tensor.index_fill_ else out

    return run(*args, **kwargs)


HANDLERS: dict[Function, Handler] = {
    **dict.fromkeys((F.dropout, torch.dropout, torch.dropout_), _dropout),
    F.pad: _pad,
    F.one_hot: _one_hot,
    **dict.fromkeys(
        (torch.index_fill, torch.Tensor.index_fill, torch.Tensor.index_fill_), _index_fill
    ),
}
