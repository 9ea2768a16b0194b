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


class Passes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.ReLU()

    def forward(self, x):
        return self.inner(x) * 2


@pytest.mark.parametrize(
    "iterations, period, kept",
    [
        (1, 2, [0]),
        (1, 1000, [0]),
        (4, 5, [3]),
        (4, 4, [3]),
        (4, 2, [1, 3]),
        (4, 3, [2]),
        (5, 2, [1, 3]),
    ],
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_anchor_may_have_any_period(opts, iterations, period, kept, replicas):
    """One that is longer than the call has the values of its last iteration; with one that does not
    divide the iterations the last ones are left out."""
    probe = poptorch.inferenceModel(Passes(), opts)
    probe.compile(torch.ones(1))
    name = next(n for n in probe.getTensorNames() if n.startswith("inner/"))
    opts = opts.clone().deviceIterations(iterations).replicationFactor(replicas)
    opts.anchorTensor("some", name, Mode.EveryN, period)
    executor = poptorch.inferenceModel(Passes(), opts)
    for _ in range(2):
        x = torch.rand(iterations * replicas)
        assert torch.equal(executor(x), x * 2)
        expected = x.reshape(iterations, replicas)[kept].flatten()
        assert torch.equal(executor.getAnchoredTensor("some"), expected)


def test_an_anchor_keeps_all_accumulation_steps_of_an_iteration(regression, opts):
    opts.anchorTensor("loss", "Gradient___linear.bias", Mode.EveryN, 7)
    opts.deviceIterations(3)
    opts.Training.gradientAccumulation(2)
    training = poptorch.trainingModel(regression, opts)
    training(torch.randn(12, 3), torch.randn(12, 2))
    assert training.getAnchoredTensor("loss").shape == (2 * 2,)


def test_the_period_of_outputs_must_divide_the_iterations(regression, batch, opts):
    opts.anchorTensor("short", "Gradient___linear.weight")
    with pytest.raises(poptorch.Error, match="Return period must be <="):
        poptorch.trainingModel(regression, opts.outputMode(Mode.EveryN, 2))(*batch)


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
    sizes = {key: [len(events) for events in tensors] for key, tensors in counters.items()}
    assert sizes["input"] == sizes["input_complete"] == [12, 12]
    # Of the last micro-batch of each replica.
    assert sizes["output"] == sizes["output_complete"] == [2, 2]
    last = [counters[key][0][-2:] for key in counters]
    for row in zip(*last, strict=True):
        assert list(row) == sorted(row)
    for name in latencies:
        low, high, mean = getattr(training, f"get{name}")()
        assert 0 <= low <= mean <= high
    assert training.getLatency()[0] > 0


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "mode, period, steps",
    [
        (Mode.Final, 1, [7]),
        (Mode.Sum, 1, [7]),
        (Mode.All, 1, range(8)),
        (Mode.EveryN, 2, [2, 3, 6, 7]),
    ],
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_outputs_have_as_many_times_as_were_returned(
    regression, opts, training, mode, period, steps, replicas
):
    """With 4 iterations of 2 accumulation steps; in inference, of 1."""
    opts.deviceIterations(4).replicationFactor(replicas).outputMode(mode, period)
    rows = 4 * replicas
    if training:
        opts.Training.gradientAccumulation(2)
        rows *= 2
        executor = poptorch.trainingModel(regression, opts)
        executor(torch.randn(rows, 3), torch.randn(rows, 2))
    else:
        steps = sorted({step // 2 for step in steps})
        executor = poptorch.inferenceModel(regression, opts)
        executor(torch.randn(rows, 3))
    counters = executor.getPerfCounters()
    whole = [i for step in steps for i in range(step * replicas, (step + 1) * replicas)]
    for events in counters["input"]:
        assert len(events) == rows and events == sorted(events)
    for key in ("output", "output_complete"):
        for events in counters[key]:
            assert len(events) == len(whole)
            # Each after the inputs of its own micro-batch.
            for i, event in zip(whole, events, strict=True):
                assert event >= counters["input_complete"][0][i]


def test_anchors_have_times_of_their_own_mode(regression, opts):
    opts.deviceIterations(4)
    opts.anchorTensor("some", "Gradient___linear.bias", Mode.EveryN, 2)
    opts.anchorTensor("all", "Gradient___linear.bias", Mode.All)
    training = poptorch.trainingModel(regression, opts)
    training(torch.randn(8, 3), torch.randn(8, 2))
    assert [len(events) for events in training.getPerfCounters()["output"]] == [1, 1, 2, 4]


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


def test_the_summary_of_a_program(regression, batch, opts):
    inference = poptorch.inferenceModel(regression, opts)
    with pytest.raises(poptorch.Error, match="Please compile the model before"):
        inference.getProgramSummary()
    inference(batch[0])
    summary = inference.getProgramSummary()
    assert summary["host_calls"] == [] and summary["state_bytes"] > 0
