# SPDX-License-Identifier: Apache-2.0
"""Types, shapes and aliasing at the border of a program."""

import copy

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from against_eager import Call, check_inference, check_training, quiet
from harness import WithLoss
from tolerances import PASS
from torch import nn


def check(function, *args):
    torch.manual_seed(0)
    return check_inference(Call(function), args)


def ramp(*shape, dtype=torch.float32):
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 23 - 7).to(dtype)


INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
FLOATS = [torch.float32, torch.float16, torch.float64]


# Types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic(dtype):
    def model(a, b):
        return a + b, a * 3, a - b, a // 3, a % 5, a & b, a | 6, a ^ b, ~a, a.clamp(1, 9), -a

    check(model, ramp(4, 5, dtype=dtype), ramp(5, dtype=dtype) + 2)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_results_that_change_type(dtype):
    def model(a, b):
        return (
            a / 2,
            a > b,
            a == 3,
            a + 0.5,
            a.float().sqrt(),
            a.bool(),
            a.long(),
            torch.where(a > b, a, b),
        )

    check(model, ramp(4, 5, dtype=dtype).abs(), ramp(5, dtype=dtype) + 2)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool])
@pytest.mark.parametrize("dim", [0, 1])
def test_integer_reductions(dtype, dim):
    def model(a):
        return (
            a.sum(),
            a.sum(dim),
            a.prod(dim),
            a.any(dim),
            a.all(),
            *((a.amax(dim), a.amin(dim)) if dtype != torch.bool else (a.amax(dim),)),
            *((a.max(), a.argmax(dim), a.max(dim)) if dtype != torch.bool else ()),
        )

    check(model, ramp(6, 33, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_integer_sums_with_a_type(dtype):
    def model(a):
        return a.sum(1, dtype=dtype), a.sum(0, dtype=torch.float32), a.prod(1, dtype=torch.int32)

    check(model, ramp(3, 70, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int8, torch.uint8, torch.bool])
def test_small_types_move(dtype):
    index = torch.tensor([2, 0, 1])

    def model(a):
        return (
            a.t().contiguous(),
            torch.cat([a, a], 1),
            a[:, 1:3],
            a[index],
            a.gather(0, index[:, None].expand(3, 5)),
            F.pad(a, (1, 1)),
            a.flip(0),
            a.repeat(2, 1),
            a.index_select(1, index),
        )

    check(model, ramp(3, 5, dtype=dtype))


def test_bools():
    def model(a, b):
        return a & b, a | b, a ^ b, ~a, a.logical_not(), a.float(), a.any(0), a.all(1), a.sum()

    check(model, ramp(4, 5) > 0, ramp(4, 5) % 3 == 0)


def test_int64_does_not_overflow_inside():
    big = torch.tensor([2**40, -(2**41), 7])

    def model(a):
        return a // 2**38, (a > 2**35), (a % 1000), a.double() / 2**40, (a * 3).sum() // 2**39

    check(model, big)


def test_wide_results_are_narrowed():
    executor = poptorch.inferenceModel(Call(lambda a, b: (a + 1, b * 2)), options=quiet())
    i, f = executor(torch.tensor([1, 2]), torch.tensor([0.5], dtype=torch.float64))
    assert (i.dtype, f.dtype) == (torch.int32, torch.float32)
    assert (i.tolist(), f.tolist()) == ([2, 3], [1.0])


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_types(dtype):
    def model(a, b):
        return (
            a + b,
            a @ b.t(),
            a.exp().sum(1),
            a.mean(0),
            a.amax(1),
            a.argmax(1),
            a.max(1),
            a.prod(0),
            a.softmax(1),
            a.log_softmax(0),
            a.float(),
            a.long(),
            a > b,
        )

    check(model, ramp(4, 6, dtype=dtype) / 8, ramp(4, 6, dtype=dtype) / 16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "name",
    "softmax log_softmax layer_norm group_norm batch_norm cross_entropy mse conv pool avg "
    "embedding linear gelu reductions attention var norm scatter".split(),
)
def test_half_models_train(name, dtype):
    """Inside a float32 model, so that gradients reach float32 weights through the half part."""
    indices = torch.tensor([[0, 2, 1, 1], [3, 3, 0, 2]])

    def half_part(v):  # v: 2 x 4 x 6 x 6
        if name == "softmax":
            return F.softmax(v, 1) + F.softmax(v, -1)
        if name == "log_softmax":
            return F.log_softmax(v, 1)
        if name == "layer_norm":
            return F.layer_norm(v, (6, 6), v.new_full((6, 6), 1.5), v.new_full((6, 6), 0.5))
        if name == "group_norm":
            return F.group_norm(v, 2, v.new_full((4,), 1.5), v.new_full((4,), 0.5))
        if name == "batch_norm":
            return F.batch_norm(
                v, None, None, v.new_full((4,), 1.5), v.new_full((4,), 0.5), training=True
            )
        if name == "cross_entropy":
            return F.cross_entropy(v.flatten(2).mean(2), torch.tensor([1, 3]), reduction="none")
        if name == "mse":
            return F.mse_loss(v, v.detach() * 0.5, reduction="none").mean(1)
        if name == "conv":
            return F.conv2d(v, v[:, :, :3, :3], padding=1)
        if name == "pool":
            return F.max_pool2d(v, 2)
        if name == "avg":
            return F.avg_pool2d(v, 2) + F.adaptive_avg_pool2d(v, 1)
        if name == "embedding":
            return F.embedding(indices, v[0, :, :, 0]) * 2
        if name == "linear":
            return F.linear(v, v[0, 0], v[0, 0, 0])
        if name == "gelu":
            return F.gelu(v) + v.sigmoid() * v.tanh()
        if name == "reductions":
            return (
                v.sum(1, keepdim=True) / 8 + v.mean((2, 3), keepdim=True) + v.amax(2, keepdim=True)
            )
        if name == "attention":
            return F.scaled_dot_product_attention(v, v, v)
        if name == "var":
            return v.var(1, keepdim=True) + v.std((2, 3), keepdim=True)
        if name == "norm":
            return v.norm(dim=1) + F.normalize(v, dim=1).sum(1)
        return v.scatter_add(1, torch.zeros(2, 1, 6, 6, dtype=torch.int64), v[:, 1:2])

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.linspace(-1, 1, 2 * 4 * 36).reshape(2, 4, 6, 6))

        def forward(self, x):
            return half_part((x * self.w).to(dtype))

    torch.manual_seed(0)
    check_half(Half(), (torch.randn(2, 4, 6, 6),), dtype)


def check_half(model, args, dtype):
    """One step against eager, which rounds at other places: a few units of the type are allowed."""
    exact = copy.deepcopy(model)
    executor_model = WithLoss(model)
    before = {n: p.detach().clone() for n, p in executor_model.named_parameters()}
    optimizer = poptorch.optim.SGD(executor_model.parameters(), lr=1.0)
    executor = poptorch.trainingModel(executor_model, options=quiet(), optimizer=optimizer)
    actual = executor(*args)
    executor.copyWeightsToHost()
    eager = WithLoss(exact)
    expected = eager(*args)
    expected[1].backward()
    rtol, atol = PASS[dtype]
    assert actual[0].dtype == dtype
    torch.testing.assert_close(actual[0], expected[0].detach(), rtol=2 * rtol, atol=2 * atol)
    for n, p in eager.named_parameters():
        moved = before[n] - dict(executor_model.named_parameters())[n].detach()
        scale = max(1.0, float(p.grad.abs().max()))
        torch.testing.assert_close(moved, p.grad, rtol=4 * rtol, atol=4 * atol * scale)


def test_a_half_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).half()
    check_inference(model, (torch.randn(3, 8).half(),))


