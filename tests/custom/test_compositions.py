# SPDX-License-Identifier: Apache-2.0
"""A row in a composition computes what the row computes in a program."""

import random

import poptorch
import pytest
import torch
from custom_support import custom, load_door
from function_model import Call
from poptorch import _core
from poptorch.base.dtypes import DTYPES
from tolerances import assert_pass_close

DTYPE_NUMBERS = {name: i for i, (name, _) in enumerate(_core.dtypes())}

# Rows with arguments that ATen takes as numbers only.
NUMBERS = {
    "addcdiv": "%0, %1, %2, 0.5",
    "addcmul": "%0, %1, %2, 0.5",
    "celu": "%0, 1.5",
    "elu": "%0, 1.5, 1.1, 0.9",
    "elu_backward": "%0, 1.5, 1.1, 0.9, false, %1",
    "hardshrink": "%0, 0.5",
    "hardshrink_backward": "%0, %1, 0.5",
    "hardtanh": "%0, -0.5, 0.5",
    "hardtanh_backward": "%0, %1, -0.5, 0.5",
    "leaky_relu": "%0, 0.1",
    "leaky_relu_backward": "%0, %1, 0.1, false",
    "polygamma": "1, %0",
    "softplus": "%0, 1.0, 20.0",
    "softplus_backward": "%0, %1, 1.0, 20.0",
    "softshrink": "%0, 0.5",
    "softshrink_backward": "%0, %1, 0.5",
    "threshold": "%0, 0.1, 0.2",
    "threshold_backward": "%0, %1, 0.1",
    "full": "2.5",
    "iota": "0, 3, 2",
    "where": "%3, %0, %1",
}
INTEGERS = {"bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift"}
INTEGERS |= {"bitwise_xor", "gcd", "lcm"}
# Random numbers and the neighbours of a number in another type need what only a program has.
OTHERS = {"uniform", "round_random", "nextafter"}

STRUCTURED = {
    "diagonal": ("x", "0, 0, 1", "f32[3]"),
    "expand": ("row", "[2, 3, 4]", "f32[2,3,4]"),
    "permute": ("x", "[1, 0]", "f32[4,3]"),
    "select": ("x", "1, 2", "f32[3]"),
    "slice": ("x", "1, 1, 4, 2", "f32[3,2]"),
    "squeeze": ("row", "[0]", "f32[4]"),
    "transpose": ("x", "0, 1", "f32[4,3]"),
    "unfold": ("x", "1, 2, 1", "f32[3,3,2]"),
    "unsqueeze": ("x", "1", "f32[3,1,4]"),
    "view": ("x", "[2, 6]", "f32[2,6]"),
    "as_strided": ("x", "[2, 2], [4, 1], 1", "f32[2,2]"),
    "sum": ("x", "[1], true", "f32[3,1]"),
    "mean": ("x", "[0], false", "f32[4]"),
    "amax": ("x", "[], false", "f32[]"),
    "amin": ("x", "[1], false", "f32[3]"),
    "prod": ("x", "[1], false", "f32[3]"),
    "argmax": ("x", "[1], false", "i64[3]"),
    "argmin": ("x", "[1], false", "i64[3]"),
    "any": ("x", "[1], false", "bool[3]"),
    "all": ("x", "[1], false", "bool[3]"),
    "cumsum": ("x", "1", "f32[3,4]"),
    "cumprod": ("x", "0", "f32[3,4]"),
    "_softmax": ("x", "1, false", "f32[3,4]"),
    "_log_softmax": ("x", "1, false", "f32[3,4]"),
    "flip": ("x", "[0, 1]", "f32[3,4]"),
    "constant_pad_nd": ("x", "[1, 2], 0.5", "f32[3,7]"),
}
# The whole argument list; %2 are places along dim 1, %3 one place per row.
CALLS = {
    "mm": ("%0, %1", "f32[3,3]"),
    "cat": ("[%0, %0], 1", "f32[3,8]"),
    "gather": ("%0, 1, %2", "f32[3,2]"),
    "scatter_add": ("%0, 1, %2, %4", "f32[3,4]"),
    "scatter.src": ("%0, 1, %2, %4", "f32[3,4]"),
    "scatter.value": ("%0, 1, %2, 2.0", "f32[3,4]"),
    "index_select": ("%0, 1, %3", "f32[3,3]"),
    "index": ("%0, [none, %3]", "f32[3,3]"),
    "index_add": ("%0, 0, %3, %0", "f32[3,4]"),
    "index_put": ("%0, [%3], %0, true", "f32[3,4]"),
    "embedding": ("%0, %3", "f32[3,4]"),
    "slice_scatter": ("%0, %4, 1, 0, 2, 1", "f32[3,4]"),
}


@pytest.fixture(autouse=True, scope="module")
def _library():
    load_door()


def program(text, inputs, result):
    """What the core makes of a text."""
    compiled = _core.compile(text, {}, {})
    dtype, shape = result
    out = torch.empty(shape, dtype=DTYPES[dtype])
    compiled.run([t.data_ptr() for t in inputs], [out.data_ptr()])
    return out


