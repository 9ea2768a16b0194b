# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of programs; not imported by ``import poptorch``."""

from typing import Any

import torch


def allclose(ref: Any, other: Any) -> bool:
    """Whether two tensors, or two nested tuples or lists of them, are equal up to rounding."""
    if isinstance(ref, (tuple, list)):
        return (
            isinstance(other, (tuple, list))
            and len(ref) == len(other)
            and all(allclose(a, b) for a, b in zip(ref, other, strict=True))
        )
    return torch.allclose(ref, other)
