# SPDX-License-Identifier: Apache-2.0
"""What a state of a program is for is its kind: a model may name its tensors as it likes, also like
the states that a program has of its own."""

import poptorch
import pytest
import torch
from torch import nn

LIKE_OURS = ("rng", "c0", "0", "hyper:0", "hyper64:0", "step:0", "accum:#", "accum:w")
LIKE_OURS += ("momentum:w", "exp_avg:w", "loss:scale", "loss:steps", "w:1")


class Named(nn.Module):
    """A parameter and a buffer of each name, and a constant."""

    def __init__(self, names: tuple[str, ...], trained: bool) -> None:
        super().__init__()
        self.names = names
        self.w = nn.Parameter(torch.linspace(-1, 1, 4))
        for i, name in enumerate(names):
            start = torch.linspace(0.1, 0.4, 4) * (i + 1)
            if trained:
                self.register_parameter(name, nn.Parameter(start))
            else:
                self.register_buffer(name, start)
        self.constant = [torch.tensor([1.0, 2.0, 3.0, 4.0])]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * self.w + self.constant[0]
        for name in self.names:
            tensor = getattr(self, name)
            y = y + tensor * x
            if not tensor.requires_grad:
                tensor.mul_(0.5)
        return y, poptorch.identity_loss((y**2).mean(), reduction="none")


def optimizers() -> dict[str, object]:
    return {
        "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, dampening=0.5),
        "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
    }


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("trained", [True, False], ids=["parameters", "buffers"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_names_of_the_model_are_no_names_of_the_program(
    optimizer: str, trained: bool, accumulation: int
) -> None:
    ours, theirs = Named(LIKE_OURS, trained), Named(LIKE_OURS, trained)
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(accumulation)
    make = optimizers()[optimizer]
    step = poptorch.trainingModel(ours, opts, make(ours))
    reference = make(theirs)
    x = torch.randn(2 * accumulation, 4, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        out, _ = step(x)
        reference.zero_grad()
        for micro in x.chunk(accumulation):
            expected, loss = theirs(micro)
            (loss / accumulation).backward()
        reference.step()
        torch.testing.assert_close(out[-2:], expected)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    names = [state.name for state in step._executable.program.states]
    assert len(set(names)) == len(names)
    assert set(LIKE_OURS) <= set(names), "the model's names are the ones that users see"


def test_the_state_of_an_optimizer_is_found_beside_such_names() -> None:
    model = Named(LIKE_OURS, True)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
    step = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    step(torch.ones(2, 4))
    state = optimizer.state_dict()["ipu_state"]
    for name in ("w", *LIKE_OURS):
        assert state[f"Accl1___{name}"].shape == (4,)
        assert state[f"Step___{name}"] == 1


class Draws(nn.Module):
    """A counter that is called as the random state of a program is, and looks like it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rng", torch.tensor([5, 7]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.dropout(x, 0.5, training=True), self.rng + 1


def test_a_buffer_called_rng_is_not_the_random_state() -> None:
    model = poptorch.inferenceModel(Draws(), poptorch.Options().randomSeed(3))
    drawn = []
    for _ in range(3):
        out, counter = model(torch.ones(64))
        assert counter.tolist() == [6, 8]
        drawn.append(out)
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[1], drawn[2])
    assert len(model.rng_state) == 5
    again = poptorch.inferenceModel(Draws(), poptorch.Options().randomSeed(3))
    assert torch.equal(again(torch.ones(64))[0], drawn[0])


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.register_buffer("accum:seen", torch.ones(3))

    def forward(self, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.table(i) * getattr(self, "accum:seen")
        return y, poptorch.identity_loss(y.sum(), reduction="none")


def test_a_run_that_failed_forgets_gradients_and_nothing_else() -> None:
    model = Looks()
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    step = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    good = torch.tensor([[0, 1], [2, 3]])
    step(good)
    weights = model.table.weight.detach().clone()
    with pytest.raises(poptorch.Error):
        step(torch.tensor([[0, 1], [2, 9]]))
    step(good)
    step.copyWeightsToHost()
    torch.testing.assert_close(model.table.weight.detach(), weights - 0.05)
    assert getattr(model, "accum:seen").tolist() == [1, 1, 1]


def test_a_parameter_with_the_number_of_a_group_has_values_per_replica() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter("0", nn.Parameter(torch.ones(2, 3)))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = x * getattr(self, "0")
            return y, poptorch.identity_loss(y.sum(), reduction="none")

    model = Model()
    opts = poptorch.Options().replicationFactor(2)
    step = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.5))
    getattr(step, "0").replicaGrouping(
        poptorch.CommGroupType.NoGrouping, 1, poptorch.VariableRetrievalMode.OnePerGroup
    )
    step(torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]))
    # Each group keeps the sum of its own, divided by all replicas, at the rate of the group.
    expected = 1 - 0.25 * torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    torch.testing.assert_close(getattr(model, "0").detach(), expected)
