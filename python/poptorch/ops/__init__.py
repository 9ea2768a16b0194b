# SPDX-License-Identifier: Apache-2.0
"""PopTorch's own ops. Those that only place or tune work on an IPU are identities; the others are
written with PyTorch's ops."""

import torch

from poptorch.capture import identity_loss
from poptorch.ops.blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    NameScope,
    pop_name_scope,
    push_name_scope,
    removeBlocks,
)
from poptorch.ops.control_flow import cond, for_loop
from poptorch.ops.cpu import CPU
from poptorch.ops.custom import custom_op
from poptorch.ops.custom_library import (
    custom_op_cflags,
    custom_op_ldflags,
    load_custom_op_library,
)
from poptorch.ops.decoding import ctc_beam_search_decoder
from poptorch.ops.geometry import fps, nearest
from poptorch.ops.hints import (
    MultiConv,
    nop,
    recomputationCheckpoint,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from poptorch.ops.print_tensor import ipu_print_tensor
from poptorch.ops.slices import dynamic_slice, dynamic_update, serializedMatMul

__all__ = [
    "CPU",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "LegacyBeginBlockFn",
    "MultiConv",
    "NameScope",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "custom_op_cflags",
    "custom_op_ldflags",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "identity_loss",
    "ipu_print_tensor",
    "load_custom_op_library",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "removeBlocks",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
]


def _internal_cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """The tensor as ``FLOAT`` or ``FLOAT16``."""
    return tensor.to({"FLOAT": torch.float32, "FLOAT16": torch.float16}[dtype])


# Some programs use these by the names that PopTorch registers with torch.
for _name, _function in {
    "push_name_scope": push_name_scope,
    "pop_name_scope": pop_name_scope,
    "internal_cast": _internal_cast,
}.items():
    setattr(torch.ops.poptorch, _name, _function)
