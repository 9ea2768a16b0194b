# SPDX-License-Identifier: Apache-2.0
"""The rows of the op tables: each is reached, and none is given a call that it does not know."""

import itertools
import pathlib
import re
import warnings

import conformance
import poptorch
import pytest
import torch
from against_eager import quiet, summary
from poptorch import _core, ctc_beam_search_decoder
from poptorch.capture import capture
from poptorch.capture.text.forms import is_pointwise_call, is_structured_call
from poptorch.capture.text.writer import Value
from torch import nn
from torch.nn import functional as F

ROWS = {row.name: row for row in _core.rows()}
CORE = pathlib.Path(__file__).resolve().parent.parent.parent / "core"


def rows_of(model, args, training):
    """Names of the rows in the captured text of a model."""
    found = capture(model, args, {}, training=training, rows=ROWS, name="t")
    return set(re.findall(r" = ([\w.]+)\(", found.text))


def made_by_passes():
    """Rows that some pass or the planner puts into a graph, by name."""
    code = "".join(
        path.read_text()
        for folder in ("passes", "plan", "ir")
        for path in CORE.glob(f"{folder}/*.cpp")
    )
    made = set(re.findall(r"(?<!case )(?<![!=]= )Op::(\w+)", code))
    tables = "".join((CORE / "ops" / f).read_text() for f in ("pointwise.def", "ops.def"))
    return {
        text for name, text in re.findall(r'^\w+\((\w+),\s*"(.*?)"', tables, re.M) if name in made
    }


