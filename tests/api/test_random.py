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
