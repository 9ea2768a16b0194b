# SPDX-License-Identifier: Apache-2.0
"""Words of errors and warnings: PopTorch's own ops, on the CPU and in models."""

import poptorch
import torch
from torch import nn
from words_support import Row, X, check, infer, options, table

Error = poptorch.Error
START = torch.tensor(1)
TYPE = "is not supported."
FACTOR = "must be a factor of the slicing dimension"


def slice_of(*args):
    """A slice on the CPU, and in a model."""
    return (
        lambda: poptorch.dynamic_slice(*args),
        lambda: infer(lambda x: poptorch.dynamic_slice(x, *args[1:])),
    )


def both(words, kind, provocations):
    return [Row(words, kind, provoke) for provoke in provocations]


SLICES = [
    Row(TYPE, Error, lambda: poptorch.dynamic_slice([1.0], 0, START, 1, 1)),
    *both("Dimension must be an integer.", Error, slice_of(X, 0.0, START, 2, 1)),
    *both("Slice start argument to dynamic_slice must be a torch.tensor", Error,
          slice_of(X, 0, 1, 2, 1)),
    *both("Size must be an integer.", Error, slice_of(X, 0, START, 2.0, 1)),
    *both("Step must be an integer.", Error, slice_of(X, 0, START, 2, 1.0)),
    *both("Slicing step must be at least 1", Error, slice_of(X, 0, START, 2, 0)),
    *both("The start and end of a slice must be different.", Error, slice_of(X, 0, START, 0, 1)),
    *both("end less than the start is not supported", Error, slice_of(X, 0, START, -1, 1)),
    Row(FACTOR, Error, lambda: infer(lambda x: poptorch.dynamic_slice(x, 0, START, 3, 1))),
    Row(FACTOR, Error,
        lambda: infer(lambda x, i: poptorch.dynamic_slice(x, 0, i, 3, 1), X, torch.tensor(0))),
    *both("Expected integer typed start tensor", Error, slice_of(X, 0, torch.tensor(1.0), 2, 1)),
    Row("Slice start argument to dynamic_update must be a torch.tensor", Error,
        lambda: poptorch.dynamic_update(X, X[:1], 0, 1, 1)),
    Row("Dimension must be an integer.", Error,
        lambda: poptorch.dynamic_update(X, X[:1], None, START, 1)),
    Row("Size must be an integer.", Error,
        lambda: poptorch.dynamic_update(X, X[:1], 0, START, 1.0)),
    Row("must have same dimensionality", Error,
        lambda: poptorch.dynamic_update(X, X[0], 0, START, 1)),
    Row("must have same dimensionality", Error,
        lambda: infer(lambda x: poptorch.dynamic_update(x, x[0], 0, START, 1))),
    Row("must have same dtype", Error,
        lambda: poptorch.dynamic_update(X, X[:1].half(), 0, START, 1)),
    Row("must have same dtype", Error,
        lambda: infer(lambda x: poptorch.dynamic_update(x, x[:1].half(), 0, START, 1))),
    Row(TYPE, Error, lambda: poptorch.dynamic_update(X, 1.0, 0, START, 1)),
]  # fmt: skip

FLAG = torch.tensor(True)


CONTROL = [
    Row("Object is not list", ValueError, lambda: poptorch.for_loop(2, torch.neg, X)),
    Row("Object is not list", ValueError, lambda: poptorch.for_loop(2, torch.neg, (X,))),
    Row("is not torch.tensor", ValueError, lambda: poptorch.for_loop(2, torch.neg, [1.0])),
    Row("same shapes and types", Error, lambda: poptorch.for_loop(2, torch.sum, [X])),
    Row("same shapes and types: result 0 is torch.float32 of shape []", Error,
        lambda: infer(lambda x: poptorch.for_loop(2, torch.sum, [x]))),
    Row("same shapes and types: it takes 1 and returns 2", Error,
        lambda: infer(lambda x: poptorch.for_loop(2, lambda y: (y, y), [x]))),
    Row("for_loop: count must be an int", Error, lambda: poptorch.for_loop(2.0, torch.neg, [X])),
    Row("for_loop: count must be an int", Error,
        lambda: infer(lambda x: poptorch.for_loop(x.sum(), torch.neg, [x]))),
    Row("for_loop: count must not be negative", Error,
        lambda: infer(lambda x: poptorch.for_loop(-1, torch.neg, [x]))),
    Row("poptorch.cond expects then_inps and else_inps tensors", ValueError,
        lambda: poptorch.cond(FLAG, torch.neg, X, torch.neg, [X])),
    Row("poptorch.cond expects then_inps and else_inps tensors", ValueError,
        lambda: poptorch.cond(FLAG, torch.neg, [X], torch.neg, (X,))),
    Row("both bodies must return as many outputs", Error,
        lambda: infer(lambda x: poptorch.cond(x.sum() > 0, lambda: [x, x], [], torch.neg, [x]))),
    Row("cannot be reshaped to []", Error,
        lambda: infer(lambda x: poptorch.cond(x.sum() > 0, torch.neg, [x], torch.sum, [x]))),
    Row("poptorch.cond: the condition must be a boolean tensor", Error,
        lambda: infer(lambda x: poptorch.cond(x.sum(), torch.neg, [x], torch.neg, [x]))),
]  # fmt: skip

