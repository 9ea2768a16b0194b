# SPDX-License-Identifier: Apache-2.0
"""Replicas share weights, and nothing else."""

import copy

import poptorch
import pytest
import torch


class Counter(torch.nn.Module):
    """Adds up what it is given."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x):
        self.total += x.sum()
        return self.total * 1


def test_statistics_are_those_of_each_replica(opts):
    torch.manual_seed(0)
    opts.replicationFactor(2).deviceIterations(3)
    norm = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = norm

        def forward(self, x):
            return poptorch.identity_loss(self.net(x).square(), "mean")

    model = WithLoss()
    twin = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, opts)
    x = torch.randn(3, 2, 4, 3)
    executor(x.reshape(-1, 3))
    for micro in x[:, 0]:  # what the first replica has seen
        twin.net[0](micro)
    torch.testing.assert_close(model.net[0].running_mean, twin.net[0].running_mean)
    torch.testing.assert_close(model.net[0].running_var, twin.net[0].running_var)
    assert int(model.net[0].num_batches_tracked) == 3


def test_buffers_that_replicas_change_must_not_be_broadcast(opts):
    opts.replicationFactor(2)
    with pytest.raises(poptorch.Error, match="does not support broadcasting buffers: total"):
        poptorch.inferenceModel(Counter(), opts)(torch.ones(2))


def test_buffers_of_replicas_are_their_own(opts):
    opts.replicationFactor(2).deviceIterations(2).broadcastBuffers(False)
    model = Counter()
    executor = poptorch.inferenceModel(model, opts)
    assert executor(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [1, 2, 4, 6]
    assert executor(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [5, 8, 8, 12]
    executor.copyWeightsToHost()
    assert model.total.item() == 8  # the first replica's
    executor.copyWeightsToDevice()
    assert executor(torch.zeros(4)).tolist() == [8, 8, 8, 8]


def test_one_group_of_replicas_may_broadcast(opts):
    opts.replicationFactor(2).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    assert poptorch.inferenceModel(Counter(), opts)(torch.ones(1)).tolist() == [1, 1]


@pytest.mark.parametrize(
    "kind, result", [("Consecutive", [0, 0, 1, 1]), ("Orthogonal", [0, 1, 0, 1])]
)
def test_an_input_changed_in_place_by_a_group_of_replicas(opts, kind, result):
    class Adds(torch.nn.Module):
        def forward(self, x):
            x += 1
            return x * 1

    opts.replicationFactor(4).deviceIterations(2)
    opts.inputReplicaGrouping(2, poptorch.CommGroupType[kind])
    x = torch.arange(4.0)
    out = poptorch.inferenceModel(Adds(), opts)(x)
    assert x.tolist() == [1, 2, 3, 4]
    assert out.tolist() == [1 + r for r in result] + [3 + r for r in result]


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.bool])
def test_sums_of_every_type(opts, dtype):
    opts.deviceIterations(3).replicationFactor(2).outputMode(poptorch.OutputMode.Sum)
    x = torch.tensor([1, 2, 3, 4, 5, 0]).to(dtype)
    out = poptorch.inferenceModel(torch.nn.Identity(), opts)(x)
    expected = x.reshape(3, 2).sum(0, dtype=dtype)
    assert torch.equal(out, expected)


def test_random_numbers_differ_between_replicas(opts):
    opts.replicationFactor(4).randomSeed(3)

    class Noise(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    executor = poptorch.inferenceModel(Noise(), opts)
    first = executor(torch.zeros(4, 5))
    assert len({tuple(row) for row in first.tolist()}) == 4
    assert not torch.equal(first, executor(torch.zeros(4, 5)))
