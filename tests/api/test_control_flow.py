# SPDX-License-Identifier: Apache-2.0
"""Loops and branches in compiled models, against loops of Python's in eager PyTorch."""

import copy
import time

import poptorch
import pytest
import torch
from control_flow_cases import CASES, Model, data, loop
from tolerances import assert_pass_close, assert_steps_close

# Eager keeps what backward of a step needs in the buffer itself, and fails in the second step.
ONE_STEP = {"a_buffer_with_a_gradient"}


class WithLoss(torch.nn.Module):
    """Returns what the model returns, and a loss of all of it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args):
        out = self.model(*args)
        out = list(out) if isinstance(out, (list, tuple)) else [out]
        parts = [t.float().square().mean() for t in out if t.dtype.is_floating_point]
        return out, poptorch.identity_loss(sum(parts), "none")


def narrow(tensor):
    """Programs return integers of 32 bits."""
    return tensor.int() if tensor.dtype is torch.int64 else tensor


def train(model, args, opts=None, steps=1):
    """Compares steps of SGD with eager: results, and all weights and buffers afterwards."""
    model = WithLoss(model)
    eager = copy.deepcopy(model)
    sgd = torch.optim.SGD(eager.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(steps):
        out, loss = executor(*args)
        expected, expected_loss = eager(*args)
        expected = [narrow(t.detach().clone()) for t in expected]
        sgd.zero_grad()
        expected_loss.backward()
        sgd.step()
        assert_steps_close(loss, expected_loss.detach(), f"loss {step}")
        for i, (a, b) in enumerate(zip(out, expected, strict=True)):
            assert_steps_close(a, b, f"result {i}")
    for name, value in eager.state_dict().items():
        assert_steps_close(model.state_dict()[name], value.detach(), name)


@pytest.mark.parametrize("name", CASES)
def test_inference_equals_eager(name, opts):
    model = Model(name)
    eager = copy.deepcopy(model)
    executor = poptorch.inferenceModel(model, opts)
    for _ in range(2):  # buffers go on from call to call
        found = executor(data())
        with torch.no_grad():
            expected = eager(data())
        many = isinstance(expected, (list, tuple))
        assert isinstance(found, list) == many
        for a, b in zip(*((found, expected) if many else ([found], [expected])), strict=True):
            assert_pass_close(a, narrow(b))
    executor.copyWeightsToHost()
    for buffer, value in eager.named_buffers():
        assert_pass_close(dict(model.named_buffers())[buffer], value, buffer)


@pytest.mark.parametrize("name", CASES)
def test_training_equals_eager(name, opts):
    train(Model(name), (data(),), opts, 1 if name in ONE_STEP else 2)


class Function(torch.nn.Module):
    """A function of a weight and the inputs."""

    def __init__(self, function, weight=None):
        super().__init__()
        self.function = function
        weight = torch.tensor([1.1, 0.9, 1.2, 0.8]) if weight is None else weight
        self.weight = torch.nn.Parameter(weight)

    def forward(self, *args):
        return self.function(self.weight, *args)


def infer(function, *args, opts=None):
    return poptorch.inferenceModel(Function(function), opts)(*args)


def test_half_precision(opts):
    def run(w, x):
        y = loop(4, lambda a: (a * w).tanh() + x, [x])[0]
        return poptorch.cond(y.sum() > 0, lambda: y * w, [], lambda: y - w, [])[0].float()

    for dtype in (torch.float16, torch.bfloat16):
        model = WithLoss(Function(run)).to(dtype)
        wide = copy.deepcopy(model).float()
        x = torch.linspace(-1, 1, 8).reshape(2, 4)
        executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
        executor(x.to(dtype))
        sgd = torch.optim.SGD(wide.parameters(), lr=0.1)
        wide(x)[1].backward()
        sgd.step()
        weights = model.model.weight, wide.model.weight.to(dtype)
        assert_pass_close(weights[0].detach(), weights[1].detach(), str(dtype))


def test_gradient_accumulation(opts):
    opts.Training.gradientAccumulation(4)
    model = WithLoss(Model("a_branch_in_a_loop"))
    eager = copy.deepcopy(model)
    x = torch.randn(12, 4)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    executor(x)
    sgd = torch.optim.SGD(eager.parameters(), lr=0.1)
    for part in x.chunk(4):
        (eager(part)[1] / 4).backward()
    sgd.step()
    for name, value in eager.state_dict().items():
        assert_steps_close(model.state_dict()[name], value.detach(), name)


class TwoStages(torch.nn.Module):
    """A loop on each of two IPUs; the block of the second begins in the body."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        with poptorch.Block("first", ipu_id=0):
            (x,) = loop(3, lambda a: self.first(a).tanh(), [x])

        def body(a):
            with poptorch.Block("second", ipu_id=1):
                return self.second(a).tanh()

        (x,) = loop(2, body, [x])
        with poptorch.Block("end", ipu_id=1):
            return x, poptorch.identity_loss(x.square().mean(), "none")


