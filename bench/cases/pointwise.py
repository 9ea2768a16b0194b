# SPDX-License-Identifier: Apache-2.0
"""One fused region on its own: what code generation gives."""

import torch

from bench.harness import case
from bench.models import PointwiseChain

SHAPE = (4096, 768)


@case("fused pointwise chain, 4096 x 768", eager=4, compiled=2)
def pointwise_chain(ctx):
    x, residual = torch.randn(SHAPE), torch.randn(SHAPE)
    mask = (torch.rand(SHAPE) < 0.9).float()
    return ctx.inference(PointwiseChain(SHAPE[1]), (x, mask, residual))


CASES = [pointwise_chain]
