# SPDX-License-Identifier: Apache-2.0
"""What the rows of linear algebra mean, in terms of eager torch."""

import torch


def _permutation(pivots):
    order = torch.arange(pivots.shape[-1]).expand(pivots.shape).clone()
    for at in torch.cartesian_prod(*(torch.arange(n) for n in pivots.shape)).view(-1, pivots.dim()):
        *batch, i = at.tolist()
        j = int(pivots[(*batch, i)]) - 1
        row = order[tuple(batch)]
        row[i], row[j] = row[j].clone(), row[i].clone()
    return order


EVALUATE = {
    "eigh": lambda a, upper: torch.linalg.eigh(a, "U" if upper else "L"),
    "linalg_cholesky_ex": lambda a, upper, _check: torch.linalg.cholesky_ex(a, upper=upper),
    "linalg_lu_factor_ex": lambda a, pivot, _check: torch.linalg.lu_factor_ex(a, pivot=pivot),
    "linalg_lu_solve": lambda lu, pivots, b, adjoint: torch.linalg.lu_solve(
        lu, pivots, b, adjoint=adjoint
    ),
    "linalg_solve_triangular": lambda a, b, upper, unit: torch.linalg.solve_triangular(
        a, b, upper=upper, unitriangular=unit
    ),
    "lu_permutation": _permutation,
    "svd_thin": torch.linalg.svdvals,  # the form without vectors
}
