# SPDX-License-Identifier: Apache-2.0
"""Looking into a program: names and values of tensors, times of a call."""

import copy
import json

import poptorch
import pytest
import torch
from api_support import eager_step

Mode = poptorch.OutputMode


def test_names_of_tensors(regression, batch, opts):
    optimizer = poptorch.optim.Adam(regression.parameters(), lr=0.1)
    training = poptorch.trainingModel(regression, opts, optimizer)
    with pytest.raises(
        AssertionError, match="Model must be compiled before calling getTensorNames"
    ):
        training.getTensorNames()
    training.compile(*batch)
    names = training.getTensorNames()
    assert len(names) == len(set(names))
    for name in ("linear.weight", "linear.bias"):
        for prefix in ("", "Gradient___", "UpdatedVar___", "Accl1___", "Accl2___"):
            assert prefix + name in names
    assert any(name.startswith("linear/") for name in names)


@pytest.mark.parametrize("wrapper", ["", "model."])
def test_gradients_and_new_weights_can_be_anchored(regression, batch, opts, wrapper):
    """With PopTorch's names, and with those of its versions that put the model into a wrapper."""
    twin = copy.deepcopy(regression)
    opts.anchorTensor("gradient", f"Gradient___{wrapper}linear.weight")
    opts.anchorTensor("updated", f"UpdatedVar___{wrapper}linear.weight")
    optimizer = poptorch.optim.SGD(regression.parameters(), lr=0.1)
    training = poptorch.trainingModel(regression, opts, optimizer)
    with pytest.raises(AssertionError, match="No tensor with name gradient found"):
        training.getAnchoredTensor("gradient")
    eager = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(2):
        training(*batch)
        eager_step(twin, eager, *batch)
        torch.testing.assert_close(training.getAnchoredTensor("gradient"), twin.linear.weight.grad)
        torch.testing.assert_close(
            training.getAnchoredTensor("updated"), twin.linear.weight.detach()
        )
    with pytest.raises(AssertionError, match="No tensor with name nothing found"):
        training.getAnchoredTensor("nothing")


def test_anchors_have_modes_of_their_own(opts):
    class Doubles(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.ReLU()

        def forward(self, x):
            return self.inner(x) * 2

    probe = poptorch.inferenceModel(Doubles(), opts)
    probe.compile(torch.ones(1))
    name = next(n for n in probe.getTensorNames() if n.startswith("inner/"))

    opts = opts.clone().deviceIterations(4).outputMode(Mode.Final)
    opts.anchorTensor("model", name)
    opts.anchorTensor("all", name, Mode.All)
    opts.anchorTensor("sum", name, Mode.Sum)
    opts.anchorTensor("some", name, Mode.EveryN, 2)
    executor = poptorch.inferenceModel(Doubles(), opts)
    x = torch.tensor([-1.0, 1.0, 2.0, 3.0])
    assert torch.equal(executor(x), torch.tensor([6.0]))
    for short, values in {
        "model": [3.0],
        "all": [0.0, 1.0, 2.0, 3.0],
        "sum": [6.0],
        "some": [1.0, 3.0],
    }.items():
        assert torch.equal(executor.getAnchoredTensor(short), torch.tensor(values)), short


def test_an_unknown_anchor_is_an_error_at_compile(regression, batch, opts):
    opts.anchorTensor("short", "nowhere/nothing:0")
    training = poptorch.trainingModel(regression, opts)
    with pytest.raises(poptorch.Error, match="No tensor with name nowhere/nothing:0 found"):
        training(*batch)


def test_an_anchor_period_must_divide_the_iterations(regression, batch, opts):
    opts.anchorTensor("short", "linear.weight", Mode.EveryN, 2)
    with pytest.raises(poptorch.Error, match="Return period must be <="):
        poptorch.trainingModel(regression, opts)(*batch)


def test_times_of_a_call(regression, opts):
    opts.deviceIterations(2).replicationFactor(2)
    opts.Training.gradientAccumulation(3)
    training = poptorch.trainingModel(regression, opts)
    assert training.getPerfCounters() == dict.fromkeys(
        ("input", "input_complete", "output", "output_complete"), [[]]
    )
    latencies = ("Latency", "HostIpuLatency", "ComputeLatency", "IpuHostLatency")
    for name in latencies:
        assert getattr(training, f"get{name}")() == (0.0, 0.0, 0.0)
    training(torch.randn(24, 3), torch.randn(24, 2))
    counters = training.getPerfCounters()
    assert [len(counters[k]) for k in counters] == [2, 2, 2, 2]
    assert all(len(events) == 12 for tensors in counters.values() for events in tensors)
    flat = [counters[key][0] for key in counters]
    for row in zip(*flat, strict=True):
        assert list(row) == sorted(row)
    for name in latencies:
        low, high, mean = getattr(training, f"get{name}")()
        assert 0 <= low <= mean <= high
    assert training.getLatency()[0] > 0


def test_cycle_count(regression, batch, opts):
    training = poptorch.trainingModel(regression, opts)
    with pytest.raises(poptorch.Error, match="Cycle count logging is disabled"):
        training.cycleCount()
    inference = poptorch.inferenceModel(regression, opts.clone().logCycleCount(True))
    with pytest.raises(poptorch.Error, match="Please run the model at least once before"):
        inference.cycleCount()
    inference(batch[0])
    assert inference.cycleCount() > 0


def test_the_program_can_be_printed(regression, batch, opts):
    inference = poptorch.inferenceModel(regression, opts)
    assert inference._debugGetPopartIR().startswith("unavailable (")
    inference(batch[0])
    assert json.loads(inference._debugGetPopartIR())["steps"]
