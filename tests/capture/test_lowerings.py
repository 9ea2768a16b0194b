# SPDX-License-Identifier: Apache-2.0
"""Lowerings that no module of the zoo reaches, called as ATen ops, against eager."""

import pytest
import torch
from harness import WithLoss, captured, check, evaluate
from poptorch.capture.lower.table import TABLE
from poptorch.capture.text import emit  # noqa: F401 (fills the table)
from torch import nn

aten = torch.ops.aten


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.linspace(-1.4, 1.3, 12).reshape(3, 4))

    def forward(self, x):
        return self.function(x + self.w)


INDEX = torch.tensor([2, 0, 1])
OPS = {
    "aten::_reshape_alias": lambda v: aten._reshape_alias(v * 1, [4, 3], [3, 1]),
    "aten::_safe_softmax": lambda v: (
        aten._safe_softmax(v.detach().masked_fill(v[:, :1] > 0, -torch.inf), 1) + v
    ),
    "aten::_unsafe_index": lambda v: aten._unsafe_index(v, [INDEX]),
    "aten::_unsafe_index_put": lambda v: aten._unsafe_index_put(v, [INDEX], v * 2, True),
    "aten::alias": lambda v: aten.alias(v) * 2,
    "aten::amin": lambda v: v.amin(1, keepdim=True) * v,
    "aten::arange.start": lambda v: v + aten.arange.start(3, 7, dtype=torch.float32),
    "aten::as_strided": lambda v: (v * 2).as_strided((4, 3), (3, 1)).detach() + v.t(),
    "aten::as_strided_copy": lambda v: (
        aten.as_strided_copy((v * 2).detach(), (4, 3), (3, 1)) + v.t()
    ),
    "aten::count_nonzero": lambda v: (
        v * aten.count_nonzero.dim_IntList((v > 0).detach(), [1]).sum()
    ),
    "aten::empty_strided": lambda v: v * 1 + aten.empty_strided([3, 4], [4, 1]).zero_(),
    "aten::expand_copy": lambda v: aten.expand_copy(v[:, :1], [3, 5]),
    "aten::full_like": lambda v: v * aten.full_like(v, 3),
    "aten::index_copy": lambda v: v.index_copy(0, INDEX, v * 3),
    "aten::permute_copy": lambda v: aten.permute_copy(v, [1, 0]),
    "aten::index_fill.int_Scalar": lambda v: v.index_fill(1, INDEX, 3.0),
    "aten::round.decimals": lambda v: (
        v + torch.round(v, decimals=1) + torch.round(v * 90, decimals=-1)
    ),
    "aten::select_copy": lambda v: aten.select_copy(v, 1, -1),
    "aten::slice_copy": lambda v: aten.slice_copy(v, 1, 1, 3),
    "aten::split_copy": lambda v: aten.split_copy(v, 2, 1)[1],
    "aten::split_with_sizes_copy": lambda v: aten.split_with_sizes_copy(v, [1, 3], 1)[1],
    "aten::squeeze_copy": lambda v: aten.squeeze_copy(v.unsqueeze(1), 1),
    "aten::t_copy": lambda v: aten.t_copy(v),
    "aten::transpose_copy": lambda v: aten.transpose_copy(v, 0, 1),
    "aten::unbind_copy": lambda v: aten.unbind_copy(v, 1)[2],
    "aten::unsqueeze_copy": lambda v: aten.unsqueeze_copy(v, 1),
    "aten::view_copy": lambda v: aten.view_copy(v, [4, 3]),
    "aten::zero": lambda v: v + aten.zero(v),
}


@pytest.mark.parametrize("name", OPS)
def test_lowering(name, monkeypatch):
    assert name in TABLE
    used = []
    original = TABLE[name]
    monkeypatch.setitem(TABLE, name, lambda *args: used.append(1) or original(*args))
    torch.manual_seed(0)
    check(WithLoss(Call(OPS[name])), (torch.randn(3, 4),))
    assert used, f"{name} was not reached"


# ATen ops that capture knows by their row alone.
ROWS = {
    "clamp_max": lambda v: aten.clamp_max(v, 0.3),
    "deg2rad": lambda v: torch.deg2rad(v),
    "erfc": lambda v: torch.erfc(v),
    "heaviside": lambda v: v * torch.heaviside(v.detach(), torch.tensor(0.5)),
    "isneginf": lambda v: v + torch.isneginf(v).float(),
    "isposinf": lambda v: v + torch.isposinf(v).float(),
    "logical_xor": lambda v: v * torch.logical_xor(v > 0, v > 1),
    "rad2deg": lambda v: torch.rad2deg(v),
}


@pytest.mark.parametrize("name", ROWS)
def test_op_that_is_a_row(name):
    assert f"aten::{name}" not in TABLE
    model, x = WithLoss(Call(ROWS[name])), torch.randn(3, 4)
    check(model, (x,))
    c = captured(model, (x,))
    assert not c.host_ops and f" = {name}(" in c.text


DRAWS = {
    "aten::bernoulli.Tensor": lambda x: torch.empty(4000).bernoulli_(x * 0 + 0.3),
    "aten::normal.float_Tensor": lambda x: torch.normal(0.3, x * 0 + 1),
    "aten::normal.Tensor_Tensor": lambda x: torch.normal(x * 0 + 0.3, x * 0 + 1),
    "aten::randint": lambda x: torch.randint(2, (4000,)).float() - 0.2,
    "aten::randint_like": lambda x: torch.randint_like(x, 2) - 0.2,
    "aten::randint_like.low_dtype": lambda x: torch.randint_like(x, -1, 2) + 0.3,
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_lowering(name, monkeypatch):
    used = []
    original = TABLE[name]
    monkeypatch.setitem(TABLE, name, lambda *args: used.append(1) or original(*args))

    class Draw(nn.Module):
        def forward(self, x):
            return DRAWS[name](x)

    x = torch.randn(4000)
    c = captured(Draw(), (x,), training=False)
    assert used and not c.host_ops
    assert abs(evaluate(c, (x,))[0].mean().item() - 0.3) < 0.08
