# SPDX-License-Identifier: Apache-2.0
"""``poptorch.custom_ops``: ops that PopTorch adds to PopART's."""

import torch
import torch.nn.functional as F
from torch import Tensor

from poptorch.capture.custom.named.table import Call, Named


def _fast_gather_last_dim(call: Call) -> Tensor:
    data, index = call.x(0, "data"), call.x(1, "indices")
    call.known("axis")
    if data.dim() != index.dim() or data.shape[:-1] != index.shape[:-1]:
        call.fail(
            "data and indices must have equal ranks and equal sizes but for the last dimension, "
            f"not {list(data.shape)} and {list(index.shape)}."
        )
    if index.is_floating_point() or index.dtype == torch.bool:
        call.fail(f"indices must be integers, not {index.dtype}.")
    return torch.gather(data, -1, index.long())


def _softplus(call: Call) -> Tensor:
    return F.softplus(call.x(), call.float_("beta", 1.0), call.float_("threshold", 1.0))


def _embedding(call: Call) -> Tensor:
    weight, index, padding = call.x(0, "weight"), call.x(1, "indices"), call.int_("padding_idx", -1)
    if padding >= weight.shape[0]:
        call.fail(f"padding_idx is {padding}, but there are {weight.shape[0]} rows.")
    return F.embedding(index.long(), weight, None if padding < 0 else padding)


def _upsample_bilinear_2d(call: Call) -> Tensor:
    x, factor, corners = call.x(), call.float_("scaling_factor", 2.0), call.flag("align_corners")
    if x.dim() != 4:
        call.fail(f"the input must have 4 dimensions (NCHW), not {x.dim()}.")
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=corners)


ROWS: dict[str, Named] = {
    "Embedding": Named(_embedding, form="weight, indices; `padding_idx`"),
    "FastGatherLastDim": Named(
        _fast_gather_last_dim,
        form="data, indices of the same leading sizes",
    ),
    "TorchSoftplus": Named(_softplus, form="x; `beta`, `threshold`, both 1.0"),
    "UpsampleBilinear2d": Named(
        _upsample_bilinear_2d,
        form="x [N, C, H, W]; `scaling_factor` (2.0), `align_corners`",
    ),
}
