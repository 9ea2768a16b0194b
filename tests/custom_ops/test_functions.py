# SPDX-License-Identifier: Apache-2.0
"""The element-wise functions of popops, in the order of their table in detail/expr_ops.h."""

import popart_support as support
import poptorch
import torch

UNARY = [
    torch.abs,
    torch.asin,
    None,  # of integers
    lambda x: x.sign() * x.abs() ** (1 / 3),
    torch.ceil,
    torch.cos,
    torch.erf,
    torch.exp,
    torch.expm1,
    torch.exp2,
    torch.floor,
    torch.nn.functional.gelu,
    torch.reciprocal,
    torch.isfinite,
    torch.isinf,
    torch.isnan,
    torch.log,
    torch.log1p,
    None,  # of bools
    torch.neg,
    torch.round,
    lambda x: x.sign() * (x.abs() + 0.5).floor(),
    torch.sign,
    torch.sin,
    torch.tan,
    torch.tanh,
    torch.trunc,
    torch.sqrt,
    torch.square,
    torch.sigmoid,
    torch.rsqrt,
    torch.relu,
]
BINARY = {
    0: torch.add,
    1: torch.atan2,
    6: torch.div,
    7: torch.eq,
    8: torch.ge,
    9: torch.gt,
    10: lambda a, b: 1 / (a * a) - b,
    11: torch.le,
    14: torch.lt,
    15: torch.maximum,
    16: torch.minimum,
    17: torch.mul,
    18: torch.ne,
    19: torch.pow,
    20: torch.fmod,
    24: torch.sub,
    25: lambda a, b: torch.rsqrt(a + b),
}
WHOLE = {
    2: torch.bitwise_and,
    3: torch.bitwise_or,
    4: torch.bitwise_xor,
    5: lambda a, b: ~(a ^ b),
    6: lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    20: torch.fmod,
    21: torch.bitwise_left_shift,
    22: lambda a, b: ((a.long() & 0xFFFFFFFF) >> b).int(),
    23: torch.bitwise_right_shift,
}


class All(torch.nn.Module):
    """Calls all functions of a table, so that one compilation is enough."""

    def __init__(self, table):
        super().__init__()
        support.load()
        self.table = table

    def forward(self, *inputs):
        out = []
        for number, function in self.table.items():
            asks = function(*[x[:1] for x in inputs]).dtype is torch.bool
            example = inputs[0].bool() if asks else inputs[0]
            call = ([*inputs], "ByNumber", "test.programs", 1, [example])
            out += poptorch.custom_op(*call, {"number": number, "asks": int(asks)})
        return tuple(out)


def check(table, *inputs):
    found = poptorch.inferenceModel(All(table))(*inputs)
    for (number, function), y in zip(table.items(), found, strict=True):
        torch.testing.assert_close(
            y, function(*inputs), equal_nan=True, msg=lambda m, n=number: f"function {n}: {m}"
        )


def test_functions_of_one_operand():
    x = torch.tensor([-2.5, -1.5, -0.75, -0.25, 0.0, 0.25, 0.5, 0.75, 1.5, 2.5, torch.nan])
    check({i: f for i, f in enumerate(UNARY) if f is not None}, x)


def test_questions_about_numbers():
    x = torch.tensor([-torch.inf, -1.0, 0.0, 3e38, torch.inf, torch.nan])
    check({i: UNARY[i] for i in (13, 14, 15)}, x)


def test_functions_of_two_operands():
    a = torch.tensor([0.5, 1.0, 2.0, 3.5, 4.0])
    check(BINARY, a, torch.tensor([1.5, 1.0, 0.5, 2.0, 3.0]))


def test_functions_of_integers():
    a = torch.tensor([5, -7, 12, -1, 100], dtype=torch.int32)
    check(WHOLE, a, torch.tensor([3, 2, 1, 4, 31], dtype=torch.int32))
