# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be captured, or that do what was hardly meant: the class of the error, the
user's own line in it, and an executor that compiles and trains once the model is put right."""

import linecache

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812


class Model(torch.nn.Module):
    """A linear layer; what follows it can be exchanged."""

    def __init__(self, body):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.body = body

    def forward(self, x, target):
        return self.body(self.linear(x), target)


def sound(y, target):
    return y, F.mse_loss(y, target)


def assert_trains(training, batch):
    """The executor is usable: its next call compiles, and its weights move."""
    assert not training.isCompiled() and not poptorch.isRunningOnIpu()
    training.model.body = sound
    training._model.body = sound  # plain attributes were copied when the model was wrapped
    before = training.model.linear.weight.detach().clone()
    y, loss = training(*batch)
    expected = F.mse_loss(y, batch[1])
    torch.testing.assert_close(loss, expected)
    assert not torch.equal(training.model.linear.weight, before)


def assert_names_the_line(error):
    """Its location is a line of this file that is marked with `# here`."""
    file, line = error.location.rsplit(":", 1)
    assert file == __file__
    assert "# here" in linecache.getline(file, int(line))
    assert "# here" in str(error), "the text of the line is in the message"


# Values and shapes that depend on data -----------------------------------------------------------


def item(y, target):
    return sound(y * y.sum().item(), target)  # here


def branch(y, target):
    if y.sum() > 0:  # here
        y = -y
    return sound(y, target)


def to_list(y, target):
    return sound(y * y[0].tolist()[0], target)  # here


def to_numpy(y, target):
    return sound(y * torch.from_numpy(y.detach().numpy()), target)  # here


def to_float(y, target):
    return sound(y * float(y.max()), target)  # here


def to_int(y, target):
    return sound(y[: int(y.argmax())], target)  # here


def nonzero(y, target):
    return sound(y * y.nonzero().sum(), target)  # here


def mask(y, target):
    return sound(y * y[y > 0].sum(), target)  # here


def unique(y, target):
    return sound(y * y.unique().sum(), target)  # here


@pytest.mark.parametrize("body", [item, branch, to_list, to_numpy, to_float, to_int])
def test_reading_a_value(batch, opts, body):
    training = poptorch.trainingModel(Model(body), opts.clone().valuesReadInForward("error"))
    with pytest.raises(poptorch.Error, match="reads the value of a tensor") as caught:
        training(*batch)
    assert_names_the_line(caught.value)
    assert "torch.where" in str(caught.value), "what to try"
    assert_trains(training, batch)


@pytest.mark.parametrize("body", [nonzero, mask, unique])
def test_a_shape_that_depends_on_data(batch, opts, body):
    opts = opts.clone().valuesReadInForward("error") if body is nonzero else opts
    training = poptorch.trainingModel(Model(body), opts)
    with pytest.raises(poptorch.Error, match="depends on the data") as caught:
        training(*batch)
    assert_names_the_line(caught.value)
    assert "torch.where(mask, x, 0)" in str(caught.value), "what to try"
    assert_trains(training, batch)


# Exceptions of the user's code -------------------------------------------------------------------


class Mine(Exception):
    pass


def raises(y, target):
    raise Mine("no")  # here


def mismatch(y, target):
    return sound(y @ y, target)  # here


@pytest.mark.parametrize("body, kind", [(raises, Mine), (mismatch, RuntimeError)])
def test_an_exception_in_forward_keeps_its_class_and_gets_a_note(batch, opts, capfd, body, kind):
    training = poptorch.trainingModel(Model(body), opts)
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    with pytest.raises(kind) as caught:
        training(*batch)
    (note,) = caught.value.__notes__
    assert "while capturing the model's forward" in note and __file__ in note and "# here" in note
    after = training.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert capfd.readouterr().err == "", "the exception is told once"
    assert_trains(training, batch)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_exit_in_forward_passes_through(batch, opts, kind):
    def leaves(y, target):
        raise kind

    training = poptorch.trainingModel(Model(leaves), opts)
    with pytest.raises(kind):
        training(*batch)
    assert_trains(training, batch)


def backward(y, target):
    y, loss = sound(y, target)
    loss.backward()  # here
    return y, loss


def generator(y, target):
    noise = torch.randn(2, generator=torch.Generator().manual_seed(1))  # here
    return sound(y + noise, target)


@pytest.mark.parametrize(
    "body, text", [(backward, "part of each call"), (generator, r"Options\(\).randomSeed")]
)
def test_calls_that_a_captured_model_cannot_make(batch, opts, body, text):
    training = poptorch.trainingModel(Model(body), opts)
    with pytest.raises(poptorch.Error, match=text) as caught:
        training(*batch)
    assert_names_the_line(caught.value)
    assert_trains(training, batch)


# Losses ------------------------------------------------------------------------------------------


def no_loss(y, target):
    return y


def two_losses(y, target):
    first = F.mse_loss(y, target)  # here 1
    return first, F.l1_loss(y, target)  # here 2


