# SPDX-License-Identifier: Apache-2.0
"""torch.utils.checkpoint and recomputationCheckpoint: a smaller plan, the same training."""

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

WIDTH, LAYERS = 32, 4
X, Y = torch.randn(4, 64, WIDTH), torch.randint(0, 5, (4,))


class Layer(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, x, *, scale=1.0):
        return x + scale * self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Model(torch.nn.Module):
    def __init__(self, apply, dropout=0.0):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(dropout) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, 5)
        self.apply_layers = apply

    def forward(self, x, y):
        x = self.apply_layers(self.layers, x)
        return F.cross_entropy(self.head(x.mean(1)), y)


def plain(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def each(layers, x, **kwargs):
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False, **kwargs)
    return x


def reentrant(layers, x):
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=True)
    return x


def sequential(layers, x):
    return checkpoint_sequential(list(layers), LAYERS, x, use_reentrant=False)


def nested(layers, x):
    half = len(layers) // 2
    for part in (layers[:half], layers[half:]):
        x = checkpoint(each, part, x, use_reentrant=False)
    return x


def marked(layers, x):
    for layer in layers:
        x = poptorch.recomputationCheckpoint(layer(x))
    return x


def train(apply, dropout=0.0, backend=None, steps=3):
    """(losses, weights, bytes of the arena) of a few steps."""
    torch.manual_seed(1)
    model = Model(apply, dropout)
    options = poptorch.Options()
    options.randomSeed(3)
    if backend is not None:
        options._Popart.set("autoRecomputation", backend)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, options, sgd)
    losses = [float(executor(X, Y)) for _ in range(steps)]
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    return losses, weights, executor.getProgramSummary()["arena_bytes"]


def eager(apply, steps=3):
    torch.manual_seed(1)
    model = Model(apply)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        sgd.zero_grad()
        model(X, Y).backward()
        sgd.step()
    return model.state_dict()


def close(losses, weights, expected):
    assert losses == pytest.approx(expected[0], rel=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[1][name])


@pytest.fixture(scope="module")
def whole():
    return train(plain, dropout=0.2)


@pytest.mark.parametrize("apply", [each, reentrant, sequential, nested], ids=lambda f: f.__name__)
def test_regions_keep_only_their_inputs(whole, apply):
    losses, weights, arena = train(apply, dropout=0.2)
    # Dropout draws the same numbers again; other sums than before may be rounded otherwise.
    close(losses, weights, whole)
    assert arena < 0.6 * whole[2]


def test_a_region_in_a_region_keeps_less():
    assert train(nested, steps=1)[2] < train(each, steps=1)[2]


def test_weights_are_those_of_eager_checkpoints():
    weights, expected = train(each)[1], eager(each)
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name])


def test_keyword_arguments_reach_the_region():
    def scaled(layers, x):
        return each(layers, x, scale=0.5)

    weights, expected = train(scaled)[1], eager(scaled)
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name])


@pytest.mark.parametrize("backend", [1, 4])
def test_marks_divide_what_is_recomputed(whole, backend):
    losses, weights, arena = train(marked, dropout=0.2, backend=backend)
    close(losses, weights, whole)
    assert arena < 0.6 * whole[2]


@pytest.mark.parametrize("backend", [None, 2])
def test_marks_alone_change_nothing_on_one_ipu(whole, backend):
    losses, _, arena = train(marked, dropout=0.2, backend=backend)
    assert losses == whole[0] and arena == whole[2]


class Normed(torch.nn.Module):
    """Batch norm, whose statistics change, and a buffer that forward changes."""

    def __init__(self, checkpointed):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        )
        self.register_buffer("calls", torch.zeros(()))
        self.checkpointed = checkpointed

    def inner(self, x):
        self.calls.add_(1)
        return self.layers(x) * self.calls

    def forward(self, x):
        out = checkpoint(self.inner, x, use_reentrant=False) if self.checkpointed else self.inner(x)
        return poptorch.identity_loss(out.square(), "mean")


@pytest.mark.parametrize("accumulation", [1, 2])
def test_states_that_change_in_a_region(accumulation):
    found = []
    x = torch.randn(4 * accumulation, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = Normed(checkpointed)
        options = poptorch.Options()
        options.Training.gradientAccumulation(accumulation)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        executor = poptorch.trainingModel(model, options, sgd)
        for _ in range(2):
            executor(x)
        found.append({k: v.clone() for k, v in model.state_dict().items()})
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value)
    assert found[1]["calls"] == 2 * accumulation


class Stages(torch.nn.Module):
    def __init__(self, apply):
        super().__init__()
        self.first = torch.nn.ModuleList(Layer(0.2) for _ in range(2))
        self.second = torch.nn.ModuleList(Layer(0.2) for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, 5)
        self.apply_layers = apply

    def forward(self, x, y):
        with poptorch.Block("a", ipu_id=0):
            x = self.apply_layers(self.first, x)
        with poptorch.Block("b", ipu_id=1):
            x = self.apply_layers(self.second, x)
            return F.cross_entropy(self.head(x.mean(1)), y)


@pytest.mark.parametrize("strategy", ["PipelinedExecution", "ShardedExecution"])
def test_regions_on_two_ipus(strategy):
    found = []
    for apply in (plain, each):
        torch.manual_seed(1)
        model = Stages(apply)
        options = poptorch.Options()
        options.randomSeed(3).Training.gradientAccumulation(4)
        options.setExecutionStrategy(getattr(poptorch, strategy)())
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        executor = poptorch.trainingModel(model, options, sgd)
        losses = [executor(X.repeat(4, 1, 1), Y.repeat(4)) for _ in range(2)]
        summary = executor.getProgramSummary()
        found.append((losses, model.head.weight.detach().clone(), summary["ipus"][1]))
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1])
    assert found[1][2]["on_chip_bytes"] < found[0][2]["on_chip_bytes"]


def test_in_inference_a_region_is_a_call():
    model = Model(each).eval()
    expected = model(X, Y)
    torch.testing.assert_close(poptorch.inferenceModel(model)(X, Y), expected.detach())
