# SPDX-License-Identifier: Apache-2.0
"""Ops of a user's library compute and train, on one IPU and on many."""

import copy
import ctypes
import json

import poptorch
import pytest
import torch
from custom_support import build, copy_of, custom, load_door
from function_model import Call
from tolerances import assert_pass_close, assert_steps_close
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def _library():
    load_door()


def run(function, *inputs):
    return poptorch.inferenceModel(Call(function))(*inputs)


class Model(torch.nn.Module):
    """Two layers with an activation between; a loss in training."""

    def __init__(self, activation, half=False):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
        self.activation = activation
        if half:
            self.half()

    def forward(self, x):
        y = self.second(self.activation(self.first(x)))
        return y, poptorch.identity_loss(y.float().square().mean(), "none")


def eager(x):
    return torch.nn.functional.leaky_relu(x, 0.3)


def computed(x):
    return custom([x], "LeakyRelu", alpha=0.3)


def composed(x):
    return custom([x], "ComposedLeakyRelu", alpha=0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("op", [computed, composed], ids=["computed", "composed"])
def test_an_op_computes(op, dtype):
    x = torch.randn(5, 7).to(dtype)
    found = run(op, x)
    assert found.dtype is dtype
    assert_pass_close(found, eager(x))


def test_operands_that_lie_otherwise_are_made_dense():
    x = torch.randn(4, 6)
    assert_pass_close(run(lambda x: computed(x.t()[1:, ::2]), x), eager(x.t()[1:, ::2]))


def train(activation, opts, steps=4, half=False, placed=False):
    model = Model(activation, half)
    if placed:
        model.second = poptorch.BeginBlock(model.second, "second", ipu_id=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = poptorch.trainingModel(model, opts, optimizer)
    torch.manual_seed(2)
    count = opts.device_iterations * opts.Training.gradient_accumulation
    count *= opts.replication_factor
    for _ in range(steps):
        x = torch.randn(4 * count, 6)
        trainer(x.half() if half else x)
    trainer.copyWeightsToHost()
    found = [p.detach().float().clone() for p in model.parameters()]
    trainer.destroy()
    return found


def options(kind):
    opts = poptorch.Options()
    if kind == "accumulated":
        opts.Training.gradientAccumulation(3)
    if kind == "iterations":
        opts.deviceIterations(2)
    if kind == "replicas":
        opts.replicationFactor(2)
    if kind == "pipeline":
        opts.Training.gradientAccumulation(4)
    return opts


@pytest.mark.parametrize("kind", ["plain", "accumulated", "iterations", "replicas", "pipeline"])
@pytest.mark.parametrize("op", [computed, composed], ids=["computed", "composed"])
def test_an_op_trains(op, kind):
    placed = kind == "pipeline"
    found = train(op, options(kind), placed=placed)
    expected = train(eager, options(kind), placed=placed)
    assert all(torch.isfinite(p).all() for p in found)
    for a, b in zip(found, expected, strict=True):
        assert_steps_close(a, b)


def test_an_op_trains_in_half():
    found, expected = (train(op, options("plain"), half=True) for op in (computed, eager))
    for a, b in zip(found, expected, strict=True):
        assert_pass_close(a, b, computed_in=torch.float16)


class Weights(torch.nn.Module):
    """A function of parameters; its loss is the sum of squares."""

    def __init__(self, function, values):
        super().__init__()
        self.values = torch.nn.ParameterList(torch.nn.Parameter(v.clone()) for v in values)
        self.function = function

    def forward(self):
        return poptorch.identity_loss(self.function(*self.values).square().sum(), "sum")


def gradients(function, *values):
    """What a step with rate 1 takes off the parameters."""
    model = Weights(function, values)
    trainer = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    trainer()
    return [v - p.detach() for v, p in zip(values, model.values, strict=True)]


def eager_gradients(function, *values):
    values = [v.clone().requires_grad_() for v in values]
    return torch.autograd.grad(function(*values).square().sum(), values)


def test_gradients_are_those_of_the_library():
    x, w = torch.randn(3, 4), torch.randn(3, 4)
    dx, dw = gradients(lambda x, w: custom([x, w], "Product"), x, w)
    assert_pass_close(dx, 4 * x * w * w)
    assert_pass_close(dw, 4 * x * w * x)


def test_gradients_by_ops_that_popart_ships():
    x, w = torch.randn(3, 4), torch.randn(3, 4)
    found = gradients(lambda x, w: custom([x, w], "Lesser"), x, w)
    for a, b in zip(found, eager_gradients(torch.sub, x, w), strict=True):
        assert_pass_close(a, b)


def test_a_composition_is_differentiated():
    values = [torch.randn(2, 5, 4) for _ in range(3)]
    attention = torch.nn.functional.scaled_dot_product_attention
    found = gradients(lambda *t: custom(list(t), "Attention"), *values)
    for a, b in zip(found, eager_gradients(attention, *values), strict=True):
        assert_pass_close(a, b)
    assert_pass_close(run(lambda *t: custom(list(t), "Attention"), *values), attention(*values))


def test_a_composition_is_fused_and_leaves_no_call():
    model = poptorch.inferenceModel(Call(lambda x: composed(x * 2) + 1))
    model(torch.randn(8))
    kernels = json.loads(model._executable.program.summary())["kernels"]
    assert kernels == {"fused": 1}


def test_several_outputs_of_other_types():
    x = torch.randn(6, 5)
    value, index = run(
        lambda x: poptorch.custom_op(
            [x], "RowMax", "test.door", 1, [torch.zeros(1), torch.zeros(1, dtype=torch.long)]
        ),
        x,
    )
    assert_pass_close(value, x.amax(1))
    assert index.equal(x.argmax(1).int())  # results of 64 bits are returned as 32
    dtypes = []
    run(
        lambda x: dtypes.append(
            poptorch.custom_op([x], "RowMax", "test.door", 1, [x, torch.zeros(1).long()])[1].dtype
        ),
        x,
    )
    assert dtypes == [torch.int64]
    found = gradients(lambda x: custom([x], "RowMax", outputs=2)[0], x)
    assert_pass_close(found[0], eager_gradients(lambda x: x.amax(1), x)[0])


def test_what_an_op_sees_of_its_call():
    def seen(x, **attributes):
        return run(lambda x: custom([x], "Inspect", **attributes), x).tolist()

    given = {"float": 0.5, "int": 7, "string": "abc", "floats": [1.5, 2.5], "ints": [3, -4]}
    given["strings"] = ["", 'a"\\\x01']
    x = torch.zeros(2, 3)
    assert seen(x, **given)[:8] == [0, 2, 0.5, 7, 3, 2.5, -4, 4]
    assert seen(x)[:8] == [0, 2, -1, -1, 0, -1, -1, 0]
    assert seen(x, int=True)[3] == 1
    assert seen(x, int=2**40)[3] == 2.0**40
    dtypes = [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16]
    dtypes += [torch.int8, torch.uint8, torch.bool]
    # 64-bit integers reach an op as 32-bit ones.
    assert [seen(x.to(d))[0] for d in dtypes] == [1, 2, 3, 5, 5, 6, 7, 8, 9]


def test_the_largest_version_up_to_the_one_asked_for():
    x = torch.ones(2)
    found = [run(lambda x, v=v: custom([x], "Versioned", version=v), x)[0] for v in (2, 3, 4, 9)]
    assert found == [2, 2, 4, 4]


def test_calls_that_vary_are_not_merged():
    first, second = run(lambda x: (custom([x], "Count"), custom([x], "Count")), torch.ones(2))
    assert first != second


class Counted(torch.nn.Module):
    """A weight times the number of the call, in a region that is recomputed or in a pipeline."""

    def __init__(self, pipelined):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.pipelined = pipelined

    def forward(self, x):
        def product(x):
            return self.weight * custom([x], "Count", torch.zeros(()))

        if self.pipelined:
            with poptorch.Block("first", ipu_id=0):
                y = product(x)
            with poptorch.Block("second", ipu_id=1):
                return poptorch.identity_loss(y, "none")
        return poptorch.identity_loss(checkpoint(product, x, use_reentrant=False), "none")


@pytest.mark.parametrize("pipelined", [False, True], ids=["region", "pipeline"])
def test_calls_that_vary_are_not_recomputed(pipelined):
    model = Counted(pipelined)
    opts = poptorch.Options()
    if pipelined:
        opts.Training.gradientAccumulation(3)
        opts.outputMode(poptorch.OutputMode.All)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1e-3))
    for _ in range(2):
        before = model.weight.detach().clone()
        losses = executor(torch.ones(3 if pipelined else 1, 2))
        executor.copyWeightsToHost()
        # The gradient is the number that forward had.
        step = before - model.weight.detach()
        torch.testing.assert_close(step, 1e-3 * (losses / before).mean(), rtol=1e-4, atol=1e-6)


