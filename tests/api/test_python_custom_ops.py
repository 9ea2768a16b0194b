# SPDX-License-Identifier: Apache-2.0
"""Ops that users write in Python: ``torch.library`` and ``torch.autograd.Function`` in models."""

import poptorch
import pytest
import torch
from torch import Tensor

# Ops by torch.library -----------------------------------------------------------------------------


@torch.library.custom_op("tested::cube", mutates_args=())
def cube(x: Tensor, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(x.detach().numpy() ** 3) * scale


@cube.register_fake
def _(x, scale=1.0):
    return torch.empty_like(x)


def _cube_context(ctx, inputs, output):
    x, ctx.scale = inputs
    ctx.save_for_backward(x)


def _cube_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * 3 * x * x * ctx.scale, None


cube.register_autograd(_cube_backward, setup_context=_cube_context)


@torch.library.custom_op("tested::waves", mutates_args=())
def waves(x: Tensor, shift: Tensor | None, factors: list[int], name: str) -> tuple[Tensor, Tensor]:
    assert name == "wave"
    return x.sin() + (0 if shift is None else shift), (x > 0).to(torch.int32) * factors[1]


@waves.register_fake
def _(x, shift, factors, name):
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)


def _waves_context(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.shifted = inputs[1] is not None
    ctx.mark_non_differentiable(output[1])


def _waves_backward(ctx, grad, _):
    return grad * ctx.saved_tensors[0].cos(), grad if ctx.shifted else None, None, None


waves.register_autograd(_waves_backward, setup_context=_waves_context)


@torch.library.custom_op("tested::halves", mutates_args=())
def halves(parts: list[Tensor]) -> list[Tensor]:
    return [part / 2 for part in parts]


@halves.register_fake
def _(parts):
    return [torch.empty_like(part) for part in parts]


@torch.library.custom_op("tested::raise_by", mutates_args={"x"})
def raise_by(x: Tensor, amount: float) -> None:
    x += amount


@torch.library.custom_op("tested::swap", mutates_args={"x", "rest"})
def swap(x: Tensor, rest: list[Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    before = x.clone()
    x.copy_(y)
    for other in rest:
        other.zero_()
    return before, y * 2


@swap.register_fake
def _(x, rest, y):
    return torch.empty_like(x), torch.empty_like(y)


_lib = torch.library.Library("tested_lib", "DEF")
_lib.define("soft(Tensor x, *, float slope=0.5) -> Tensor")
_lib.define("scale_(Tensor(a!) x, float by) -> Tensor(a!)")
_lib.define("no_shape(Tensor x) -> Tensor")
_lib.impl("soft", lambda x, slope=0.5: torch.where(x > 0, x, x * slope), "CPU")
_lib.impl("scale_", lambda x, by: x.mul_(by), "CPU")
_lib.impl("no_shape", lambda x: x + 1, "CPU")
torch.library.register_fake("tested_lib::soft", lambda x, slope=0.5: torch.empty_like(x), lib=_lib)
torch.library.register_fake("tested_lib::scale_", lambda x, by: x, lib=_lib)


def _soft_context(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.slope = keyword_only_inputs["slope"]


torch.library.register_autograd(
    "tested_lib::soft",
    lambda ctx, grad: torch.where(ctx.saved_tensors[0] > 0, grad, grad * ctx.slope),
    setup_context=_soft_context,
    lib=_lib,
)


# Functions with gradients of their own ------------------------------------------------------------


class Clipped(torch.autograd.Function):
    """Several results, one of them without gradient; a gradient that is not the true one."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.save_for_backward(x)
        inside = x.abs() < limit
        ctx.mark_non_differentiable(inside)
        return x.clamp(-limit, limit), inside

    @staticmethod
    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        return grad * (1 + x.square()), None


class Exp(torch.autograd.Function):
    """The newer form, with a context of its own."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0] * 0.5


class Doubled(torch.autograd.Function):
    """Changes its argument."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


# Models -------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self, body, train):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(3))
        self.body, self.train_it = body, train

    def forward(self, x):
        found = self.body(self, self.linear(x))
        if not self.train_it:
            return found
        first = found[0] if isinstance(found, (tuple, list)) else found
        return found, poptorch.identity_loss(first.float().square().mean(), "none")


def changed(model, y):
    z = y.detach().clone()
    raise_by(z, 2.0)
    raise_by(z[1], 1.0)  # through a view
    return y * z


def counted(model, y):
    raise_by(model.count, 1.0)
    return y * model.count


def swapped(model, y):
    a, b, c = y.detach().clone(), y.new_ones(2), y.new_ones(4, 3)
    before, twice = swap(a, [b, c[0]], y.detach() * 3)
    return y + a + before + twice + b.sum() + c


def unlike(model, y):
    """Arguments of several types are given as they are."""
    a, b = y.detach().clone(), torch.ones(2)
    before, _ = swap(a, [b], y.detach())
    return y + b.sum().to(y.dtype) + before


def scaled(model, y):
    z = y.detach().clone()
    same = torch.ops.tested_lib.scale_(z, 3.0)
    same += 1
    return y * z


BODIES = {
    "one result": lambda m, y: cube(y, 2.0),
    "by its name": lambda m, y: torch.ops.tested.cube(y),
    "two results": lambda m, y: waves(y, None, [1, 7], "wave"),
    "an optional tensor": lambda m, y: waves(y, y * 2, [1, 7], "wave"),
    "lists": lambda m, y: [y, *halves([y.detach(), y[:2].detach()])],
    "define and impl": lambda m, y: torch.ops.tested_lib.soft(y, slope=0.1),
    "a changed argument": changed,
    "a changed buffer": counted,
    "changed arguments and results": swapped,
    "arguments of unlike types": unlike,
    "a result that is its argument": scaled,
    "function": lambda m, y: Clipped.apply(y, 0.7),
    "function with setup_context": lambda m, y: Exp.apply(y),
    "function that changes its argument": lambda m, y: Doubled.apply(y * 1.5),
    "function around an op": lambda m, y: Exp.apply(cube(y)),
}


def tolerance(dtype):
    return {"rtol": 1e-2, "atol": 1e-2} if dtype is torch.float16 else {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", BODIES)
def test_inference(opts, name, dtype):
    model, eager = (Model(BODIES[name], False).to(dtype) for _ in range(2))
    run = poptorch.inferenceModel(model, opts)
    for seed in range(2):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)).to(dtype)
        with torch.no_grad():
            expected = eager(x)
        torch.testing.assert_close(run(x), expected, **tolerance(dtype))
    run.copyWeightsToHost()
    torch.testing.assert_close(model.count, eager.count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", BODIES)
def test_training(opts, name, dtype):
    model, eager = (Model(BODIES[name], True).to(dtype) for _ in range(2))
    run = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    sgd = torch.optim.SGD(eager.parameters(), lr=0.1)
    for seed in range(2):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)).to(dtype)
        loss = eager(x)[1]
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        torch.testing.assert_close(run(x)[1], loss.detach(), **tolerance(dtype))
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach(), **tolerance(dtype))


def test_the_ops_of_a_function_are_native(opts):
    run = poptorch.inferenceModel(Model(BODIES["function"], False), opts)
    run(torch.randn(4, 3))
    assert not run.getProgramSummary()["host_calls"]


@pytest.mark.parametrize("op", ["nameless", "no_shape"])
def test_an_op_without_shapes_is_refused(opts, op):
    @torch.library.custom_op("tested::nameless", mutates_args=())
    def nameless(x: Tensor) -> Tensor:
        return x + 1

    space = torch.ops.tested if op == "nameless" else torch.ops.tested_lib
    model = Model(lambda m, y: getattr(space, op)(y), False)
    with pytest.raises(poptorch.Error, match=f"::{op} says nothing about the shapes") as e:
        poptorch.inferenceModel(model, opts)(torch.randn(4, 3))
    assert "test_python_custom_ops.py" in e.value.location


def test_an_op_that_fails_names_itself_and_the_line(opts):
    @torch.library.custom_op("tested::fails", mutates_args={"x"})
    def fails(x: Tensor) -> None:
        raise ValueError("not today")

    def body(model, y):
        y = y.clone()
        fails(y)
        return y

    run = poptorch.inferenceModel(Model(body, False), opts)
    with pytest.raises(
        poptorch.Error, match="tested::fails.default failed on the host: Value"
    ) as e:
        run(torch.randn(4, 3))
    assert "test_python_custom_ops.py" in e.value.location


def test_an_op_whose_shapes_fail_is_not_called_for_the_message(opts):
    called = []

    @torch.library.custom_op("tested::picky", mutates_args=())
    def picky(x: Tensor) -> Tensor:
        called.append(x.shape)
        return x.clone()

    @picky.register_fake
    def _(x):
        raise ValueError("not these shapes")

    run = poptorch.inferenceModel(Model(lambda m, y: torch.ops.tested.picky(y), False), opts)
    with pytest.raises(ValueError, match="not these shapes"):
        run(torch.randn(4, 3))
    assert not called
