# SPDX-License-Identifier: Apache-2.0
"""``ipu_print_tensor``: an identity in the program that prints its tensor each time it runs."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from poptorch.base.errors import createPoptorchError
from poptorch.capture import running_on_ipu
from poptorch.ops.checks import check_tensor

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
    # One write: stages and replicas print from several threads, and print() makes two of a line.
    sys.stderr.write(f"{title}: {text}\n" if title else f"{text}\n")
    sys.stderr.flush()
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
    """The values of a tensor as text; 0 as threshold, width or digits switches that off.

    Of separator and brackets the first character counts.
    """
    plain = x.detach()
    values = (plain if plain.dtype in _NUMPY_TYPES else plain.float()).numpy()
    one = _number_format(values.dtype, style, digits)
    text = np.array2string(
        values,
        max_line_width=width or sys.maxsize,
        precision=digits or None,
        threshold=threshold or sys.maxsize,
        edgeitems=edge_items,
        separator=_BETWEEN,
        formatter=None if one is None else {"float_kind": one},
    )
    marks = {ord("["): opening[:1], ord("]"): closing[:1], ord(_BETWEEN): separator[:1]}
    lines = text.translate(marks).split("\n")
    return "\n".join(line.rstrip() for line in lines)


_BETWEEN = "\ue000"  # stands for the separator, which may be a bracket
_NUMPY_TYPES = frozenset(
    [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    + [torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128]
)


def _number_format(dtype: np.dtype, style: int, digits: int) -> Callable[[Any], str] | None:
    """How one number is written; None leaves it to numpy."""
    if not np.issubdtype(dtype, np.floating):
        return None
    if style == STYLES["none"] or digits == 0:
        return repr if dtype == np.float64 else str
    if style == STYLES["fixed"]:
        return lambda number: f"{number:.{digits}f}"
    if style == STYLES["scientific"]:
        return lambda number: f"{number:.{digits}e}"
    return None


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
        digits: digits after the point; 0 for as many as needed, unaligned.
        float_format: ``auto``, ``fixed``, ``scientific`` or ``none``.
        separator: between values; the first character counts, as of the brackets.
        open_bracket: before the values of a dimension.
        close_bracket: after them.
    """
    check_tensor("ipu_print_tensor", tensor)
    style = STYLES[float_format]
    layout = {
        "summarise_threshold": summarise_threshold,
        "edge_items": edge_items,
        "max_line_width": max_line_width,
        "digits": digits,
    }
    for name, value in layout.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise createPoptorchError(
                f"ipu_print_tensor: {name} must be an integer that is not negative, not {value!r}"
            )
    marks = {"separator": separator, "open_bracket": open_bracket, "close_bracket": close_bracket}
    for name, mark in {"title": title, **marks}.items():
        if not isinstance(mark, str):
            raise createPoptorchError(f"ipu_print_tensor: {name} must be a string, not {mark!r}")
    if not running_on_ipu():
        return tensor
    settings = (title, *layout.values(), style, *marks.values())
    return _PrintTensor.apply(tensor, bool(print_gradient), *settings)