def test_shapes_are_the_op_s_and_not_the_example_s():
    x = torch.randn(6, 5)
    assert run(lambda x: custom([x], "RowMax", torch.zeros(9, 9), outputs=2), x)[0].shape == (6,)


def test_without_gradient_ops_training_takes_results_as_constants(caplog):
    model = Model(lambda x: x)

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            y = custom([self.model.first(x)], "NoGradient")
            return poptorch.identity_loss(self.model.second(y).square().sum(), "sum")

    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    poptorch.trainingModel(Both(), optimizer=optimizer)(torch.randn(4, 6))
    assert model.first.weight.equal(before.first.weight)
    assert not model.second.weight.equal(before.second.weight)


def test_the_summary_names_the_library():
    model = poptorch.inferenceModel(Call(computed))
    model(torch.randn(8))
    summary = json.loads(model._executable.program.summary())
    assert summary["custom_ops"] == [{"op": "test.door.LeakyRelu:1", "library": str(load_door())}]
    (step,) = [s for s in summary["steps"] if s["op"] == "custom test.door.LeakyRelu"]
    assert (step["flops"], step["bytes"]) == (12345, 678)


def test_outside_a_model_results_are_zeros():
    x = torch.randn(3)
    assert computed(x).equal(torch.zeros(3)) and not computed(x).requires_grad
    assert computed(x.requires_grad_()).requires_grad  # as the example