def test_float64_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    check_inference(model, (torch.randn(3, 4, dtype=torch.float64),))


# Inputs -------------------------------------------------------------------------------------------


def test_an_input_written_in_place():
    def model(a, b):
        a.add_(b)
        b[:, 1] = 5.0
        return a * 2

    check(model, ramp(3, 4), ramp(3, 4) * 0.5)


def test_an_integer_input_written_in_place():
    def model(a):
        a += 1
        return a * 2

    check(model, ramp(3, 4, dtype=torch.int64))


def test_an_input_written_through_a_view():
    def model(a):
        a.view(-1)[2:5].mul_(3)
        return a.sum()

    check(model, ramp(3, 4))


def test_an_input_written_in_training():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x, total):
            y = x * self.w
            total.add_(y.detach())
            return y

    check_training(Model(), (ramp(3, 4), torch.zeros(3, 4)))


def test_a_written_input_of_every_micro_batch():
    def model(a):
        a.mul_(2)
        return a + 1

    executor = poptorch.inferenceModel(Call(model), options=quiet().deviceIterations(3))
    x = ramp(3, 4)
    expected = x * 2
    assert torch.equal(executor(x), expected + 1)
    assert torch.equal(x, expected)


def test_non_contiguous_inputs():
    base = ramp(6, 8)
    for view in (base.t(), base[:, ::2], base[::3], base[0].expand(5, 8), base.flip(0).t()):
        check(lambda a: (a * 2, a.sum(0), a @ a.t()), view)


