# SPDX-License-Identifier: Apache-2.0
"""Tensors that live between calls, those that do not, and the type of running statistics."""

import poptorch
import pytest
import torch
from torch import nn


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_place, self.replaced = torch.zeros(1), torch.zeros(1)
        self.read = torch.ones(1)

    def forward(self, x):
        self.in_place += 1
        self.replaced = self.replaced + 1
        return x + self.in_place + self.replaced + self.read


def test_a_plain_attribute_is_frozen_with_a_warning_that_names_it(opts, log):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Frozen()

        def forward(self, x):
            return self.inner(x)

    model = poptorch.inferenceModel(Outer(), opts)
    assert [model(torch.zeros(1)).item() for _ in range(3)] == [3.0] * 3
    assert log.text.count("inner.in_place is changed in forward") == 1
    assert log.text.count("inner.replaced is changed in forward") == 1
    assert "inner.read" not in log.text


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
@pytest.mark.filterwarnings("ignore")
def test_weights_made_by_hooks_are_no_state_and_no_mistake(opts, log, name):
    model = getattr(nn.utils, name)(nn.Linear(4, 4)).eval()
    x = torch.randn(2, 4)
    torch.testing.assert_close(poptorch.inferenceModel(model, opts)(x), model(x))
    assert "changed in forward" not in log.text


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("small", torch.zeros(1, dtype=torch.float16))

    def forward(self, x):
        self.steps += 1
        self.calls.add_(2)
        self.small.copy_(self.small + 0.5)
        return x + self.steps


def test_buffers_changed_in_place_live_between_calls(opts, log):
    model = Counter()
    run = poptorch.inferenceModel(model, opts)
    assert [run(torch.zeros(1)).item() for _ in range(3)] == [1.0, 2.0, 3.0]
    # Nothing comes back to the host by itself in inference.
    assert model.steps.item() == 0 and model.calls.item() == 0
    run.copyWeightsToHost()
    assert (model.steps.item(), model.calls.item(), model.small.item()) == (3.0, 6, 1.5)
    assert "changed in forward" not in log.text


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, momentum=1e-3)

    def forward(self, x):
        y = self.norm(x)
        return y, poptorch.identity_loss(y.float().pow(2), "mean")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_running_statistics_are_float32_on_the_device(opts, dtype):
    torch.manual_seed(0)
    x = (torch.randn(64, 4) + 3).to(dtype)

    def mean_after(always_float):
        chosen = opts.clone()
        chosen.Precision.runningStatisticsAlwaysFloat(always_float)
        model = Normed().to(dtype)
        model.norm.running_mean += 1
        step = poptorch.trainingModel(model, chosen)
        for _ in range(100):
            step(x)
        states = {s.name: s.dtype for s in step._executable.program.states}
        assert model.norm.running_mean.dtype == dtype
        return states["norm.running_mean"], model.norm.running_mean.float()

    reference = nn.BatchNorm1d(4, momentum=1e-3)
    reference.running_mean += 1
    for _ in range(100):
        reference(x.float())
    kind, mean = mean_after(True)
    assert kind == "f32"
    torch.testing.assert_close(mean, reference.running_mean, rtol=5e-3, atol=0)
    kind, rounded = mean_after(False)
    assert kind == {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    # A hundred roundings to half precision are worse than one.
    far, near = (m.sub(reference.running_mean).abs().max() for m in (rounded, mean))
    assert far > near


def test_statistics_of_half_models_in_inference(opts):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    model[1].running_mean.normal_()
    x = torch.randn(8, 4)
    want = model(x)
    got = poptorch.inferenceModel(model.half(), opts)(x.half())
    torch.testing.assert_close(got.float(), want, rtol=1e-2, atol=1e-2)
