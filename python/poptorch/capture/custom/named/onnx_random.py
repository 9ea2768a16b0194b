# SPDX-License-Identifier: Apache-2.0
"""``ai.onnx``: ops that draw random numbers. The seed is that of the options."""

import torch
import torch.nn.functional as F
from torch import Tensor

from poptorch.capture import state
from poptorch.capture.custom.named.table import Call, Named, Result


def in_training() -> bool:
    """Whether a model is captured to be trained."""
    session = state.current()
    return session is not None and session.training


def _normal(call: Call, shape: list[int], dtype: torch.dtype) -> Tensor:
    mean, scale = call.float_("mean", 0.0), call.float_("scale", 1.0)
    call.known("seed")
    return torch.randn(shape, dtype=dtype) * scale + mean


def _uniform(call: Call, shape: list[int], dtype: torch.dtype) -> Tensor:
    low, high = call.float_("low", 0.0), call.float_("high", 1.0)
    call.known("seed")
    return torch.rand(shape, dtype=dtype) * (high - low) + low


def _shape(call: Call) -> list[int]:
    shape = call.ints("shape")
    return call.fail("attribute shape must be given.") if shape is None else shape


def _like(call: Call) -> torch.dtype:
    x = call.x()
    return call.dtype("dtype", x.dtype if x.is_floating_point() else torch.float32)


def _bernoulli(call: Call) -> Tensor:
    x = call.x()
    call.known("seed")
    return (torch.rand_like(x) < x).to(call.dtype("dtype", x.dtype))


def _dropout(call: Call) -> Result:
    x = call.x()
    ratio, active = 0.5, in_training()
    if call.version >= 12:
        call.known("seed")
        given, training = call.numbers_or_none(1, "ratio"), call.numbers_or_none(2, "training_mode")
        ratio = ratio if given is None else given[0]
        active = active if training is None else bool(training[0])
    else:
        ratio = call.float_("ratio", ratio)
        if call.version < 7:
            active = active and not call.flag("is_test")
    if not 0 <= ratio < 1:
        call.fail(f"the ratio must be in [0, 1), not {ratio:g}.")
    if call.results < 2:
        return F.dropout(x, ratio, active)
    if not active:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.rand_like(x) >= ratio
    return x * mask.to(x.dtype) / (1 - ratio), mask


ROWS: dict[str, Named] = {
    "Bernoulli": Named(_bernoulli, 15),
    "Dropout": Named(_dropout),
    "RandomNormal": Named(lambda c: _normal(c, _shape(c), c.dtype("dtype", torch.float32))),
    "RandomNormalLike": Named(lambda c: _normal(c, list(c.x().shape), _like(c))),
    "RandomUniform": Named(lambda c: _uniform(c, _shape(c), c.dtype("dtype", torch.float32))),
    "RandomUniformLike": Named(lambda c: _uniform(c, list(c.x().shape), _like(c))),
}