def test_loops_in_a_pipeline(opts):
    opts.Training.gradientAccumulation(4)
    opts.deviceIterations(2)
    model = TwoStages()
    eager = copy.deepcopy(model)
    x = torch.randn(16, 4)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    executor(x)
    sgd = torch.optim.SGD(eager.parameters(), lr=0.1)
    for update in x.chunk(2):
        sgd.zero_grad()
        for part in update.chunk(4):
            (eager(part)[1] / 4).backward()
        sgd.step()
    for name, value in eager.state_dict().items():
        assert_steps_close(model.state_dict()[name], value.detach(), name)


def test_every_turn_and_every_call_draw_other_numbers(opts):
    def run(w, i, x):
        def body(j, x):
            return j + 1, x.index_copy(0, j.reshape(1), torch.rand(1, 4))

        return poptorch.for_loop(6, body, [i, x])[1]

    executor = poptorch.inferenceModel(Function(run), opts)
    args = torch.zeros((), dtype=torch.int64), torch.zeros(6, 4)
    rows = [tuple(row.tolist()) for _ in range(2) for row in executor(*args)]
    assert len(set(rows)) == 12 and all(0 <= v < 1 for row in rows for v in row)


def test_backward_drops_what_forward_dropped(opts):
    def run(w, x):
        return poptorch.for_loop(3, lambda a: torch.nn.functional.dropout(a * w, 0.3), [x])

    model = WithLoss(Function(run))
    before = model.model.weight.detach().clone()
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    (out,), _ = executor(torch.ones(16, 4))
    assert 0 < out.count_nonzero() < out.numel()
    # out = x * w**3 * masks, the loss is its mean square
    gradient = (2 * out / out.numel() * out * 3 / before).sum(0)
    assert_steps_close(model.model.weight.detach(), before - 0.1 * gradient)


def test_the_body_that_is_not_chosen_does_not_run(opts, capfd):
    def show(title):
        return lambda t: poptorch.ipu_print_tensor(t + 1, title)

    def run(w, flag, x):
        return poptorch.cond(flag, show("then"), [x], show("else"), [x])

    executor = poptorch.inferenceModel(Function(run), opts)
    for flag, title in ((True, "then"), (False, "else")):
        executor(torch.tensor([flag]), torch.ones(2))
        text = capfd.readouterr().err
        assert title in text and ("else" if flag else "then") not in text


def test_a_print_in_a_body_prints_each_turn_once(opts, capfd):
    def run(w, x):
        def body(i, a):
            return i + 1, poptorch.ipu_print_tensor(a * w, "turn")

        return poptorch.for_loop(3, body, [torch.zeros(()), x])[1]

    model = WithLoss(Function(run))
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    executor(torch.ones(4))
    text = capfd.readouterr().err
    assert text.count("turn:") == 3 and text.count("turn_gradient:") == 3


def test_ops_of_the_host_in_a_body(opts):
    on_host = poptorch.CPU(lambda t: torch.tensor([v + 1 for v in t.tolist()]), "more")

    def run(w, x):
        return poptorch.for_loop(5, lambda a: on_host(a) * 2, [x])[0]

    expected = torch.ones(4)
    for _ in range(5):
        expected = (expected + 1) * 2
    assert_pass_close(infer(run, torch.ones(4), opts=opts), expected)


def test_ops_of_the_host_with_a_gradient_in_a_body(opts):
    on_host = poptorch.CPU(torch.exp, "exp")

    def run(w, x):
        return poptorch.for_loop(2, lambda a: on_host(a) * w, [x])

    model = WithLoss(Function(run))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(poptorch.Error, match="no gradient in the body of poptorch.for_loop"):
        poptorch.trainingModel(model, opts, sgd)(torch.ones(4))


def test_values_read_after_a_loop(opts):
    def run(w, x):
        (y,) = poptorch.for_loop(3, lambda a: a + 1, [x])
        (z,) = poptorch.cond(x.sum() > 0, lambda: x, [], lambda: x * 0, [])
        return x * float(y.sum()) * float(z.sum())

    assert_pass_close(infer(run, torch.ones(2), opts=opts), torch.full((2,), 16.0))


def test_compile_time_does_not_depend_on_the_count(opts):
    def seconds(count):
        def run(w, x):
            return loop(count, lambda a: (a * w).tanh() + x, [x])

        model = WithLoss(Function(run))
        executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
        start = time.perf_counter()
        executor.compile(torch.ones(4))
        return time.perf_counter() - start

    seconds(1)
    few, many = (min(seconds(count) for _ in range(3)) for count in (10, 10_000))
    assert many < 2 * few + 0.1


def test_training_more_turns_than_memory_can_hold_is_an_error_at_once(opts):
    def run(w, x):
        return poptorch.for_loop(1 << 62, lambda a: a * w.sum(), [x])

    model = WithLoss(Function(run))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="overflow"):
        poptorch.trainingModel(model, opts, sgd)(X)


def test_count_may_be_an_integer_of_numpy(opts):
    numpy = pytest.importorskip("numpy")
    found = infer(lambda w, x: poptorch.for_loop(numpy.int64(3), torch.neg, [x]), X, opts=opts)
    assert_pass_close(found[0], -X)


