# SPDX-License-Identifier: Apache-2.0
"""Unsigned integers of Poplar: what depends on the sign is that of the unsigned number."""

import popart_support as support
import pytest
import torch

A = torch.tensor([[0, 1, -1, -2, 7], [123, -5, 2**14, -(2**14), 100], [-7, -3, -9, -1, -2]])
B = torch.tensor([[3, -1, 1, -1, -7], [5, -5, -(2**14) - 1, 3, 7], [-7, -4, 2, 10, -1]])
BITS = {torch.int32: 32, torch.int16: 16, torch.uint8: 8}


def unsigned(x):
    """The values that an op sees."""
    return x.to(torch.int64) & (2 ** BITS[x.dtype] - 1)


def back(x, dtype):
    bits = BITS[dtype]
    signed = torch.where(x >= 2 ** (bits - 1), x - 2**bits, x) if dtype != torch.uint8 else x
    return signed.to(dtype)


SAME = {
    "max": torch.maximum,
    "min": torch.minimum,
    "divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "remainder": torch.remainder,
    "shift": lambda a, b: a >> 3,
    "abs": lambda a, b: a,
    "reduce min": lambda a, b: a.amin(1),
    "reduce max": lambda a, b: a.amax(1),
    "arg": lambda a, b: a.amax(1),
}


@pytest.mark.parametrize("dtype", list(BITS), ids=str)
@pytest.mark.parametrize("what", list(SAME))
def test_functions(what, dtype):
    a, b = A.to(dtype), B.to(dtype)
    wanted = back(SAME[what](unsigned(a), unsigned(b)), dtype)
    example = torch.zeros(wanted.shape, dtype=dtype)
    found = support.infer("com.acme", "Unsigned", a, b, outputs=[example], what=what)
    assert found.equal(wanted)


@pytest.mark.parametrize("dtype", list(BITS), ids=str)
def test_comparisons_and_casts(dtype):
    a, b = A.to(dtype), B.to(dtype)
    mask = torch.zeros(a.shape, dtype=torch.bool)
    found = support.infer("com.acme", "Unsigned", a, b, outputs=[mask], what="less")
    assert found.equal(unsigned(a) < unsigned(b))
    real = support.infer("com.acme", "Unsigned", a, b, outputs=[a.float()], what="float")
    assert real.equal(unsigned(a).float())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16], ids=str)
def test_numbers_that_no_signed_integer_holds(dtype):
    a, b = A.to(dtype), B.to(dtype)
    limit = 3000000000 if dtype == torch.int32 else 40000
    mask = torch.zeros(a.shape, dtype=torch.bool)
    what = "not less than a number"
    found = support.infer("com.acme", "Unsigned", a, b, outputs=[mask], what=what)
    assert found.equal(unsigned(a) >= limit)
    if dtype == torch.int32:
        found = support.infer("com.acme", "Unsigned", a, b, what="clamp")
        wanted = torch.minimum(torch.maximum(unsigned(a), unsigned(b)), torch.tensor(0xFFFFFFF0))
        assert found.equal(back(wanted, dtype))
        x = torch.tensor([[0, 5, -(2**31), -(2**30)]], dtype=dtype)
        assert support.infer("com.acme", "Unsigned", x, x, what="there and back").equal(x)
