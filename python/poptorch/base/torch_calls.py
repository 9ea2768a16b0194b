# SPDX-License-Identifier: Apache-2.0
"""The private torch APIs that every call needs; those of capture are in capture/_torch_private.py,
which takes long to import."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards
from torch.utils._python_dispatch import _disable_current_modes

#: As torch.set_grad_enabled, which makes an object each time.
set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled


def tensor_check(tensors: list[torch.Tensor]) -> Callable[..., bool]:
    """A function that says whether tensors are like these in all but their values.

    That is class, type, sizes, strides, device, and what torch has to do before values can be read,
    such as negating them.
    """
    if len({id(t) for t in tensors}) < len(tensors):
        # Guards of several tensors want each to be another object.
        checks = [tensor_check([t]) for t in tensors]
        return lambda *values: all(check(v) for check, v in zip(checks, values, strict=True))
    guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return guards.check


def any_mode() -> bool:
    """Whether something may change what torch's functions do, a default device included."""
    return torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack() > 0


@contextmanager
def real_tensors() -> Iterator[Any]:
    """In here torch makes real tensors on the CPU, whatever modes and default device there are."""
    if not any_mode():
        yield
        return
    with _disable_current_modes(), torch.device("cpu"):
        yield
