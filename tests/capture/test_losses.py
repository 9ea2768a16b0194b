# SPDX-License-Identifier: Apache-2.0
"""Which tensor is the loss, and that every built-in loss trains as in eager."""

import math

import ir_interpreter
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from harness import captured, check, evaluate
from poptorch.base.errors import Error
from poptorch.capture import identity_loss
from torch import nn


class Net(nn.Module):
    """A linear layer and a loss made of its output."""

    def __init__(self, loss, width=4):
        super().__init__()
        self.lin = nn.Linear(4, width)
        self.loss = loss

    def forward(self, x, *targets):
        y = self.lin(x)
        return y, self.loss(y, *targets)


def _x(*shape):
    return torch.randn(shape)


CLASSES = torch.tensor([0, 3, 1, 2, 3])
SIGNS = torch.tensor([[1.0], [-1.0], [1.0], [1.0], [-1.0]])


def _unit():
    return torch.rand(5, 4)


LOSSES = {
    "l1": lambda r: (nn.L1Loss(reduction=r), _x(5, 4)),
    "mse": lambda r: (nn.MSELoss(reduction=r), _x(5, 4)),
    "smooth_l1": lambda r: (nn.SmoothL1Loss(reduction=r, beta=0.5), _x(5, 4)),
    "smooth_l1_zero": lambda r: (nn.SmoothL1Loss(reduction=r, beta=0.0), _x(5, 4)),
    "huber": lambda r: (nn.HuberLoss(reduction=r, delta=0.5), _x(5, 4)),
    "bce": lambda r: (lambda y, t: F.binary_cross_entropy(y.sigmoid(), t, reduction=r), _unit()),
    "bce_weighted": lambda r: (
        lambda y, t: F.binary_cross_entropy(y.sigmoid(), t, torch.arange(4.0), reduction=r),
        _unit(),
    ),
    "bce_logits": lambda r: (nn.BCEWithLogitsLoss(reduction=r), _unit()),
    "bce_logits_weighted": lambda r: (
        nn.BCEWithLogitsLoss(torch.arange(4.0), pos_weight=torch.ones(4) * 2, reduction=r),
        _unit(),
    ),
    "soft_margin": lambda r: (nn.SoftMarginLoss(reduction=r), SIGNS.expand(5, 4)),
    "nll": lambda r: (lambda y, t: F.nll_loss(F.log_softmax(y, 1), t, reduction=r), CLASSES),
    "cross_entropy": lambda r: (nn.CrossEntropyLoss(reduction=r), CLASSES),
    "cross_entropy_weighted": lambda r: (
        nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5, 1.5]), ignore_index=1, reduction=r),
        CLASSES,
    ),
    "cross_entropy_smooth": lambda r: (
        nn.CrossEntropyLoss(label_smoothing=0.1, reduction=r),
        CLASSES,
    ),
    "cross_entropy_soft": lambda r: (nn.CrossEntropyLoss(reduction=r), torch.softmax(_x(5, 4), 1)),
    "kl_div": lambda r: (
        lambda y, t: F.kl_div(F.log_softmax(y, 1), t, reduction=r),
        torch.softmax(_x(5, 4), 1),
    ),
    "poisson": lambda r: (nn.PoissonNLLLoss(reduction=r), _unit() * 3),
    "poisson_full": lambda r: (nn.PoissonNLLLoss(full=True, reduction=r), _unit() * 3),
    "hinge": lambda r: (nn.HingeEmbeddingLoss(reduction=r), SIGNS.expand(5, 4)),
    "cosine": lambda r: (
        lambda y, t: F.cosine_embedding_loss(y, y.flip(0) * 2 + 1, t, reduction=r),
        SIGNS[:, 0],
    ),
    "margin_ranking": lambda r: (
        lambda y, t: F.margin_ranking_loss(y, y.flip(0), t, margin=0.1, reduction=r),
        SIGNS.expand(5, 4),
    ),
    "triplet": lambda r: (
        lambda y, t: F.triplet_margin_loss(y, y.flip(0), t, reduction=r),
        _x(5, 4),
    ),
    "gaussian": lambda r: (
        lambda y, t: F.gaussian_nll_loss(y, t, y.exp(), full=True, reduction=r),
        _x(5, 4),
    ),
    "multilabel_soft": lambda r: (nn.MultiLabelSoftMarginLoss(reduction=r), _unit().round()),
    "identity": lambda r: (lambda y, t: identity_loss((y - t).abs(), r), _x(5, 4)),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_builtin_loss_is_found_and_trains(name, reduction):
    torch.manual_seed(0)
    loss, target = LOSSES[name](reduction)
    check(Net(loss), (_x(5, 4), target))


@pytest.mark.parametrize("name", ["multi_margin_loss", "multilabel_margin_loss"])
def test_loss_without_a_row_runs_on_the_host(name):
    target = CLASSES if name == "multi_margin_loss" else torch.tensor([[1, 2, -1, 0]] * 5)
    host = [name, name + "_forward", name + "_backward"]
    check(Net(getattr(F, name)), (_x(5, 4), target), host=host)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_over_images(reduction):
    class Segment(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x, t):
            y = self.conv(x)
            return y, F.cross_entropy(y, t, reduction=reduction, ignore_index=2)

    check(Segment(), (_x(2, 3, 5, 5), torch.randint(0, 4, (2, 5, 5))))