def sum_of_losses(y, target):
    return F.mse_loss(y, target) + F.l1_loss(y, target)


def test_a_model_without_a_loss(batch, opts):
    training = poptorch.trainingModel(Model(no_loss), opts)
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph!") as caught:
        training(*batch)
    assert "poptorch.identity_loss" in str(caught.value), "what to try"
    assert_trains(training, batch)


@pytest.mark.parametrize("body", [two_losses, sum_of_losses])
def test_several_independent_losses(batch, opts, body):
    training = poptorch.trainingModel(Model(body), opts)
    text = "Multiple independent losses found in graph. Graph must have one final loss."
    with pytest.raises(poptorch.Error, match=text) as caught:
        training(*batch)
    message = str(caught.value)
    assert "Wrap final graph loss in poptorch.identity_loss." in message
    assert message.count(f"loss at {__file__}:") == 2
    if body is two_losses:
        assert "# here 1" in message and "# here 2" in message
    assert_trains(training, batch)


def unreduced(y, target):
    return F.mse_loss(y, target, reduction="none")  # here


def test_a_loss_that_is_no_scalar_counts_as_its_sum_and_is_warned_about(batch, opts, log):
    """The manual defines it, so it is no error; but it is seldom meant."""
    model, eager = Model(unreduced), Model(unreduced)
    eager.load_state_dict(model.state_dict())
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    loss = eager(*batch)
    loss.sum().backward()
    optimizer.step()
    torch.testing.assert_close(training(*batch), loss.detach())
    torch.testing.assert_close(model.linear.weight, eager.linear.weight)
    (record,) = [r for r in log.records if "The loss is no scalar" in r.message]
    assert record.levelname == "WARNING" and "[4, 2]" in record.message
    assert __file__ in record.message and "# here" in record.message


def test_a_loss_that_trains_nothing_is_warned_about(batch, opts, log):
    def detached(y, target):
        return F.mse_loss(y.detach(), target)  # here

    model = Model(detached)
    before = model.linear.weight.detach().clone()
    poptorch.trainingModel(model, opts)(*batch)
    assert torch.equal(model.linear.weight, before)
    assert "depends on no trainable parameter" in log.text and "# here" in log.text


def test_a_frozen_model_is_not_warned_about(batch, opts, log):
    model = Model(sound).requires_grad_(False)
    _, loss = poptorch.trainingModel(model, opts)(*batch)
    torch.testing.assert_close(loss, model(*batch)[1])
    assert "WARNING" not in [r.levelname for r in log.records]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_is_no_module_is_refused():
    for wrap in (poptorch.trainingModel, poptorch.inferenceModel):
        with pytest.raises(poptorch.Error, match="must be a torch.nn.Module, not function"):
            wrap(sound)
        with pytest.raises(poptorch.Error, match="whose forward calls it"):
            wrap(torch.jit.script(torch.nn.Linear(2, 2)))


class Optional(torch.nn.Module):
    """Computes its loss only if it has labels."""

    def __init__(self, calls=True):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.criterion = torch.nn.MSELoss()
        self.calls = calls

    def forward(self, x, mask=None, labels=None):
        y = self.linear(x)
        return (y, self.criterion(y, labels)) if labels is not None and self.calls else y


def test_labels_that_were_forgotten(batch, opts):
    with pytest.raises(poptorch.Error, match="find a loss in graph!.*The call gives no labels"):
        poptorch.trainingModel(Optional(), opts)(batch[0])
    poptorch.trainingModel(Optional(), opts)(batch[0], labels=batch[1])


def test_a_loss_that_is_not_called(batch, opts):
    text = r"The model has criterion \(MSELoss\), but forward does not call it"
    with pytest.raises(poptorch.Error, match=text):
        poptorch.trainingModel(Optional(calls=False), opts)(batch[0], batch[0], batch[1])


@pytest.mark.parametrize(
    "body, warned",
    [
        (lambda y, target: F.mse_loss(y, target) * 0.5, True),
        (lambda y, target: F.mse_loss(y, target) + 0.1 * y.pow(2).sum(), True),
        (lambda y, target: (y, -F.mse_loss(y, target)), True),
        (lambda y, target: F.mse_loss(y, target), False),
        (lambda y, target: (y * 2, F.mse_loss(y * 2, target).mean().reshape(1)), False),
        (lambda y, target: (F.mse_loss(y, target), F.mse_loss(y, target).detach() * 2)[0], False),
        (lambda y, target: poptorch.identity_loss(F.mse_loss(y, target) * 0.5, "none"), False),
        (lambda y, target: (F.mse_loss(y, target), y * 2)[1], False),
    ],
)
def test_work_on_a_loss_that_does_not_count_is_warned_about(body, warned, batch, opts, log):
    poptorch.trainingModel(Model(body), opts)(*batch)
    assert ("factors and terms that came later" in log.text) == warned
