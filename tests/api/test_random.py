# SPDX-License-Identifier: Apache-2.0
"""Random numbers of the device: reproducible with a seed, different between calls, restorable."""

import poptorch
import pytest
import torch


class Drop(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(x)


X = torch.ones(4096)


def executor(opts, seed=None):
    own = opts.clone()
    if seed is not None:
        own.randomSeed(seed)
    return poptorch.inferenceModel(Drop(), own)


def test_equal_seeds_give_equal_masks(opts):
    first, second, other = executor(opts, 7), executor(opts, 7), executor(opts, 8)
    a, b, c = first(X), second(X), other(X)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    again = first(X)
    assert not torch.equal(a, again)
    assert torch.equal(again, second(X))


def test_masks_have_the_right_share(opts):
    kept = executor(opts, 7)(X)
    assert set(kept.tolist()) == {0.0, 2.0}
    assert kept.mean().item() == pytest.approx(1.0, abs=0.1)


def test_device_iterations_and_replicas_draw_differently(opts):
    for change in (lambda o: o.deviceIterations(2), lambda o: o.replicationFactor(2)):
        own = opts.clone()
        change(own)
        own.randomSeed(3)
        first, second = poptorch.inferenceModel(Drop(), own)(X).chunk(2)
        assert not torch.equal(first, second)


def test_the_state_can_be_saved_and_restored(opts):
    inference = executor(opts, 7)
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        print(inference.rng_state)
    inference(X)
    state = inference.rng_state
    assert state[0] == 7 and all(0 <= word < 2**32 for word in state[1:])
    expected = [inference(X) for _ in range(2)]
    inference.rng_state = state
    assert torch.equal(inference(X), expected[0])
    inference.detachFromDevice()
    assert torch.equal(inference(X), expected[1])
    inference.rng_state = [7]
    assert torch.equal(inference(X), executor(opts, 7)(X))


def test_the_hosts_seed_counts_if_there_is_no_other(opts):
    torch.manual_seed(21)
    first = executor(opts)(X)
    torch.manual_seed(21)
    assert torch.equal(first, executor(opts)(X))
    torch.manual_seed(22)
    assert not torch.equal(first, executor(opts)(X))


def test_masks_differ_between_calls_without_any_seed(opts):
    inference = executor(opts)
    masks = [inference(X) for _ in range(4)]
    for i, mask in enumerate(masks):
        assert all(not torch.equal(mask, other) for other in masks[:i])


def test_masks_differ_between_layers_and_rows(opts):
    class Twice(torch.nn.Module):
        def forward(self, x):
            return torch.dropout(x, 0.5, True), torch.dropout(x, 0.5, True)

    first, second = poptorch.inferenceModel(Twice(), opts.randomSeed(5))(torch.ones(8, 4096))
    rows = [*first, *second]
    for i, row in enumerate(rows):
        for other in rows[:i]:
            # Independent fair coins agree in half of the places; 6 sigma of 4096 of them.
            assert ((row == other).float().mean() - 0.5).abs() < 6 * 0.5 / 64


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_expectation(opts, p):
    """Every value is 0 or x / (1 - p), and the mean over many is that of x."""

    class Scaled(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x, p, training=True)

    count = 1 << 20
    out = poptorch.inferenceModel(Scaled(), opts.randomSeed(11))(torch.full((count,), 3.0))
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full((int(kept.sum()),), 3.0 / (1 - p)))
    sigma = (p * (1 - p) / count) ** 0.5
    assert abs(kept.float().mean().item() - (1 - p)) < 6 * sigma
    # No pattern: neighbours, and the halves that two threads would fill, are independent.
    for a, b in ((kept[1:], kept[:-1]), (kept[: count // 2], kept[count // 2 :])):
        expected = p * p + (1 - p) * (1 - p)
        assert abs((a == b).float().mean().item() - expected) < 6 * (0.25 / a.numel()) ** 0.5


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything(opts, p):
    model = torch.nn.Dropout(p)
    assert torch.equal(poptorch.inferenceModel(model, opts)(X), model(X))


def test_no_dropout_in_eval_mode(opts):
    model = Drop().eval()
    inference = poptorch.inferenceModel(model, opts)
    assert torch.equal(inference(X), X) and torch.equal(inference(X), X)


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4096))
        self.dropout = torch.nn.Dropout(0.25)

    def forward(self, x):
        out = self.dropout(self.weight * x)
        return out, poptorch.identity_loss(out, "sum")


def test_the_gradient_uses_the_mask_of_the_same_step(opts):
    model = Weighted()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    training = poptorch.trainingModel(model, opts.randomSeed(2), optimizer)
    x = torch.rand(4096) + 0.5
    before = model.weight.detach().clone()
    for _ in range(3):
        out, _ = training(x)
        scale = (out != 0) / 0.75
        torch.testing.assert_close(out, before * x * scale)
        torch.testing.assert_close(model.weight, before - x * scale)
        before = model.weight.detach().clone()


def test_a_seed_makes_training_reproducible(opts):
    results = []
    for seed in (4, 4, 5):
        model = Weighted()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        training = poptorch.trainingModel(model, opts.clone().randomSeed(seed), optimizer)
        losses = torch.stack([training(torch.ones(4096))[1] for _ in range(3)])
        results.append((losses, model.weight.detach().clone()))
    first, again, other = results
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[1], other[1])
