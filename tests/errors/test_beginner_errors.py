# SPDX-License-Identifier: Apache-2.0
"""Programs as beginners write them: each error is that of eager where there is one, and says what
was done, where, and what to try."""

import traceback

import numpy as np
import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 4)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, labels=None):
        y = self.fc2(F.relu(self.fc1(x)))
        return y if labels is None else (y, self.loss(y, labels))


class Fitted(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.linear = nn.Linear(8, 1)
        self.loss = loss

    def forward(self, x, y):
        return self.loss(self.linear(x), y)


class Does(nn.Module):
    """Runs one expression of a wrong program."""

    def __init__(self, body):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.body = body

    def forward(self, x):
        return self.body(self, x)


def without_weight():
    net = Net()
    net.fc1.weight = None
    return net


def saved_then_changed(m, x):
    y = torch.exp(m.fc1(x))
    y += 1
    return F.mse_loss(y, torch.zeros_like(y))


X, T = torch.randn(6, 8), torch.tensor([0, 1, 2, 3, 0, 1])

# (model, arguments, whether to train, pieces of the message besides those of eager)
LIKE_EAGER = {
    "features": (Net, (torch.randn(6, 9),), False, ["in module fc1 (Linear)", "in_features=8"]),
    "image": (Net, (torch.randn(6, 2, 4),), False, ["x.flatten(1)"]),
    "integers": (Net, (T.repeat(8, 1).T,), False, ["torch.int64: use x.float()"]),
    "float labels": (Net, (X, T.float()), True, ["labels.long()", "[6, 4]"]),
    "one-hot labels": (Net, (X, F.one_hot(T, 4)), True, ["labels.float()", "labels.argmax(1)"]),
    "labels in a column": (Net, (X, T[:, None]), True, ["labels.reshape([6])"]),
    "few labels": (Net, (X, T[:3]), True, ["need labels of shape [6], got [3]"]),
    "array": (Net, (X.numpy(),), False, ["torch.from_numpy"]),
    "list": (Net, (X.tolist(),), False, ["torch.tensor(values)"]),
    "batch": (Net, ([X, T],), False, ["model(*batch)"]),
    "text": (Net, ("hello",), False, ["tokenizer"]),
    "no weight": (without_weight, (X,), False, ["was an argument left out"]),
    "float indices": (lambda: nn.Embedding(10, 4), (torch.ones(3),), False, ["x.long()"]),
    "channels": (lambda: nn.Conv2d(3, 8, 3), (torch.randn(2, 1, 8, 8),), False, ["3 channels"]),
    "no channels": (
        lambda: nn.Conv2d(3, 8, 3),
        (torch.randn(8, 8),),
        False,
        ["[batch, channels, height, width], got [8, 8]"],
    ),
    "small image": (lambda: nn.Conv2d(3, 8, 5), (torch.randn(2, 3, 4, 4),), False, ["Kernel"]),
    "recurrent": (lambda: nn.LSTM(8, 4), (torch.randn(3, 2, 7),), False, ["Expected 8, got 7"]),
    "statistics": (lambda: nn.BatchNorm1d(5), (X,), False, ["running_mean"]),
    "targets": (
        lambda: Fitted(F.binary_cross_entropy_with_logits),
        (X, T),
        True,
        ["differ in shape: [6, 1] and [6]", "target.float()"],
    ),
    "cuda": (lambda: Does(lambda m, x: m.fc1(x.cuda())), (X,), False, ["Leave models and tensors"]),
    "device": (lambda: Does(lambda m, x: x.to("cuda:0")), (X,), False, ["without .cuda()"]),
    "made elsewhere": (
        lambda: Does(lambda m, x: x + torch.ones(8, device="cuda")),
        (X,),
        False,
        ["Leave models and tensors"],
    ),
    "view": (lambda: Does(lambda m, x: m.fc1(x).view(-1, 5)), (X,), False, ["[-1, 5]"]),
    "joined": (lambda: Does(lambda m, x: torch.cat([x, x[:2]], 1)), (X,), False, ["Sizes of"]),
    "layer": (lambda: Does(lambda m, x: m.fc3(x)), (X,), False, ["no attribute 'fc3'"]),
    "name": (lambda: Does(lambda m, x: fc(x)), (X,), False, ["'fc' is not defined"]),  # noqa: F821
    "mean of an array": (lambda: Does(lambda m, x: np.mean(x)), (X,), False, ["np.mean"]),
    "leaf": (
        lambda: Does(lambda m, x: F.mse_loss(m.fc1(x) + m.fc1.weight.add_(1).sum(), x)),
        (X,),
        True,
        ["torch.no_grad()"],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", LIKE_EAGER)
def test_errors_of_torch(name, opts):
    make, args, training, pieces = LIKE_EAGER[name]
    with pytest.raises(Exception) as eager:
        make()(*args)
    wrap = poptorch.trainingModel if training else poptorch.inferenceModel
    with pytest.raises(type(eager.value)) as ours:
        wrap(make(), opts)(*args)
    error = ours.value
    assert str(error) == str(eager.value)
    text = "".join(traceback.format_exception_only(error))
    assert f"at {__file__}:" in text
    for piece in pieces:
        assert piece in text
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    assert files == {__file__}


def test_a_value_that_backward_needs_is_changed(opts):
    with pytest.raises(RuntimeError) as caught:
        poptorch.trainingModel(Does(saved_then_changed), opts)(X)
    assert "modified by an inplace operation" in str(caught.value)
    (note,) = caught.value.__notes__
    assert "the model's backward" in note and "y = torch.exp(m.fc1(x))" in note
    assert "write `y = y + 1`" in note


OURS = {
    "nothing": (lambda o: poptorch.inferenceModel(Net(), o)(), "Mandatory parameter x missing"),
    "too much": (
        lambda o: poptorch.inferenceModel(Net(), o)(X, T, T),
        r"Too many arguments provided: expected at most 2 \(x, labels\) but got 3",
    ),
    "keyword": (
        lambda o: poptorch.trainingModel(Net(), o)(X, label=T),
        "label is not a valid parameter. Did you mean labels?",
    ),
    "label": (
        lambda o: poptorch.trainingModel(Net(), o)(X, T + 3),
        "out of bounds for 4 classes. Check the labels",
    ),
    "index": (
        lambda o: poptorch.inferenceModel(nn.Embedding(4, 2), o)(T + 1),
        r"index 4 is out of bounds for a dim of size 4",
    ),
    "batch": (
        lambda o: poptorch.inferenceModel(Net(), o.deviceIterations(4))(X),
        r"the batch dimension \(6\) must be a multiple of 4",
    ),
    "no loss": (
        lambda o: poptorch.trainingModel(Net(), o)(X),
        "find a loss in graph.*The call gives no labels",
    ),
    "class": (
        lambda o: poptorch.inferenceModel(Net, o),
        r"must be a torch.nn.Module, not type: pass an object, Net\(...\)",
    ),
    "class of optimizers": (
        lambda o: poptorch.trainingModel(Net(), o, torch.optim.SGD),
        r"Pass an object: SGD\(model.parameters\(\), ...\)",
    ),
    "backward": (
        lambda o: poptorch.trainingModel(Net(), o)(X, T)[1].backward(),
        "part of the call",
    ),
    "other optimizer": (
        lambda o: poptorch.trainingModel(Net(), o, poptorch.optim.SGD(Net().parameters(), lr=1.0))(
            X, T
        ),
        "does not belong to the model",
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_errors_of_ours(name, opts):
    use, text = OURS[name]
    with pytest.raises((poptorch.Error, AssertionError, KeyError), match=text) as caught:
        use(opts)
    assert "Fake" not in "".join(traceback.format_exception(caught.value))


def test_later_calls_have_the_users_frames_only(opts):
    inference = poptorch.inferenceModel(nn.Embedding(4, 2), opts)
    inference(T)
    for wrong in (T + 1, T[:2], T.float()):
        with pytest.raises(poptorch.Error) as caught:
            inference(wrong)
        (frame,) = traceback.extract_tb(caught.value.__traceback__)
        assert frame.filename == __file__


def test_layers_in_a_list_are_no_part_of_a_model(opts):
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(8, 8)]

    with pytest.raises(ValueError, match="empty parameter list") as caught:
        poptorch.trainingModel(Listed(), opts)
    assert "torch.nn.ModuleList" in caught.value.__notes__[0]


def test_a_return_that_was_forgotten(opts, log):
    assert poptorch.inferenceModel(Does(lambda m, x: None), opts)(X) is None
    assert "is a `return` missing?" in log.text