class Calls(nn.Module):
    """A model of one parameter that calls a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, *args):
        out = self.function(*(a + self.w if a.is_floating_point() else a for a in args))
        first = out[0] if isinstance(out, tuple) else out
        return F.mse_loss(first, torch.zeros_like(first))


LAYERS = [nn.LSTM(3, 4), nn.GRU(3, 4), nn.RNN(3, 4)]
SEQUENCE = torch.randn(5, 2, 3)
# What no entry of the operator database reaches: a function and its arguments.
BESIDE = [
    *[(layer, (SEQUENCE,)) for layer in LAYERS],
    (lambda x: ctc_beam_search_decoder(x.log_softmax(2), torch.tensor([4, 4]))[0], (SEQUENCE,)),
    (lambda x: x * torch.randperm(3), (SEQUENCE,)),
    (lambda x: x * torch.softmax(x[0], 1).multinomial(2, True).sum(), (SEQUENCE,)),
    (lambda x: F.pad(x, (1, 1), mode="circular"), (SEQUENCE,)),
    (lambda x: F.unfold(x[None], 2), (SEQUENCE,)),
    (lambda x: torch.nonzero_static(x > 0, size=3) * x.sum(), (SEQUENCE,)),
    (lambda x, i: torch.bincount(i, minlength=5) * x.sum(), (SEQUENCE, torch.tensor([1, 2, 2]))),
    (lambda x: poptorch.for_loop(3, torch.tanh, [x])[0], (SEQUENCE,)),
    (lambda x: poptorch.cond(x.sum() > 0, torch.tanh, [x], torch.exp, [x])[0], (SEQUENCE,)),
]


def likely_first(missing):
    """The operator database, entries first that are named as a row that is still missing."""

    def rank(op):
        base = op.name.rpartition(".")[2]
        return not any(base in name or name in base for name in missing)

    return sorted(conformance.ops(), key=rank)


def test_every_row_is_reached():
    """From capture, by a model that calls an op, or by a pass that makes it."""
    # By libraries of users alone: tests/custom, tests/custom_ops.
    missing = set(ROWS) - made_by_passes() - {"host_call", "custom", "while", "exchange"}
    for function, args in BESIDE:
        missing -= rows_of(Calls(function), args, training=True)
    for op in likely_first(missing):
        if not missing:
            break
        for dtype in conformance.types_of(op, all_types=False)[:1]:
            missing -= rows_of_samples(op, dtype)
    assert not missing, f"no model reaches {sorted(missing)}"


def rows_of_samples(op, dtype):
    grad = conformance.differentiable(op, dtype)
    found = set()
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), 2):
        model = conformance.Call(op, sample, training=grad)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found |= rows_of(model, model.arguments(), grad)
        except Exception:  # what capture refuses reaches no row; test_conformance looks at it
            continue
    return found


def value(dtype, *shape):
    return Value(None, dtype, shape)


X, HALF, INDEX, MASK = (
    value(t, 3, 4) for t in (torch.float32, torch.float16, torch.int64, torch.bool)
)
STRUCTURED = {
    "topk": ([X, 2, 1, True, True], True),
    "topk with one argument less": ([X, 2, 1, True], False),
    "topk of a list": ([[X], 2, 1, True, True], False),
    "topk with a number for a switch": ([X, 2, 1, 1, True], False),
    "topk with a fraction": ([X, 2.0, 1, True, True], False),
    "topk with a tensor of sizes": ([X, INDEX, 1, True, True], False),
    "mm": ([X, X], True),
    "mm of two types": ([X, HALF], False),
    "mm with a type": ([X, X, torch.float32], False),
    "amax": ([X], True),
    "amax with a list": ([X, [0, 1], True], True),
    "amax with none": ([X, None, False], True),
    "amax with text": ([X, "0"], False),
    "index": ([X, [None, INDEX]], True),
    "index by numbers": ([X, [1, INDEX]], False),
    "searchsorted": ([X, X, True, False], True),
    "searchsorted without values": ([X, None, True, False], False),
    "masked_scatter": ([X, MASK, X], True),
    "masked_scatter by a number": ([X, INDEX, X], False),
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_a_structured_row_takes_the_calls_of_its_signature(name):
    args, fits = STRUCTURED[name]
    assert is_structured_call(ROWS[name.split()[0]], args) == fits


F32, I64, BOOL = torch.float32, torch.int64, torch.bool
POINTWISE = {
    "tanh": ([X], F32, True),
    "tanh of two": ([X, X], F32, False),
    "tanh of integers as integers": ([INDEX], I64, False),
    "hardtanh": ([X, -1.0, 1.0], F32, True),
    "hardtanh without a limit": ([X, -1.0, None], F32, False),
    "elu_backward": ([X, 1.0, 1.0, 1.0, False, X], F32, True),
    "gelu with a word": ([X, "none"], F32, False),
    "atan2 of numbers": ([1.0, 2.0], F32, False),
    "gcd": ([INDEX, 2], I64, True),
    "gcd of floats": ([X, X], F32, False),
    "bitwise_and of bools": ([MASK, MASK], BOOL, True),
    "neg of bools": ([MASK], BOOL, False),
    "uniform": ([X, 0.0, 1.0, None], F32, False),
    "_to_copy": ([X], F32, False),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_a_pointwise_row_takes_its_operands(name):
    args, result, fits = POINTWISE[name]
    assert is_pointwise_call(ROWS[name.split()[0]], args, result) == fits


def run(model, *args):
    """(result of the compiled model, its host calls)."""
    executor = poptorch.inferenceModel(model, options=quiet())
    out = executor(*args)
    return out, [c["target"] for c in summary(executor)["host_calls"]]


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


LENGTHS, OFFSETS = torch.tensor([2, 3, 1]), torch.tensor([0, 2, 5, 6])
SEGMENTS = {
    "lengths": dict(lengths=LENGTHS),
    "offsets": dict(offsets=OFFSETS),
    "offsets, unsafe": dict(offsets=OFFSETS, unsafe=True),
    "initial": dict(lengths=LENGTHS, initial=2.0),
    "axis": dict(lengths=LENGTHS.expand(6, 3), axis=1, unsafe=True),
}


@pytest.mark.parametrize("reduce", ("sum", "mean", "max", "min", "prod"))
@pytest.mark.parametrize("form", SEGMENTS)
def test_segment_reduce_in_every_form(form, reduce):
    torch.manual_seed(0)
    x = torch.randn(6, 6)
    model = Function(lambda x: torch.segment_reduce(x, reduce, **SEGMENTS[form]))
    torch.testing.assert_close(run(model, x)[0], model(x))


def test_float64_goes_through_views():
    def views(x):
        x = x.double() / 3
        return x.diagonal(1) * 2, x.unfold(0, 2, 1) + 1, x.as_strided((2, 2), (1, 3)) - 1, x.t()[1:]

    x = torch.randn(4, 4)
    out, hosted = run(Function(views), x)
    assert not hosted
    for a, b in zip(out, views(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6, check_dtype=False)


def test_rows_say_what_they_are():
    assert ROWS["add"].kind == "pointwise" and ROWS["add"].arity == 2
    assert ROWS["add"].rule == "same" and ROWS["eq"].rule == "bool"
    assert ROWS["view"].kind == "view" and ROWS["mm"].kind == "structured"
    assert ROWS["mm"].signature == "N N="
    assert "rounds" in ROWS["mm"].facts and "double" not in ROWS["mm"].facts
    assert {"double", "fuses"} <= set(ROWS["sum"].facts)
    assert "updates" in ROWS["index_put"].facts
    assert "fused" not in ROWS  # only passes make it
