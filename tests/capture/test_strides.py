# SPDX-License-Identifier: Apache-2.0
"""Inputs, weights and buffers in any memory order: views, copies and writes follow eager's."""

import copy

import poptorch
import pytest
import torch
from function_model import Call
from torch import nn
from torch.nn import functional as F

SHAPE = (2, 3, 4, 5)


def channels_last(rows):
    return torch.randn(rows, 3, 4, 5).contiguous(memory_format=torch.channels_last)


LAYOUTS = {
    "contiguous": lambda n: torch.randn(n, 3, 4, 5),
    "channels last": channels_last,
    "transposed": lambda n: torch.randn(n, 3, 5, 4).transpose(2, 3),
    "permuted": lambda n: torch.randn(5, 4, 3, n).permute(3, 2, 1, 0),
    "expanded": lambda n: torch.randn(n, 1, 4, 5).expand(n, 3, 4, 5),
    "sliced": lambda n: torch.randn(n, 3, 8, 10)[:, :, ::2, 1:6],
}


def same_layout(tensor):
    """A copy with the strides of the original."""
    storage = tensor.untyped_storage().clone()
    result = torch.empty(0).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    assert result.stride() == tensor.stride()
    return result


def options():
    return poptorch.Options().showCompilationProgressBar(False)


def flatten_and_zero(x):
    y = x * 1
    y.flatten().zero_()
    return y


def part_of_a_reshape(x):
    y = x * 1
    rows = y.reshape(2, -1)
    rows[:, 1:3] += 1
    return y, rows


def contiguous_or_itself(x):
    y = x + 1
    v = y.contiguous()
    v.mul_(2)
    return y, v


def transposed_back(x):
    y = x.clone()
    v = y.transpose(1, 2).flatten(1)
    v[0] = 3
    return y, v


def channels_as_columns(x):
    y = torch.relu(x)
    v = y.permute(0, 2, 3, 1).reshape(-1, 3)
    v.add_(1.0)
    return y, v


def the_input_itself(x):
    if x.stride(1):  # an expanded one has no place to write to
        x.flatten()[3:7] = 9.0
        x.contiguous().add_(1.0)
    return x * 1


def like_the_input(x):
    y = torch.zeros_like(x)
    y.ravel()[1:] = 2.0
    return y + x


def to_channels_last(x):
    y = x.clone()
    y.to(memory_format=torch.channels_last).sub_(1)
    return y


def order_of_memory(x):
    y = torch.zeros_like(x)
    if y.stride(1):
        y.as_strided((2, 3), (1, 2)).copy_(torch.ones(2, 3))
    return y + x


FUNCTIONS = [
    flatten_and_zero,
    part_of_a_reshape,
    contiguous_or_itself,
    transposed_back,
    channels_as_columns,
    the_input_itself,
    like_the_input,
    to_channels_last,
    order_of_memory,
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_writes_reach_what_they_reach_in_eager(function, layout):
    torch.manual_seed(0)
    x = LAYOUTS[layout](2)
    ours = same_layout(x)
    expected = function(x)
    got = poptorch.inferenceModel(Call(function), options())(ours)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(ours, x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_micro_batches_have_the_strides_of_their_tensor(layout):
    torch.manual_seed(0)
    x = LAYOUTS[layout](6)
    executor = poptorch.inferenceModel(Call(part_of_a_reshape), options().deviceIterations(3))
    expected = [part_of_a_reshape(part) for part in x.split(2)]
    for got, parts in zip(executor(x), zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(got, torch.cat(parts))


class Strided(nn.Module):
    """Writes in training; its weights and buffers have strides of their own."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        self.scale = nn.Parameter(torch.randn(3, 1, 1))
        self.turned = nn.Parameter(torch.randn(5, 4).t())
        kernel = torch.randn(3, 3, 3, 3) * 0.2
        self.kernel = nn.Parameter(kernel.contiguous(memory_format=torch.channels_last))
        self.register_buffer("seen", torch.zeros(5, 4).t())

    def forward(self, x):
        out = self.step(self, x)
        return out, poptorch.identity_loss((out**2).mean(), "none")


def cut_rows(m, x):
    y = x * m.scale
    y.flatten(1)[:, 3:9] = 0
    return y


def double_after_convolution(m, x):
    y = F.conv2d(x, m.kernel, padding=1)
    y.reshape(2, -1)[:, ::2].mul_(2)
    return y * m.turned


def mix_columns(m, x):
    y = F.conv2d(x * m.scale, m.kernel, padding=1)
    columns = y.permute(0, 2, 3, 1).reshape(-1, 3)
    columns.select(1, 0).add_(columns.select(1, 1))
    return y * columns.sum()


def write_weights_and_buffers(m, x):
    y = x * m.scale
    y.reshape(-1)[1:].mul_(m.scale[1, 0])
    y.flatten(1)[:, :20].tanh_()
    m.seen.t().reshape(-1).add_(1.0)  # a view
    m.seen.flatten().add_(5.0)  # a copy
    return y + m.seen + m.turned


def diagonals(m, x):
    y = x * m.turned
    z = y[:, 1:].contiguous()
    z.mul_(2)
    y.diagonal(0, 2, 3).mul_(2.0)
    return y.sum() + z.sum() * m.turned.reshape(-1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "step",
    [cut_rows, double_after_convolution, mix_columns, write_weights_and_buffers, diagonals],
)
def test_training_follows_eager(step, layout):
    torch.manual_seed(1)
    x = LAYOUTS[layout](2)
    eager = Strided(step)
    ours = copy.deepcopy(eager)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        expected = eager(x)
        expected[1].backward()
        optimizer.step()
    executor = poptorch.trainingModel(
        ours, options(), poptorch.optim.SGD(ours.parameters(), lr=0.1)
    )
    executor(x)
    got = executor(x)
    torch.testing.assert_close(got, tuple(t.detach() for t in expected), rtol=1e-4, atol=1e-5)
    state = dict(ours.state_dict())
    torch.testing.assert_close(state, dict(eager.state_dict()), rtol=1e-4, atol=1e-5)


def test_a_view_that_eager_refuses_is_one_of_the_contiguous_input():
    x = channels_last(2)
    with pytest.raises(RuntimeError, match="view size"):
        x.view(2, -1)
    executor = poptorch.inferenceModel(Call(lambda x: torch.relu(x * 2).view(2, -1)), options())
    assert torch.equal(executor(x), torch.relu(x * 2).reshape(2, -1))


@pytest.mark.parametrize("first, then", [(0, 1), (1, 0)])
def test_strides_that_change_the_result_are_reported_once(first, then, caplog):
    calls = [torch.randn(SHAPE), channels_last(2)]
    executor = poptorch.inferenceModel(Call(flatten_and_zero), options())
    expected = flatten_and_zero(calls[first])
    for _ in range(2):
        assert torch.equal(executor(calls[first]), expected)
    assert "strides" not in caplog.text
    for _ in range(2):
        executor(calls[then])
    assert caplog.text.count("the strides differ from those of the first call") == 1


@pytest.mark.parametrize("first, then", [(0, 1), (1, 0)])
def test_strides_that_change_nothing_are_not_reported(first, then, caplog):
    calls = [torch.randn(SHAPE), channels_last(2)]
    executor = poptorch.inferenceModel(Call(lambda x: torch.relu_(x * 2).flatten(1)), options())
    for i in (first, then):
        assert torch.equal(executor(calls[i]), torch.relu(calls[i] * 2).flatten(1))
    assert "strides differ" not in caplog.text