@pytest.mark.parametrize("lengths", ["tensor", "list"])
def test_ctc_loss(lengths):
    class Ctc(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 5)

        def forward(self, x, targets, input_lengths=None, target_lengths=None):
            y = F.log_softmax(self.lin(x), -1)
            a = [7, 6] if input_lengths is None else input_lengths
            b = [3, 2] if target_lengths is None else target_lengths
            return y, F.ctc_loss(y, targets, a, b)

    targets = torch.tensor([[1, 2, 3], [2, 1, 0]])
    args = (_x(7, 2, 4), targets)
    if lengths == "tensor":
        args += (torch.tensor([7, 6]), torch.tensor([3, 2]))
    check(Ctc(), args)


def test_no_loss():
    model = nn.Linear(4, 4)
    with pytest.raises(Error, match="Couldn't find a loss in graph!"):
        captured(model, (_x(5, 4),))


def test_two_losses_name_both_lines():
    model = Net(lambda y, t: (F.mse_loss(y, t), F.l1_loss(y, t)))
    with pytest.raises(Error, match="Multiple independent losses found in graph") as e:
        captured(model, (_x(5, 4), _x(5, 4)))
    assert e.value.message.count("test_losses.py:") == 2
    assert "Wrap final graph loss in poptorch.identity_loss." in e.value.message


def _gradients(loss, *targets):
    torch.manual_seed(0)
    model = Net(loss)
    x = _x(5, 4)
    c = captured(model, (x, *targets))
    _, raw = evaluate(c, (x, *targets))
    return c, raw, model, x


def test_combined_loss_is_marked():
    t = _x(5, 4)
    check(
        Net(lambda y, t: identity_loss(F.mse_loss(y, t) + F.l1_loss(y, t), "none")), (_x(5, 4), t)
    )


def test_loss_that_feeds_another_is_an_ordinary_value():
    t = _x(5, 4)
    check(Net(lambda y, t: F.l1_loss(y * F.mse_loss(y, t), t)), (_x(5, 4), t))


def test_loss_scaled_afterwards_trains_on_the_marked_one():
    t = _x(5, 4)
    c, raw, model, x = _gradients(lambda y, t: F.mse_loss(y, t) * 5, t)
    F.mse_loss(model.lin(x), t).backward()
    torch.testing.assert_close(raw.grads["lin.weight"], model.lin.weight.grad)
    assert c.loss_index is None and c.loss_value is not None


def test_loss_changed_in_place_afterwards_trains_on_the_marked_one():
    def loss(y, t):
        value = F.mse_loss(y, t)
        value += y.sum()
        return value

    t = _x(5, 4)
    _, raw, model, x = _gradients(loss, t)
    F.mse_loss(model.lin(x), t).backward()
    torch.testing.assert_close(raw.grads["lin.weight"], model.lin.weight.grad)
    torch.testing.assert_close(raw.outputs[1], loss(model.lin(x), t).detach())


def test_loss_need_not_be_returned():
    class Silent(Net):
        def forward(self, x, t):
            y = self.lin(x)
            F.mse_loss(y, t)
            return y

    t = _x(5, 4)
    model = Silent(None)
    c = captured(model, (_x(5, 4), t))
    assert c.loss_index is None
    assert len(ir_interpreter.parse(c.text).grads) == 2


def test_metric_without_gradient_is_no_loss():
    def loss(y, t):
        with torch.no_grad():
            F.l1_loss(y, t)
        F.l1_loss(y.detach(), t)
        return F.mse_loss(y, t)

    check(Net(loss), (_x(5, 4), _x(5, 4)))


def test_unreturned_second_loss_is_ignored():
    def loss(y, t):
        F.l1_loss(y, t)
        return F.mse_loss(y, t)

    t = _x(5, 4)
    _, raw, model, x = _gradients(loss, t)
    F.mse_loss(model.lin(x), t).backward()
    torch.testing.assert_close(raw.grads["lin.weight"], model.lin.weight.grad)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, t: torch.nn.functional.mse_loss(y, t),
        lambda y, t: torch._C._nn.mse_loss(y, t),
        lambda y, t: torch.cosine_embedding_loss(y, t, torch.ones(5)),
        lambda y, t: torch.poisson_nll_loss(y, t.abs(), True, False, 1e-8, 1),
    ],
)
def test_other_spellings(loss):
    check(Net(loss), (_x(5, 4), _x(5, 4)))


def test_dictionary_and_tuple_results():
    class Both(Net):
        def forward(self, x, t):
            y = self.lin(x)
            return {"loss": F.mse_loss(y, t), "more": (y, [y * 2, None, 3])}

    c, _ = check(Both(None), (_x(5, 4), _x(5, 4)))
    out, _ = evaluate(c, (_x(5, 4), _x(5, 4)))
    assert out["more"][1][1:] == [None, 3]


def test_all_parameters_frozen_still_returns_the_loss():
    model = Net(F.mse_loss)
    model.requires_grad_(False)
    x, t = _x(5, 4), _x(5, 4)
    c = captured(model, (x, t))
    _, raw = evaluate(c, (x, t))
    torch.testing.assert_close(raw.loss, F.mse_loss(model.lin(x), t))
    assert not raw.grads


def test_identity_loss_in_eager():
    x = torch.randn(3, 4, requires_grad=True)
    assert identity_loss(x, "none") is not x
    torch.testing.assert_close(identity_loss(x, reduction="sum"), x.sum())
    torch.testing.assert_close(identity_loss(x, reduction="mean"), x.mean())
    with pytest.raises(AssertionError, match="Unsupported reduction type!"):
        identity_loss(x, reduction="max")
    assert math.isfinite(identity_loss(x, "sum").item())
