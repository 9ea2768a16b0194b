# SPDX-License-Identifier: Apache-2.0
"""Tensors as text while a model is captured, warnings of torch, and words not meant for users."""

import copy
import io
import pickle
import traceback
import warnings

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from words_support import Body

X = torch.ones(4, 3)


@pytest.mark.parametrize(
    "write",
    [
        lambda y: f"{y.mean():.3f}",
        lambda y: f"{y.mean():10}",
        lambda y: format(y.mean(), "e"),
        lambda y: f"{y.mean()}",
        lambda y: f"{y}",
        repr,
        str,
        lambda y: print(y, file=io.StringIO()),
    ],
)
def test_text_is_made_with_one_warning(write, opts, log):
    texts = []

    def body(y):
        for _ in range(3):
            texts.append(write(y))

    model = Body(body)
    out = poptorch.inferenceModel(model, opts)(X)
    torch.testing.assert_close(out, F.linear(X, model.linear.weight, model.linear.bias))
    (record,) = [r for r in log.records if "turned into text" in r.message]
    assert "ipu_print_tensor" in record.message and __file__ in record.message
    for text in texts:
        assert text is None or "unavailable" in text and "Fake" not in text


def test_the_text_of_a_constant_is_its_value(opts, log):
    texts = []
    poptorch.inferenceModel(Body(lambda y: texts.append(f"{torch.ones(()) / 3:.3f}")), opts)(X)
    assert texts == ["0.333"] and "turned into text" not in log.text


def test_a_format_that_eager_refuses_is_refused(opts):
    with pytest.raises(TypeError, match="unsupported format string passed to Tensor.__format__"):
        poptorch.inferenceModel(Body(lambda y: f"{y:.3f}"), opts)(X)


def fails(y):
    raise ValueError(f"strange: {y} {type(y)}")


class Odd(Exception):
    pass


def odd(y):
    raise Odd(y, 3)


@pytest.mark.parametrize(
    "body",
    [
        fails,
        odd,
        lambda y: {"a": 1}[y[0, 0]],
        lambda y: y + "text",
        lambda y: y + object(),
        lambda y: y.no_such_method(),
        lambda y: [1] + y,
        lambda y: "a" + y,
        lambda y: y(),
        lambda y: y + torch.ones(2, device="meta"),
        lambda y: pickle.dumps(y),
        lambda y: torch.save(y, io.BytesIO()),
        lambda y: int("x" if y is None else y),
        lambda y: torch.zeros(y),
        lambda y: open(y),
        lambda y: F.linear(y, "weight"),
        lambda y: nn.Linear(2, 2)([y]),
        lambda y: torch.cat(y, y),
        lambda y: setattr(y, "shape", 3),
        lambda y: y.data_ptr(),
        lambda y: y.storage().data_ptr(),
        lambda y: memoryview(y),
        lambda y: hash(y) and [][y],
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_fake_tensors_are_never_spoken_of(body, training, opts, log, capfd):
    wrap = poptorch.trainingModel if training else poptorch.inferenceModel
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            wrap(Body(body), opts)(X)
            text = ""
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            code = text.splitlines()
            text = "\n".join(line for line in code if not line.startswith("  "))
    text += log.text + "".join(str(w.message) for w in warned) + "".join(capfd.readouterr())
    assert "Fake" not in text and "fake_tensor" not in text


# Warnings ----------------------------------------------------------------------------------------


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.MultiheadAttention(4, 2) for _ in range(12)])

    def forward(self, x, mask, padding):
        for layer in self.layers:
            x, _ = layer(x, x, x, attn_mask=mask, key_padding_mask=padding)
        return x


def test_equal_warnings_come_once_and_name_the_line(opts):
    mask, padding = torch.zeros(5, 5, dtype=torch.bool), torch.zeros(2, 5)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        poptorch.inferenceModel(Stack(), opts)(torch.randn(5, 2, 4), mask, padding)
    (warning,) = [w for w in warned if "attn_mask" in str(w.message)]
    assert warning.filename == __file__


def test_showing_warnings_is_left_as_it_was(opts):
    before = warnings.showwarning
    poptorch.inferenceModel(Body(lambda y: y), opts)(X)
    assert warnings.showwarning is before


def test_a_copy_of_a_tensor_is_a_copy(opts):
    class Copies(nn.Module):
        def forward(self, x):
            y = copy.deepcopy(x)
            y += 1
            return x, y

    x, y = poptorch.inferenceModel(Copies(), opts)(X)
    torch.testing.assert_close(x, X)
    torch.testing.assert_close(y, X + 1)


# What fake kernels do not check -------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        lambda y: y.softmax(5),
        lambda y: y.log_softmax(-3),
        lambda y: F.gumbel_softmax(y, dim=7),
        lambda y: y ^ y,
        lambda y: y | 1,
        lambda y: y.bitwise_and_(y),
    ],
)
def test_what_eager_refuses_is_refused(body, opts):
    with pytest.raises(Exception) as eager:
        Body(body)(X)
    with pytest.raises(type(eager.value)) as ours:
        poptorch.inferenceModel(Body(body), opts)(X)
    assert str(ours.value) == str(eager.value)