def test_a_non_contiguous_input_written_in_place():
    class Model(nn.Module):
        def forward(self, a):
            a.add_(1)
            return a * 2

    executor = poptorch.inferenceModel(Model(), options=quiet())
    for _ in range(2):
        base = ramp(4, 6)
        expected = base.clone()
        expected[:, ::2] += 1
        out = executor(base[:, ::2])
        assert torch.equal(out, expected[:, ::2] * 2)
        assert torch.equal(base, expected)


def test_the_same_tensor_as_two_inputs():
    x = ramp(3, 4)
    executor = poptorch.inferenceModel(Call(lambda a, b: a * 2 + b), options=quiet())
    for _ in range(2):
        assert torch.equal(executor(x, x), x * 3)


def test_zero_dimensional_inputs_and_outputs():
    check(lambda a, b: (a * b, a.sum(), a.exp(), b), torch.tensor(3.0), torch.tensor(2))
    check(lambda a: (a.reshape(1), a.expand(3), a.view(()), a.max(), a.argmax()), torch.tensor(3.0))


def test_a_zero_dimensional_parameter():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.s = nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return x * self.s, self.s

    check_training(Scale(), (ramp(3, 4),))


# Outputs ------------------------------------------------------------------------------------------


def test_empty_outputs():
    check(
        lambda a: (
            a[3:],
            a[:, :0] * 2,
            a[:0].sum(0),
            torch.cat([a[:0], a], 0),
            a[:, :0] @ a[:0],
            a[:0] @ a.t(),
            torch.zeros(0, 5),
        ),
        ramp(3, 4),
    )


def test_an_empty_slice_in_training():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            y = x * self.w
            return y[:0], y[:, 4:].sum() + y.mean(1)

    check_training(Model(), (ramp(3, 4),))


def test_views_are_returned():
    def model(a):
        b = a * 2
        return a.t(), a[1], a[:, ::2], b.t(), b.view(-1), b[:, 1:2].expand(3, 4), a.unsqueeze(0), b

    check(model, ramp(3, 4))


def test_an_input_is_returned():
    check(lambda a, b: (b, a, a), ramp(3, 4), ramp(2, dtype=torch.int64))


def test_the_same_tensor_returned_twice():
    def model(a):
        b = a + 1
        return b, b, b.view(4, 3), {"b": b, "more": [b, a]}

    check(model, ramp(3, 4))


def test_a_parameter_and_a_buffer_are_returned():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(ramp(4) / 3)
            self.register_buffer("b", ramp(4))

        def forward(self, x):
            return x * self.w, self.w, self.b, self.w.t()[1:]

    check_training(Model(), (ramp(3, 4),))


def test_a_constant_is_returned():
    check(lambda a: (torch.arange(5), torch.ones(2, 3), torch.tensor(4.0), a), ramp(3))


def test_outputs_do_not_share_memory_with_the_program():
    executor = poptorch.inferenceModel(Call(lambda a: (a * 2, a)), options=quiet())
    first = executor(ramp(3, 4))
    kept = [t.clone() for t in first]
    executor(ramp(3, 4) + 100)
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))


# Parameters ---------------------------------------------------------------------------------------


class Shared(nn.Module):
    """One weight: embedding, transposed head, and an alias by another name."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 9)
        self.head.weight = self.embedding.weight
        self.alias = self.head.bias

    def forward(self, ids):
        return self.head(self.embedding(ids).tanh()) + self.alias


def test_shared_parameters():
    torch.manual_seed(0)
    model = Shared()
    check_training(model, (torch.tensor([[1, 2], [8, 1]]),))
    assert model.head.weight is model.embedding.weight


def test_a_parameter_that_is_a_view_of_memory():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(ramp(4, 3).t())
            self.v = nn.Parameter(ramp(4, 4)[:, ::2])

        def forward(self, x):
            return x @ self.w @ self.v / 10

    check_training(Model(), (ramp(2, 3) / 10,))


def test_frozen_half_of_a_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    # Squared, or the middle row lies on the edge of the ReLU, where rounding decides.
    check_training(model, ((ramp(5, 4) / 9).square(),))


def test_buffers_of_all_types():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))
            self.register_buffer("count", torch.tensor(0))
            self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))
            for dtype in (torch.float16, torch.float64, torch.int8, torch.int16, torch.uint8):
                self.register_buffer(str(dtype)[6:], torch.zeros(3, dtype=dtype))

        def forward(self, x):
            self.count += 1
            self.seen |= x[0] > 0
            for buffer in (self.float16, self.float64, self.int8, self.int16, self.uint8):
                buffer += 2
            return x * self.w * self.count + self.float16 + self.int8 + self.uint8

    check_training(Model(), (ramp(4, 3),))
