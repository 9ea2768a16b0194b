# SPDX-License-Identifier: Apache-2.0
"""The same bits from run to run, with one thread and with two."""

import poptorch
import pytest
import torch
from cases import CASES

RUNS = 20


def trained_bits(name, threads, steps=2):
    case = CASES[name]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model, batch = case.model(), case.data()
        options = poptorch.Options().showCompilationProgressBar(False)
        options.randomSeed(7)
        executor = poptorch.trainingModel(
            model, options=options, optimizer=case.optimizer(model.parameters())
        )
        losses = [executor(*batch)[1].clone() for _ in range(steps)]
        executor.copyWeightsToHost()
        return torch.cat([torch.stack(losses), *(p.detach().flatten() for p in model.parameters())])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["cnn_b16", "mlp_b16", "bert"])
def test_runs_give_the_same_bits(name, threads):
    first = trained_bits(name, threads)
    for _ in range(RUNS - 1):
        assert torch.equal(trained_bits(name, threads), first)


@pytest.mark.parametrize("name", ["cnn_b16", "cnn_b48", "mlp_b16", "bert", "gpt2"])
def test_one_and_two_threads_agree_to_the_bit(name):
    assert torch.equal(trained_bits(name, 1), trained_bits(name, 2))
