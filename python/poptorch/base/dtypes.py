# SPDX-License-Identifier: Apache-2.0
"""Element types: the core's rows as types of torch."""

import torch

from poptorch import _core

_WORDS = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}


def _torch_dtype(name: str) -> torch.dtype:
    """``bf16`` -> ``torch.bfloat16``."""
    letters = name.rstrip("0123456789")
    return getattr(torch, _WORDS.get(letters, letters) + name.removeprefix(letters))


#: By the core's name.
DTYPES = {name: _torch_dtype(name) for name, _ in _core.dtypes()}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
#: Those that kernels compute with; the others are only stored, moved and given to host calls.
NATIVE_DTYPES = frozenset(DTYPES[name] for name, computes in _core.dtypes() if computes)
