# SPDX-License-Identifier: Apache-2.0
"""Element types: the core has one table of them, and torch's types are found from its names."""

import torch
from poptorch.base.dtypes import DTYPE_NAMES, DTYPES, NATIVE_DTYPES

OPAQUE = {torch.uint16, torch.uint32, torch.uint64}
OPAQUE |= {torch.complex32, torch.complex64, torch.complex128}


def test_every_type_of_the_core_is_one_of_torch() -> None:
    assert DTYPES["f32"] is torch.float32
    assert DTYPES["bf16"] is torch.bfloat16
    assert DTYPES["u8"] is torch.uint8
    assert DTYPES["bool"] is torch.bool
    assert DTYPES["c128"] is torch.complex128
    assert len(DTYPE_NAMES) == len(DTYPES) == 16
    assert set(DTYPES.values()) - NATIVE_DTYPES == OPAQUE
