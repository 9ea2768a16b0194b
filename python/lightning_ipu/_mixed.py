# SPDX-License-Identifier: Apache-2.0
"""What ``precision="16-mixed"`` means for a step that is captured."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def mixed_context(module: torch.nn.Module) -> AbstractContextManager[Any]:
    """Around a step whose inputs are float16: float32 weights are cast where they are used."""
    if all(p.dtype == torch.float16 for p in module.parameters()):
        return nullcontext()  # model.half(): nothing is left to cast
    import poptorch

    return poptorch.autocast(True)
