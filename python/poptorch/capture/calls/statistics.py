# SPDX-License-Identifier: Apache-2.0
"""Statistics whose checks or sizes read data in ATen: weighted covariance, counts of values."""

from typing import Any

import torch

from poptorch.capture import library
from poptorch.capture.calls.handler import Args, Function, Handler, Kwargs, Mode
from poptorch.capture.values import constants


def _known(tensor: torch.Tensor | None) -> bool:
    return tensor is None or constants.value_of(tensor) is not None


def cov(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Covariance with weights that are data: ATen reads them to see that they are not negative."""

    def run(
        input: torch.Tensor,
        *,
        correction: int = 1,
        fweights: torch.Tensor | None = None,
        aweights: torch.Tensor | None = None,
    ) -> Any:
        plain = 0 < input.dim() <= 2 and input.numel() > 0
        if not plain or (_known(fweights) and _known(aweights)):
            return NotImplemented
        x = input.reshape(1, -1) if input.dim() < 2 else input
        if not x.is_floating_point():
            x = x.to(torch.get_default_dtype())
        weights = fweights
        if aweights is not None:
            weights = aweights if fweights is None else fweights * aweights
        assert weights is not None  # one of both is not known
        total = weights.sum()
        if aweights is None or correction == 0:
            rest = total - correction
        else:
            rest = total - correction * (weights * aweights).sum() / total
        x = x - ((x * weights).sum(1) / total).unsqueeze(1)
        product = torch.mm(x, (x * weights).to(x.dtype).t())
        return (product / rest.clamp_min(0)).to(x.dtype).squeeze()

    return run(*args, **kwargs)


def bincount(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """With a minlength, which is then the size of the result: larger values raise in the run."""

    def run(input: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> Any:
        plain = input.dim() == 1 and not input.is_floating_point() and input.dtype != torch.bool
        if minlength <= 0 or _known(input) or not plain:
            return NotImplemented
        return library.ops.bincount(input, weights, minlength)

    return run(*args, **kwargs)


HANDLERS: dict[Function, Handler] = {
    torch.cov: cov,
    torch.Tensor.cov: cov,
    torch.bincount: bincount,
    torch.Tensor.bincount: bincount,
}
