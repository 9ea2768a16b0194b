# SPDX-License-Identifier: Apache-2.0
"""Parameters with one value per group of replicas."""

import poptorch
import pytest
import torch

Kind = poptorch.CommGroupType
ONE = poptorch.VariableRetrievalMode.OnePerGroup


class Scaled(torch.nn.Module):
    """x * own + shared, as its own loss."""

    def __init__(self, groups):
        super().__init__()
        self.own = torch.nn.Parameter(torch.arange(1.0, groups + 1).reshape(groups, 1) * 10)
        self.shared = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return poptorch.identity_loss(x * self.own + self.shared, "sum")


def members(kind, shards):
    """The group of each of four replicas."""
    if kind == Kind.Consecutive:
        return [r // shards for r in range(4)]
    if kind == Kind.Orthogonal:
        return [r % (4 // shards) for r in range(4)]
    return list(range(4))


CASES = [(Kind.Consecutive, 2), (Kind.Orthogonal, 2), (Kind.NoGrouping, 1), (Kind.Consecutive, 1)]


@pytest.mark.parametrize("kind, shards", CASES)
def test_inference_uses_the_value_of_the_group(opts, kind, shards):
    model = Scaled(4 // shards)
    executor = poptorch.inferenceModel(model, opts.replicationFactor(4))
    executor.own.replicaGrouping(kind, shards, ONE)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    expected = [x[r].item() * 10 * (1 + g) for r, g in enumerate(members(kind, shards))]
    assert executor(x).tolist() == expected


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("reduction", ["Mean", "Sum"])
@pytest.mark.parametrize("kind, shards", CASES)
def test_gradients_are_reduced_within_a_group(opts, kind, shards, reduction, accumulation):
    groups = 4 // shards
    model = Scaled(groups)
    opts.replicationFactor(4).deviceIterations(2)
    opts.Training.gradientAccumulation(accumulation)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType[reduction])
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    executor = poptorch.trainingModel(model, opts, optimizer)
    executor.own.replicaGrouping(kind, shards, ONE)
    x = torch.arange(1.0, 1 + 2 * accumulation * 4)
    executor(x)

    mean = reduction == "Mean"
    own, shared = torch.arange(1.0, groups + 1) * 10, torch.zeros(())
    own_velocity, shared_velocity = torch.zeros(groups), torch.zeros(())
    for part in x.reshape(2, accumulation, 4):
        gradient = torch.zeros(groups)
        for r, g in enumerate(members(kind, shards)):
            gradient[g] += part[:, r].sum()
        if mean:
            gradient /= accumulation * 4
        own_velocity = 0.9 * own_velocity + gradient
        own = own - 0.5 * own_velocity
        shared_velocity = 0.9 * shared_velocity + (1.0 if mean else 4.0 * accumulation)
        shared = shared - 0.5 * shared_velocity
    torch.testing.assert_close(model.own.detach().flatten(), own)
    torch.testing.assert_close(model.shared.detach(), shared.reshape(1))
    assert model.own.shape == (groups, 1)
    state = optimizer.state_dict()["ipu_state"]
    torch.testing.assert_close(state["Accl___own"].flatten(), own_velocity)


@pytest.mark.parametrize("combined, running", [(True, False), (False, True)])
def test_every_way_of_accumulating(opts, combined, running):
    def weights(combined, running):
        model = Scaled(2)
        own = opts.clone().replicationFactor(4)
        own.Training.gradientAccumulation(2)
        if running:
            own.Training.setMeanAccumulationAndReplicationReductionStrategy(
                poptorch.MeanReductionStrategy.Running
            )
        optimizer = poptorch.optim.SGD(
            model.parameters(), lr=0.5, momentum=0.9, use_combined_accum=combined
        )
        executor = poptorch.trainingModel(model, own, optimizer)
        executor.own.replicaGrouping(Kind.Consecutive, 2, ONE)
        for _ in range(3):
            executor(torch.arange(8.0))
        return model.own.detach().clone(), model.shared.detach().clone()

    torch.testing.assert_close(weights(combined, running), weights(False, False))


def test_one_group_of_all_has_no_effect(opts):
    model = Scaled(1)
    executor = poptorch.inferenceModel(model, opts.replicationFactor(2))
    executor.own.replicaGrouping(Kind.All, 0, ONE)
    assert executor(torch.tensor([1.0, 2.0])).tolist() == [10.0, 20.0]


def test_the_first_dimension_must_be_the_number_of_groups(opts):
    executor = poptorch.inferenceModel(Scaled(3), opts.replicationFactor(4))
    executor.own.replicaGrouping(Kind.Consecutive, 2, ONE)
    with pytest.raises(poptorch.Error, match="mismatch with possibly appended outer dimension"):
        executor(torch.ones(4))


def test_scalars_have_no_first_dimension(opts):
    model = Scaled(2)
    model.shared = torch.nn.Parameter(torch.zeros(()))
    executor = poptorch.inferenceModel(model, opts.replicationFactor(4))
    with pytest.raises(poptorch.Error, match="Scalars cannot be passed as per-replica"):
        executor.shared.replicaGrouping(Kind.NoGrouping, 1, ONE)


def test_a_parameter_that_is_not_used_is_reported(opts, log):
    class Unused(Scaled):
        def forward(self, x):
            return x + self.shared

    executor = poptorch.inferenceModel(Unused(2), opts.replicationFactor(2))
    executor.own.replicaGrouping(Kind.NoGrouping, 1, ONE)
    executor(torch.ones(2))
    assert "Parameter name own was not found" in log.text


def test_an_executor_shows_parameters_of_its_root(opts):
    model = Scaled(2)
    executor = poptorch.inferenceModel(model, opts)
    assert executor.own.shape == (2, 1)
    assert torch.equal(executor.own.data, model.own.data)
    assert torch.equal(torch.add(executor.own, 1), model.own + 1)
    assert repr(executor.own) == repr(model.own)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_data_groups_and_model_groups_train_as_one_model(opts, accumulation):
    """Two replicas share the columns of a matrix, twice over: the step of the whole matrix."""
    torch.manual_seed(0)
    whole = torch.randn(4, 6)
    x = torch.randn(2 * accumulation, 4)  # each row goes to both halves of the model

    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.columns = torch.nn.Parameter(torch.stack(whole.split(3, 1)))

        def forward(self, x):
            return poptorch.identity_loss((x @ self.columns).tanh().sum(1), "mean")

    model = Half()
    opts.replicationFactor(4)
    opts.Training.gradientAccumulation(accumulation)
    executor = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.5))
    executor.columns.replicaGrouping(Kind.Orthogonal, 2, ONE)
    executor(x.repeat_interleave(2, 0))

    weight = whole.clone().requires_grad_()
    # The loss of a replica is half of its row's: all four replicas are one mean over the rows.
    ((x @ weight).tanh().sum(1).mean() / 2).backward()
    expected = whole - 0.5 * weight.grad
    torch.testing.assert_close(torch.cat(list(model.columns.detach()), 1), expected)
