# SPDX-License-Identifier: Apache-2.0
"""torch.linalg.lstsq with result shapes that do not depend on the data.

Torch returns residuals only for matrices of full rank; here all count as such.
"""

from typing import Any

import torch
from torch import Tensor


def lstsq(
    A: Tensor,  # noqa: N803, torch's names
    B: Tensor,  # noqa: N803
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> Any:
    """As torch.linalg.lstsq, through the pseudo-inverse."""
    rows, cols = A.shape[-2:]
    vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    right = B.unsqueeze(-1) if vector else B
    if A.dim() < 2 or right.dim() < 2 or right.shape[-2] != rows:
        raise RuntimeError(
            f"torch.linalg.lstsq: matrices of shapes {tuple(A.shape)} and {tuple(B.shape)} do not "
            "fit each other"
        )
    rcond = torch.finfo(A.dtype).eps * max(rows, cols) if rcond is None else float(rcond)
    found = torch.linalg.pinv(A, rtol=rcond) @ right
    driver = driver or "gelsy"
    residuals = A.new_empty(0)
    if rows > cols and driver != "gelsy":
        residuals = (A @ found - right).square().sum(-2)
    rank = torch.empty(0, dtype=torch.int64)
    values = A.new_empty(0)
    if driver != "gels":
        spectrum = torch.linalg.svdvals(A.detach())
        rank = (spectrum > rcond * spectrum[..., :1]).sum(-1)
        if driver != "gelsy":
            values = spectrum
    solution = found.squeeze(-1) if vector else found
    results = (solution, residuals, rank, values)
    return torch.return_types.linalg_lstsq(results)  # type: ignore[attr-defined]  # has no stub