Mode = poptorch.MatMulSerializationMode


def product(*args):
    return lambda: poptorch.serializedMatMul(*args)


TENSORS = [
    Row(TYPE, Error, lambda: poptorch.ipu_print_tensor(1.0)),
    Row("ipu_print_tensor", Error, lambda: poptorch.ipu_print_tensor([X])),
    Row(TYPE, Error, lambda: poptorch.nop(1.0)),
    Row("nop", Error, lambda: poptorch.nop(None)),
    Row("", KeyError, lambda: infer(lambda x: poptorch.ipu_print_tensor(x, float_format="hex"))),
    Row("", AssertionError, product(1, X, Mode.ReducingDim)),
    Row("", AssertionError, product(X.t(), X, "ReducingDim")),
    Row("", AssertionError, product(X.t(), X, Mode.ReducingDim, 2.0)),
    Row("", AssertionError, product(X.t(), X, Mode.ReducingDim, 2, 1)),
    Row("must be rank-3", Error,
        lambda: infer(lambda x: poptorch.ctc_beam_search_decoder(x, START.reshape(1)))),
    Row(TYPE, Error, lambda: poptorch.ctc_beam_search_decoder(X, [1])),
    Row("must containt at least 2 elements", AssertionError, lambda: poptorch.fps(X, [0])),
    Row("'batch_x' is not sorted", Error,
        lambda: poptorch.nearest(X[:2], X[:2], [1, 0], [0, 1])),
    Row("'batch_y' is not sorted", Error,
        lambda: poptorch.nearest(X[:2], X[:2], torch.tensor([0, 1]), torch.tensor([1, 0]))),
    Row("Some batch indices occur in 'batch_x' that do not occur in 'batch_y'", Error,
        lambda: poptorch.nearest(X[:2], X[:2], [0, 1], [0, 0])),
    Row("Some batch indices occur in 'batch_x' that do not occur in 'batch_y'", Error,
        lambda: poptorch.nearest(X[:2], X[:2], torch.tensor([0, 1]), torch.tensor([0, 0]))),
]  # fmt: skip


def custom(**attributes):
    return lambda: poptorch.custom_op([X], "Op", "domain", 1, [X], attributes)


CUSTOM = [
    Row("All attribute keys must be strings.", ValueError,
        lambda: poptorch.custom_op([X], "Op", "domain", 1, [X], {1: 2})),
    Row("Attribute values must be floats, ints, strings", ValueError, custom(a=None)),
    Row("must all be the same", ValueError, custom(a=[1, 2.0])),
    Row("contains non-ASCII characters", ValueError, custom(a="\u00e4")),
    Row("contains non-ASCII characters", ValueError, custom(**{"\u00e4": 1})),
]  # fmt: skip


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = poptorch.CPU(torch.neg, "inner")
        self.outside = poptorch.CPU(self.called, "outer")

    def called(self, x):
        return self.inside(x)

    def forward(self, x):
        return self.outside(x)


HOST = [
    Row("CPU ops must not overlap", Error, lambda: infer(Inner())),
]  # fmt: skip

LAYERS = [
    Row("Feature dropout requires at least 2 dimensions in the input", RuntimeError,
        lambda: infer(nn.Dropout2d(), torch.ones(8))),
    Row("aten::item is only supported in eager mode", Error,
        lambda: infer(lambda x: x + x.sum().item(), opts=options(valuesReadInForward="error"))),
]  # fmt: skip


@table(SLICES + CONTROL + TENSORS + CUSTOM + HOST + LAYERS)
def test_words(row, caplog):
    check(row, caplog)


def test_a_slice_on_the_cpu_needs_no_factor():
    assert poptorch.dynamic_slice(X, 0, START, 3, 1).equal(X[1:4])
    assert options().device_iterations == 1