def test_a_library_loaded_twice_is_nothing_new(tmp_path):
    library = load_door()
    before = poptorch._core.custom_ops(), poptorch._core.custom_refused()
    ctypes.cdll.LoadLibrary(str(library))
    names = poptorch.load_custom_op_library(library)
    assert "test.door.LeakyRelu:1" in names and len(names) == len(set(names))
    assert len(poptorch._core.custom_ops()) == len(before[0])
    assert poptorch._core.custom_refused() == before[1]
    # A copy of the file: the first one counts.
    assert poptorch.load_custom_op_library(copy_of(library, tmp_path)) == []
    assert any("has it already" in text for text in poptorch._core.custom_refused())
    x = torch.randn(4)
    assert_pass_close(run(computed, x), eager(x))


def test_a_library_that_is_closed_stays():
    source = """
    #include <tessera/custom_op.h>
    using namespace tessera::custom;
    struct Closed {
      static void setup(Setup& s) { s.output(0, s.input(0)); }
      static void compute(const Run& run) {
        const Range r = run.share(run.input<float>(0).size());
        for (int64_t i = r.begin; i < r.end; ++i)
          run.output<float>(0)[i] = run.input<float>(0)[i] + 1;
      }
    };
    TESSERA_REGISTER_OP(Closed, "test.closed", "Closed", 1);
    """
    import _ctypes

    library = build(source)
    for _ in range(2):
        handle = ctypes.CDLL(str(library))
        _ctypes.dlclose(handle._handle)
        found = run(
            lambda x: poptorch.custom_op([x], "Closed", "test.closed", 1, [x])[0], torch.ones(3)
        )
        assert found.equal(torch.full((3,), 2.0))


def test_values_that_forward_reads():
    def forward(x):
        y = computed(x)
        return y * 10 if y.sum() > 0 else y

    assert run(forward, torch.ones(3)).equal(torch.full((3,), 10.0))
    x = torch.tensor([-1.0, 2.0])
    assert_pass_close(
        run(lambda y: computed(torch.tensor([-1.0, 2.0])) + y, torch.zeros(2)), eager(x)
    )


@pytest.mark.parametrize("op", [computed, composed], ids=["computed", "composed"])
def test_in_a_loop(op):
    x = torch.randn(4)
    found = run(lambda x: poptorch.for_loop(3, lambda y: op(y - 1), [x])[0], x)
    for _ in range(3):
        x = eager(x - 1)
    assert_pass_close(found, x)