def type_text(t):
    name = next(n for n, d in DTYPES.items() if d is t.dtype)
    return f"{name}[{','.join(map(str, t.shape))}]"


def text_of(inputs, line):
    sources = "".join(f'  input %{i} "{i}" : {type_text(t)}\n' for i, t in enumerate(inputs))
    return f'tessera 1\ngraph "g" {{\n{sources}  %9 = {line}\n  output %9\n}}\n'


def check(cases):
    """Compares (name, inputs, line, type of the result); one model calls all of them."""
    parsed = []
    for name, inputs, line, result in cases:
        dtype, _, sizes = result.rstrip("]").partition("[")
        shape = [int(s) for s in sizes.split(",") if s]
        parsed.append((name, inputs, text_of(inputs, f"{line} : {result}"), (dtype, shape)))

    def forward(x):
        out = []
        for _, inputs, text, (dtype, shape) in parsed:
            attributes = {"text": text, "dtype": DTYPE_NUMBERS[dtype]}
            attributes |= {"shape": shape} if shape else {}
            out.append(custom([t.clone() for t in inputs], "Text", **attributes))
        return (x, *out)

    found = poptorch.inferenceModel(Call(forward))(torch.zeros(1))
    for (name, inputs, text, result), y in zip(parsed, found[1:], strict=True):
        expected = program(text, inputs, result)
        assert_pass_close(y.to(expected.dtype), expected, name)


def test_pointwise_rows():
    torch.manual_seed(0)
    floats = [torch.rand(6) * 0.8 + 0.1 for _ in range(3)]
    whole = [torch.randint(1, 9, (6,), dtype=torch.int32) for _ in range(3)]
    mask = torch.tensor([True, False] * 3)
    cases = []
    for row in _core.rows():
        if row.kind != "pointwise" or row.name in OTHERS:
            continue
        integers = row.name in INTEGERS
        inputs = [*(whole if integers else floats), mask]
        args = NUMBERS.get(row.name) or ", ".join(f"%{i}" for i in range(row.arity))
        kind = "bool" if row.rule == "bool" else "i32" if integers else "f32"
        cases.append((row.name, inputs, f"{row.name}({args})", f"{kind}[6]"))
    assert len(cases) > 150
    check(cases)


def test_a_number_may_be_any_operand():
    x = torch.rand(5) + 0.5
    names = ["add", "sub", "mul", "div", "maximum", "pow", "atan2", "lt"]
    lines = [f"{n}(%0, 0.75)" for n in names] + [f"{n}(0.75, %0)" for n in names]
    kinds = ["bool" if line.startswith("lt") else "f32" for line in lines]
    check([(a, [x], a, f"{k}[5]") for a, k in zip(lines, kinds, strict=True)])


def test_results_are_cast_and_broadcast():
    x = torch.randn(4, 1)
    check(
        [
            ("broadcast", [x], "mul(%0, 2.0)", "f16[2,4,3]"),
            ("cast", [x], "_to_copy(%0)", "i32[4,1]"),
        ]
    )


def test_structured_rows():
    torch.manual_seed(0)
    x, row = torch.randn(3, 4), torch.randn(1, 4)
    cases = []
    for name, (of, args, result) in STRUCTURED.items():
        inputs = [x if of == "x" else row]
        line = f"{name}(%0, {args})"
        cases.append((name, inputs, line, result))
    # 64-bit integers are 32-bit ones for custom ops.
    places = torch.tensor([[0, 3], [1, 2], [3, 0]], dtype=torch.int32)
    inputs = [
        x,
        torch.randn(4, 3),
        places,
        torch.tensor([2, 0, 1], dtype=torch.int32),
        torch.randn(3, 2),
    ]
    cases += [(name, inputs, f"{name}({args})", result) for name, (args, result) in CALLS.items()]
    check(cases)


def test_custom_ops_in_a_composition():
    line = 'custom("test.door", "LeakyRelu", 1, [%0], [["alpha", 0.5]])'
    text = text_of([torch.zeros(4)], f"{line} : f32[4]")
    x = torch.randn(4)
    found = poptorch.inferenceModel(Call(lambda x: custom([x], "Text", text=text, shape=[4])))(x)
    assert_pass_close(found, torch.nn.functional.leaky_relu(x, 0.5))


def test_damaged_texts_are_errors():
    good = text_of([torch.zeros(4)], "leaky_relu(%0, 0.5) : f32[4]")
    rng = random.Random(1)
    model = Call(lambda x: x)
    for _ in range(60):
        at, kind = rng.randrange(len(good)), rng.randrange(3)
        cut = good[at + rng.randrange(1, 5) :] if kind == 0 else good[at:]
        damaged = good[:at] + ("" if kind < 2 else rng.choice('%[]{}",=:9 \n')) + cut
        damaged = damaged[: rng.randrange(len(good))] if kind == 1 else damaged
        model.function = lambda x, t=damaged: custom([x], "Text", text=t, shape=[4])
        try:
            poptorch.inferenceModel(model)(torch.ones(4))
        except poptorch.Error as e:
            assert "internal error" not in str(e)
