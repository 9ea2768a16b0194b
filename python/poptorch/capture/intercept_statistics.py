# SPDX-License-Identifier: Apache-2.0
"""Statistics whose checks or sizes read data in ATen: weighted covariance, counts of values."""

import torch

from . import constants, library


def _known(tensor):
    return tensor is None or constants.value_of(tensor) is not None


def cov(mode, func, args, kwargs):
    """Covariance with weights that are data: ATen reads them to see that they are not negative."""

    def run(input, *, correction=1, fweights=None, aweights=None):
        plain = 0 < input.dim() <= 2 and input.numel() > 0
        if not plain or (_known(fweights) and _known(aweights)):
            return NotImplemented
        x = input.reshape(1, -1) if input.dim() < 2 else input
        if not x.is_floating_point():
            x = x.to(torch.get_default_dtype())
        weights = fweights
        if aweights is not None:
            weights = aweights if fweights is None else fweights * aweights
        total = weights.sum()
        if aweights is None or correction == 0:
            rest = total - correction
        else:
            rest = total - correction * (weights * aweights).sum() / total
        x = x - ((x * weights).sum(1) / total).unsqueeze(1)
        product = torch.mm(x, (x * weights).to(x.dtype).t())
        return (product / rest.clamp_min(0)).to(x.dtype).squeeze()

    return run(*args, **kwargs)


def bincount(mode, func, args, kwargs):
    """With a minlength that is the size of the result: a value beyond it is an error when the
    program runs."""

    def run(input, weights=None, minlength=0):
        plain = input.dim() == 1 and not input.is_floating_point() and input.dtype != torch.bool
        if minlength <= 0 or _known(input) or not plain:
            return NotImplemented
        return library.ops.bincount(input, weights, minlength)

    return run(*args, **kwargs)


HANDLERS = {
    torch.cov: cov,
    torch.Tensor.cov: cov,
    torch.bincount: bincount,
    torch.Tensor.bincount: bincount,
}
