# SPDX-License-Identifier: Apache-2.0
"""``ipu_print_tensor``: an identity in the program that prints its tensor each time it runs."""

import sys
from typing import Any

import numpy as np
import torch

from poptorch._checks import check_tensor
from poptorch.capture import running_on_ipu

_lib = torch.library.Library("poptorch", "DEF")
_lib.define(
    "print_tensor(Tensor x, str title, int threshold, int edge_items, int width, int digits, "
    "int style, str separator, str opening, str closing) -> Tensor"
)

STYLES = {"auto": 0, "fixed": 1, "scientific": 2, "none": 3}


@torch.library.register_fake("poptorch::print_tensor", lib=_lib)
def _(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _print(x: torch.Tensor, title: str, *layout: Any) -> torch.Tensor:
    text = format_tensor(x, *layout)
    print(f"{title}: {text}" if title else text, file=sys.stderr, flush=True)
    return x.clone(memory_format=torch.contiguous_format)


_lib.impl("print_tensor", _print, "CPU")


def format_tensor(
    x: torch.Tensor,
    threshold: int = 1000,
    edge_items: int = 3,
    width: int = 80,
    digits: int = 4,
    style: int = 0,
    separator: str = ", ",
    opening: str = "(",
    closing: str = ")",
) -> str:
    """The values of a tensor as text; 0 as threshold, width or digits switches that off."""
    values = x.detach()
    values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    floats = np.issubdtype(values.dtype, np.floating)
    one = None
    if floats and style == STYLES["fixed"]:
        one = {"float_kind": lambda v: f"{v:.{digits or 4}f}"}
    elif floats and style == STYLES["scientific"]:
        one = {"float_kind": lambda v: f"{v:.{digits or 4}e}"}
    elif floats and (style == STYLES["none"] or digits == 0):
        one = {"float_kind": repr if values.dtype == np.float64 else lambda v: str(v)}
    text = np.array2string(
        values,
        max_line_width=width or sys.maxsize,
        precision=digits or None,
        threshold=threshold or sys.maxsize,
        edgeitems=edge_items,
        separator=separator,
        formatter=one,
    )
    return text.replace("[", opening).replace("]", closing)


class _PrintTensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gradient: bool, title: str, *layout: Any) -> Any:
        ctx.gradient = (f"{title}_gradient", *layout) if gradient else None
        return torch.ops.poptorch.print_tensor(x, title, *layout)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        shown = grad
        if ctx.gradient is not None:
            shown = torch.ops.poptorch.print_tensor(grad, *ctx.gradient)
        return (shown, *[None] * 10)


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Print a tensor on stderr each time the program runs; use the result, or nothing is printed.

    Args:
        tensor: what to print; returned as it is.
        title: printed before the values.
        print_gradient: print the gradient in backward too, as ``{title}_gradient``.
        summarise_threshold: larger tensors are shortened; 0 for never.
        edge_items: values shown at each end of a shortened dimension.
        max_line_width: where lines are wrapped; 0 for nowhere.
        digits: digits behind the point; 0 for as many as needed, unaligned.
        float_format: ``auto``, ``fixed``, ``scientific`` or ``none``.
        separator: between values.
        open_bracket: before the values of a dimension.
        close_bracket: behind them.
    """
    check_tensor("ipu_print_tensor", tensor)
    style = STYLES[float_format]
    if not running_on_ipu():
        return tensor
    layout = (summarise_threshold, edge_items, max_line_width, digits, style)
    marks = (separator, open_bracket, close_bracket)
    return _PrintTensor.apply(tensor, bool(print_gradient), str(title), *layout, *marks)
