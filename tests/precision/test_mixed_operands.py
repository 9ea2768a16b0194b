# SPDX-License-Identifier: Apache-2.0
"""Ops with operands of float16 and float32: float16 wins unless the options say otherwise."""

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from poptorch import HalfFloatCastingBehavior as Behavior
from torch import nn

HALF, FULL = torch.float16, torch.float32


class Ops(nn.Module):
    def forward(self, h, x):
        return (
            h + x,
            x * h,
            torch.maximum(h, x),
            torch.where(h > x, h, x),
            torch.cat([h, x]),
            F.mse_loss(h, x),
        )


PAIR = torch.randn(4, 4).half(), torch.randn(4, 4)


def run(model, opts, *args):
    out = poptorch.inferenceModel(model, opts)(*args)
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("behavior", [None, Behavior.FloatDowncastToHalf, Behavior.Default])
def test_float16_wins(opts, behavior):
    if behavior is not None:
        opts.Precision.halfFloatCasting(behavior)
    got = run(Ops(), opts, *PAIR)
    h, x = PAIR[0], PAIR[1].half()
    want = Ops()(h, x)
    assert [t.dtype for t in got] == [HALF] * 6
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)


def test_upcasting_follows_torch(opts):
    opts.Precision.halfFloatCasting(Behavior.HalfUpcastToFloat)
    got, want = run(Ops(), opts, *PAIR), Ops()(*PAIR)
    assert [t.dtype for t in got] == [t.dtype for t in want]
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc, self.norm = (
            nn.Conv1d(4, 4, 3, padding=1),
            nn.Linear(8, 8),
            nn.LayerNorm(8),
        )

    def forward(self, x):
        y = self.conv(x)
        return y, self.fc(y), self.norm(y)


@pytest.mark.parametrize(
    "behavior, types",
    [(Behavior.FloatDowncastToHalf, [HALF] * 3), (Behavior.HalfUpcastToFloat, [FULL] * 3)],
)
def test_float32_weights_with_float16_inputs(opts, behavior, types):
    opts.Precision.halfFloatCasting(behavior)
    x = torch.randn(2, 4, 8).half()
    model = Layers()
    got = run(model, opts, x)
    assert [t.dtype for t in got] == types
    for ours, theirs in zip(got, model(x.float()), strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=1e-2, atol=1e-2)


def test_float32_weights_are_updated_in_float32(opts):
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 1, bias=False)
            nn.init.ones_(self.fc.weight)

        def forward(self, x):
            y = self.fc(x)
            return y, poptorch.identity_loss(y, "mean")

    model = Loss()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1e-4)
    step = poptorch.trainingModel(model, opts, optimizer)
    x = torch.ones(2, 4).half()
    for _ in range(10):
        assert step(x)[0].dtype == HALF
    # Each update is less than float16 can add to one.
    assert step.fc.weight.dtype == FULL
    torch.testing.assert_close(step.fc.weight, torch.full((1, 4), 1 - 1e-3), rtol=0, atol=1e-6)


def test_in_place_ops_keep_the_type_of_what_they_write(opts):
    class InPlace(nn.Module):
        def forward(self, h, x):
            a, b = h.clone(), x.clone()
            a += x
            b.mul_(h)
            return a, b, torch.zeros(4, 4).copy_(h)

    assert [t.dtype for t in run(InPlace(), opts, *PAIR)] == [HALF, FULL, FULL]


def test_explicit_casts_are_honoured(opts):
    class Casts(nn.Module):
        def forward(self, h, x):
            return h.float(), x.half(), h.to(x), x.type_as(h), x.to(HALF) + h, h.float() + x

    want = [FULL, HALF, FULL, HALF, HALF, FULL]
    assert [t.dtype for t in run(Casts(), opts, *PAIR)] == want


def test_ops_that_torch_cannot_run_in_half_on_the_cpu(opts):
    class Rare(nn.Module):
        def forward(self, h):
            return torch.linalg.vector_norm(h), torch.erfinv(h * 0.1), F.pixel_shuffle(h[None], 2)

    got = run(Rare(), opts, torch.randn(4, 2, 2).half())
    assert [t.dtype for t in got] == [HALF] * 3
