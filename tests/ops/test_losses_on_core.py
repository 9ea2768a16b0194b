# SPDX-License-Identifier: Apache-2.0
"""Losses whose value and gradient are native, trained beside eager."""

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from against_eager import check_steps, quiet, summary
from poptorch import identity_loss
from torch import nn


@pytest.mark.parametrize("name", ["multi_margin_loss", "multilabel_margin_loss", "ctc_loss"])
def test_a_loss_and_the_output_it_reads(name):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            y = self.lin(x)
            if name == "ctc_loss":
                y = y.log_softmax(-1)
                return y, F.ctc_loss(y[:, None], torch.tensor([[1, 2, 1]]), [5], [3])
            target = torch.tensor(
                [0, 3, 1, 2, 3] if name == "multi_margin_loss" else [[1, 2, -1, 0]] * 5
            )
            return y, getattr(F, name)(y, target)

    torch.manual_seed(0)
    executor = check_steps(Model(), (torch.randn(5, 4),), lambda p: torch.optim.SGD(p, lr=0.1))
    assert not summary(executor)["host_calls"]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("lined_up", [False, True])
def test_ctc_loss(reduction, lined_up):
    """A long batch with repeated labels, and one sample that no path can spell."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 21)

        def forward(self, x, targets, input_lengths, target_lengths):
            y = self.lin(x).log_softmax(-1)
            loss = F.ctc_loss(
                y, targets, input_lengths, target_lengths, 3, reduction, zero_infinity=True
            )
            return y, identity_loss(loss, "sum")

    torch.manual_seed(0)
    targets = torch.randint(4, 8, (6, 19))
    target_lengths = torch.tensor([19, 17, 1, 0, 19, 4])
    if lined_up:
        targets = torch.cat([t[:n] for t, n in zip(targets, target_lengths, strict=True)])
    batch = (torch.randn(60, 6, 8), targets, torch.tensor([60, 55, 60, 7, 3, 1]), target_lengths)
    executor = check_steps(Model(), batch, lambda p: torch.optim.SGD(p, lr=0.01))
    assert not summary(executor)["host_calls"]


def test_ctc_loss_with_a_label_out_of_range():
    model = nn.CTCLoss()
    executor = poptorch.inferenceModel(model, options=quiet())
    x = torch.randn(9, 2, 5).log_softmax(-1)
    lengths = torch.tensor([9, 9]), torch.tensor([3, 3])
    executor(x, torch.tensor([[1, 2, 3], [1, 2, 4]]), *lengths)
    with pytest.raises(poptorch.Error, match=r"target 5 is out of bounds for 5 classes"):
        executor(x, torch.tensor([[1, 2, 3], [1, 2, 5]]), *lengths)
