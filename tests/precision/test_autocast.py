# SPDX-License-Identifier: Apache-2.0
"""Automatic casting: where it is on, what a policy casts, and what stays as it was."""

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from poptorch.autocasting import Policy
from torch import nn

HALF, FULL = torch.float16, torch.float32


class Net(nn.Module):
    """Says in its result which type each layer computed in."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3)
        self.act = nn.ReLU()
        self.fc = nn.Linear(32, 4)

    def forward(self, x):
        a = self.conv1(x)
        b = self.act(a)
        c = self.conv2(b)
        return a, b, c, self.fc(c.flatten(1))


X = torch.arange(128.0).reshape(2, 1, 8, 8).sin()


def types(model, opts, x=X):
    out = poptorch.inferenceModel(model, opts)(x)
    return [t.dtype for t in (out if isinstance(out, tuple) else (out,))]


def test_off_by_default(opts):
    assert types(Net(), opts) == [FULL] * 4


def test_model_level_casts_products_and_keeps_weights(opts):
    model = Net().autocast()
    assert types(model, opts) == [HALF] * 4
    assert {p.dtype for p in model.parameters()} == {FULL}


def test_values_are_those_of_half_precision(opts):
    torch.manual_seed(0)
    model = Net().autocast()
    got = poptorch.inferenceModel(model, opts)(X)[0]
    half = [t.half().float() for t in (X, model.conv1.weight, model.conv1.bias)]
    assert torch.equal(got, F.conv2d(*half).half())


def test_layers_are_hierarchical_and_the_last_call_counts(opts):
    model = Net()
    model.autocast(enabled=True)
    model.conv2.autocast(enabled=False)
    # conv2 is left alone and meets the float16 of conv1: the rule of mixed operands holds.
    assert types(model, opts) == [HALF] * 4
    opts = opts.clone()
    opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    assert types(model, opts) == [HALF, HALF, FULL, HALF]
    model.autocast(enabled=True)
    assert types(model, opts) == [HALF] * 4


def test_the_option_turns_everything_off(opts):
    opts.Precision.autocastEnabled(False)
    assert types(Net().autocast(), opts) == [FULL] * 4


def test_blocks_and_decorators_nest(opts):
    class Blocks(nn.Module):
        def forward(self, x):
            with poptorch.autocast():
                a = x @ x
                with poptorch.autocast(enabled=False):
                    b = x @ x
                c = torch.matmul(x, x)
            return a, b, c, x @ x, self.decorated(x), self.plain(x)

        @poptorch.autocast()
        def decorated(self, x):
            return x.mm(x) if x.dim() == 2 else x.matmul(x)

        @poptorch.autocast(enabled=False)
        def plain(self, x):
            return x @ x

    want = [HALF, FULL, HALF, FULL, HALF, FULL]
    assert types(Blocks(), opts, torch.randn(3, 3)) == want
    want = [HALF, FULL, HALF, HALF, HALF, FULL]
    assert types(Blocks().autocast(), opts, torch.randn(3, 3)) == want


def test_a_block_ends_with_an_exception(opts):
    class Caught(nn.Module):
        def forward(self, x):
            try:
                with poptorch.autocast():
                    raise KeyError("x")
            except KeyError:
                return x @ x

    assert types(Caught(), opts, torch.randn(3, 3)) == [FULL]


def test_outside_models_nothing_is_cast():
    x = torch.randn(3, 3)
    with poptorch.autocast():
        assert (x @ x).dtype == FULL
    assert poptorch.autocast(enabled=True)(torch.exp)(x).dtype == FULL
    assert nn.Linear(3, 3).autocast()(x).dtype == FULL


def test_policy_of_functions(opts):
    class Ops(nn.Module):
        def forward(self, x, h):
            with poptorch.autocast():
                return (
                    torch.relu(x),
                    F.relu(x),
                    x.relu(),
                    torch.bmm(h, h),
                    x.exp(),
                    torch.dot(x.flatten(), h.flatten()),
                    torch.dot(x.flatten(), x.flatten()),
                    torch.dot(h.flatten(), h.flatten()),
                    x - h,
                    torch.cat([x, h]),
                )

    policy = Policy([torch.relu], [torch.bmm], [torch.dot], [torch.sub])
    opts.Precision.autocastPolicy(policy)
    x = torch.randn(2, 3, 3)
    got = [t.dtype for t in poptorch.inferenceModel(Ops(), opts)(x, x.half())]
    assert got == [HALF, HALF, HALF, FULL, FULL, FULL, FULL, HALF, HALF, HALF]


FUNCTIONS = {
    F.relu: lambda x: torch.relu(x),
    F.conv2d: lambda x: F.conv2d(x, torch.ones(2, 1, 1, 1)),
    F.linear: lambda x: F.linear(x, torch.ones(2, 8)),
    F.softmax: lambda x: x.softmax(-1),
    F.gelu: F.gelu,
    F.layer_norm: lambda x: F.layer_norm(x, (8,)),
    F.batch_norm: lambda x: F.batch_norm(x, None, None, training=True),
    F.group_norm: lambda x: F.group_norm(x, 1),
    F.cross_entropy: lambda x: F.cross_entropy(x[:, 0, 0], torch.tensor([0, 1])),
    F.mse_loss: lambda x: F.mse_loss(x, -x),
    F.max_pool2d: lambda x: F.max_pool2d(x, 2),
    F.avg_pool2d: lambda x: F.avg_pool2d(x, 2),
    F.interpolate: lambda x: F.interpolate(x, 4),
    F.dropout: F.dropout,
    F.normalize: F.normalize,
    F.embedding: lambda x: F.embedding(torch.tensor([0]), x[0, 0]),
    F.scaled_dot_product_attention: lambda x: F.scaled_dot_product_attention(x, x, x),
    torch.einsum: lambda x: torch.einsum("abcd,abcd->a", x, x),
    torch.add: lambda x: 1 + x,
    torch.sum: lambda x: x.sum(),
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_policy_of_any_function(opts, function):
    class Model(nn.Module):
        def forward(self, x):
            return FUNCTIONS[function](x), torch.square(x)

    opts.Precision.autocastPolicy(Policy(fp16=[function]))
    assert types(Model().autocast(), opts) == [HALF, FULL]
    opts = opts.clone()
    opts.Precision.autocastPolicy(Policy(fp32=[function]))
    assert types(Model().autocast(), opts, X.half()) == [FULL, HALF]


def test_a_class_in_a_policy_stands_for_those_made_from_it(opts):
    class Mine(nn.Conv2d):
        pass

    class Outer(nn.Sequential):
        def forward(self, x):
            return super().forward(x), torch.square(x)

    model = nn.Sequential(Outer(Mine(1, 2, 1), nn.Softmax(1))).autocast()
    opts.Precision.autocastPolicy(Policy(fp16=[nn.Conv2d]))
    assert types(model, opts) == [HALF, FULL]
    # A module within a named one follows it, unless it is named too.
    opts = opts.clone()
    opts.Precision.autocastPolicy(Policy(fp16=[Outer], fp32=[nn.Softmax]))
    assert types(model, opts) == [FULL, HALF]


def test_a_decorator_counts_for_the_layers_within(opts):
    class Inner(nn.Module):
        def __init__(self, enabled):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.run = poptorch.autocast(enabled=enabled)(self.fc.__call__)

        def forward(self, x):
            return self.run(x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.on, self.off, self.fc = Inner(True), Inner(False), nn.Linear(8, 8)

        def forward(self, x):
            return self.on(x), self.off(x), self.fc(x)

    assert types(Outer(), opts) == [HALF, FULL, FULL]
    model = Outer().autocast()
    assert types(model, opts) == [HALF, FULL, HALF]
    model.off.fc.autocast(False)
    model.on.fc.autocast(False)  # what a layer is told by itself counts most
    assert types(model, opts) == [FULL, FULL, HALF]


def test_policy_of_modules(opts):
    opts.Precision.autocastPolicy(Policy(fp16=[nn.Conv2d, nn.ReLU], fp32=[nn.Linear]))
    assert types(Net().autocast(), opts) == [HALF, HALF, HALF, FULL]


def test_running_statistics_are_updated_in_a_cast_norm(opts):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(1)

        def forward(self, x):
            y = self.norm(x)
            return y, poptorch.identity_loss(y.float().mean(), "mean")

    opts.Precision.autocastPolicy(Policy(fp16=[nn.BatchNorm2d]))
    model = Normed().autocast()
    training = poptorch.trainingModel(model, opts)
    assert training(X)[0].dtype == HALF
    want = nn.BatchNorm2d(1)
    want(X)
    torch.testing.assert_close(training.norm.running_mean, want.running_mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(training.norm.running_var, want.running_var, rtol=1e-3, atol=1e-4)


def test_default_policy_promotes_mixed_operands(opts):
    class Join(nn.Module):
        def forward(self, x, h):
            return torch.cat([x, h]), torch.stack([h, x]), x + h

    x = torch.randn(2, 3)
    model = Join().autocast()
    assert [t.dtype for t in poptorch.inferenceModel(model, opts)(x, x.half())] == [
        FULL,
        FULL,
        HALF,
    ]


@pytest.mark.parametrize("bad", ["relu", 3, lambda x: x, int, torch.float16])
def test_a_policy_with_something_unknown_is_an_error(bad):
    with pytest.raises(ValueError, match="neither a function of torch nor a class of modules"):
        Policy(fp16=[torch.relu, bad])


def test_a_policy_converts_the_parameters_of_layers(opts):
    model = Net().autocast()
    model.conv2.autocast(False)
    Policy(fp16=[nn.Conv2d]).apply(model, opts)
    assert [m.weight.dtype for m in (model.conv1, model.conv2, model.fc)] == [HALF, FULL, FULL]
    Policy(fp32=[nn.Conv2d]).applyToLayer(model.conv1, opts)
    assert model.conv1.weight.dtype == FULL


def test_training_updates_float32_weights_and_matches_eager(opts):
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

        def forward(self, x, target):
            y = self.net(x)
            return y, F.mse_loss(y.float(), target)

    torch.manual_seed(1)
    x, target = torch.randn(16, 8), torch.randn(16, 4)
    cast, plain = Loss().autocast(), Loss()
    step = poptorch.trainingModel(cast, opts, poptorch.optim.SGD(cast.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(20):
        y, loss = step(x, target)
        optimizer.zero_grad()
        want = plain(x, target)[1]
        want.backward()
        optimizer.step()
    assert y.dtype == HALF
    step.copyWeightsToHost()
    for ours, theirs in zip(cast.parameters(), plain.parameters(), strict=True):
        assert ours.dtype == FULL
        torch.testing.assert_close(ours, theirs, rtol=0, atol=3e-3)
        # More digits than float16 has: the update itself was not rounded to it.
        assert not torch.equal(ours, ours.half().float())
    torch.testing.assert_close(loss, want, rtol=1e-2, atol=1e-3)


def test_casts_are_ops_of_the_program():
    from poptorch import _core
    from poptorch.capture import capture
    from poptorch.capture.casting import Casting

    class Chain(nn.Module):
        def forward(self, x):
            with poptorch.autocast():
                return torch.tanh((x @ x).float()) @ x

    found = capture(
        Chain(),
        (torch.randn(4, 4),),
        {},
        training=False,
        rows={row.name: row for row in _core.rows()},
        name="t",
        casting=Casting(Policy(fp16=[torch.matmul])),
    )
    assert found.text.count("= _to_copy(") >= 3 and "f16[4,4]" in found.text