# On the CPU


X = torch.linspace(-1, 1, 6).reshape(2, 3)


def test_outside_of_a_model_a_loop_runs_its_body_once():
    kept = X.clone()

    def body(a, b):
        a += 1
        return a, b

    found = poptorch.for_loop(7, body, [kept, X])
    assert isinstance(found, list) and torch.equal(found[0], X + 1) and torch.equal(kept, X)
    assert isinstance(poptorch.for_loop(1, torch.exp, [X]), list)


def test_outside_of_a_model_the_chosen_body_is_called():
    found = poptorch.cond(torch.tensor(False), torch.exp, [X], lambda: (X, X), [])
    assert isinstance(found, list) and found[0] is X and len(found) == 2


# What is refused


def reads(w, x):
    return poptorch.for_loop(2, lambda a: a * 2 if a.sum() > 0 else a, [x])


def two_places(w, x):
    def body(a):
        with poptorch.Block("one", ipu_id=0):
            a = a * 2
        with poptorch.Block("two", ipu_id=1):
            return a * 3

    return poptorch.for_loop(2, body, [x])


def leaks(w, x):
    seen = []
    poptorch.for_loop(2, lambda a: seen.append(a * 2) or a, [x])
    return seen[0] + 1


def changes_a_constant(w, x):
    return poptorch.for_loop(2, lambda a: a + COUNTER.add_(1), [x])


COUNTER = torch.zeros(())
FLAG = torch.tensor([True])


@pytest.mark.parametrize(
    "function, text",
    [
        (lambda w, x: poptorch.for_loop(True, torch.neg, [x]), "count must be an int"),
        (lambda w, x: poptorch.for_loop(2.0, torch.neg, [x]), "count must be an int"),
        (lambda w, x: poptorch.for_loop(x.sum().int(), torch.neg, [x]), "count must be an int"),
        (lambda w, x: poptorch.for_loop(-1, torch.neg, [x]), "must not be negative"),
        (lambda w, x: poptorch.for_loop(1 << 63, torch.neg, [x]), "must fit into 64 bits"),
        (lambda w, x: poptorch.for_loop(2, lambda a: a.half(), [x]), "is torch.float16"),
        (lambda w, x: poptorch.for_loop(2, lambda a: a[0], [x]), "same shapes and types"),
        (lambda w, x: poptorch.for_loop(2, lambda a: [a, a], [x]), "takes 1 and returns 2"),
        (lambda w, x: poptorch.for_loop(2, lambda a: None, [x]), "is of type NoneType"),
        (
            lambda w, x: poptorch.cond(x > 0, torch.neg, [x], torch.exp, [x]),
            "boolean tensor of one element",
        ),
        (
            lambda w, x: poptorch.cond(True, torch.neg, [x], torch.exp, [x]),
            "must be a boolean tensor",
        ),
        (
            lambda w, x: poptorch.cond(FLAG, lambda: (x, x), [], torch.exp, [x]),
            "must return as many outputs: then_body returns 2, else_body 1",
        ),
        (
            lambda w, x: poptorch.cond(FLAG, torch.neg, [x], torch.sum, [x]),
            r"cannot be reshaped to \[\]",
        ),
        (
            lambda w, x: poptorch.cond(FLAG, lambda: x[0], [], torch.neg, [x]),
            r"cannot be reshaped to \[2, 3\]",
        ),
        (lambda w, x: poptorch.cond(FLAG, lambda: x.half(), [], torch.neg, [x]), "cast one"),
        (lambda w, x: poptorch.cond(FLAG, lambda: 1, [], torch.neg, [x]), "not int"),
        (reads, "reads the value of a tensor in the body"),
        (two_places, "more than one IPU"),
        (leaks, "only what the body returns can be used"),
        (changes_a_constant, "Use register_buffer"),
    ],
)
def test_what_is_refused_names_the_line(function, text, opts):
    with pytest.raises(poptorch.Error, match=text) as caught:
        infer(function, X, opts=opts)
    assert "test_control_flow.py" in str(caught.value) + caught.value.location


def test_a_loss_in_a_body_does_not_count(opts):
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x, mark=False):
            def body(total, a):
                a = self.layer(a)
                return total + torch.nn.functional.mse_loss(a, x), a

            total, _ = loop(2, body, [torch.zeros(()), x])
            return poptorch.identity_loss(total, "none") if mark else total

    model, other = M(), M()
    with pytest.raises(poptorch.Error, match="find a loss(.|\n)*return it from the body"):
        poptorch.trainingModel(other, opts, torch.optim.SGD(other.parameters(), lr=0.1))(X)
    eager = copy.deepcopy(model)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = poptorch.trainingModel(model, opts, sgd)(X, True)
    expected = eager(X, True)
    assert_pass_close(loss, expected.detach())
    expected.backward()
    torch.optim.SGD(eager.parameters(), lr=0.1).step()
    assert_steps_close(model.layer.weight.detach(), eager.layer.weight.detach())
