# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that several ops share."""

from typing import Any

import torch

from poptorch.base.errors import createPoptorchError


def check_tensor(op: str, value: Any) -> None:
    """Raise unless ``value`` is a tensor."""
    if not isinstance(value, torch.Tensor):
        raise createPoptorchError(f"{op}: an argument of type {type(value)} is not supported.")
