# SPDX-License-Identifier: Apache-2.0
"""``poptorch.CPU``: functions of the user's inside programs."""

import poptorch
import pytest
import torch


class Mixed(torch.nn.Module):
    """Native layers around a layer and a method that run on the host."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.table = torch.nn.Linear(3, 2)
        self.on_host = poptorch.CPU(self.table, "table")
        self.counted = poptorch.CPU(self.count, "count")
        self.calls = []

    def count(self, x, times=1):
        self.calls.append(x.clone())
        # What no program can do: values steer Python, numpy computes.
        lines = torch.from_numpy(x.detach().numpy() * 2) if x.sum().item() > 0 else -x
        return lines, torch.full((2,), times, dtype=torch.int32)

    def forward(self, x):
        y = self.on_host(self.first(x))
        lines, times = self.counted(y, times=3)
        return y, lines + 1, times, self.on_host(x)


def test_functions_run_once_per_micro_batch(opts):
    model = Mixed()
    assert not model.table.weight.requires_grad
    x = torch.randn(4, 3)
    with torch.no_grad():
        parts = [model(part) for part in x.split(2)]
    expected = [torch.cat(values) for values in zip(*parts, strict=True)]
    model.calls.clear()
    run = poptorch.inferenceModel(model, opts.deviceIterations(2))
    for actual, wanted in zip(run(x), expected, strict=True):
        torch.testing.assert_close(actual, wanted)
    zeros, *rest = model.calls
    assert not zeros.any() and len(rest) == 2
    torch.testing.assert_close(torch.cat(rest), expected[0])
    run(x)
    assert len(model.calls) == 5


class Calls(torch.nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.body = forward

    def forward(self, x):
        y = self.body(x * self.weight)
        return y, poptorch.identity_loss(y.sum(), "none")


def _nested(x):
    return poptorch.CPU(lambda t: poptorch.CPU(torch.exp, "inner")(t), "outer")(x)


def _same_name(x):
    return poptorch.CPU(torch.exp, "f")(x) + poptorch.CPU(torch.log, "f")(x)


def _no_tensor(x):
    return poptorch.CPU(lambda t: t.tolist(), "list")(x)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (_nested, "CPU ops must not overlap"),
        (_same_name, "'f' is the name of two functions"),
        (_no_tensor, "must return a tensor, or a list or tuple of tensors"),
    ],
)
def test_what_is_refused(body, text, opts):
    with pytest.raises(poptorch.Error, match=text):
        poptorch.inferenceModel(Calls(body), opts)(torch.ones(2))


# Training -----------------------------------------------------------------------------------------


class Squared(torch.autograd.Function):
    """A gradient that is given, and is not the true one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * grad


class Several:
    """Several inputs, results and types; the function looks at values and changes its input."""

    calls = 0

    def __call__(self, x, index, *, scale=1.0):
        Several.calls += 1
        x *= scale
        largest = x.max().item()  # no program could do this
        picked = torch.stack([row[i] for row, i in zip(x, index.tolist(), strict=True)])
        return [picked.exp(), (x / max(largest, 1)).tanh(), x.argmax(1), x.detach().numpy() > 0]


class Trained(torch.nn.Module):
    def __init__(self, body):
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(3, 3)
        self.body = body

    def forward(self, x):
        y = self.body(self.linear(x))
        loss = (y.float() ** 2).mean()
        return y, poptorch.identity_loss(loss, "none")


def several(x):
    inner = Several()

    def to_tensors(*args, **kwargs):
        *tensors, mask = inner(*args, **kwargs)
        return *tensors, torch.from_numpy(mask)

    a, b, c, d = poptorch.CPU(to_tensors, "several")(x, torch.tensor([0, 2, 1, 0]), scale=0.5)
    assert c.dtype == torch.int64 and d.dtype == torch.bool
    return a[:, None] * b + c[:, None] * d


SCALE = torch.nn.Linear(3, 3)
SIN = poptorch.CPU(torch.sin, "sin")
BODIES = {
    "torch ops": poptorch.CPU(lambda x: x.exp() + x.mean(), "exp"),
    "a gradient of its own": poptorch.CPU(Squared.apply, "squared"),
    "a module": poptorch.CPU(SCALE, "module"),
    "twice": lambda x: SIN(SIN(x)) * SIN(x),
    "several tensors": several,
    "without gradient": lambda x: x * poptorch.CPU(lambda t: t.detach() + 1, "detached")(x),
    "integers": lambda x: x + poptorch.CPU(lambda t: t.argmax(1), "argmax")(x)[:, None],
    "no gradient needed": lambda x: x + poptorch.CPU(torch.exp, "e")(torch.ones(4, 3)),
    "in no_grad": lambda x: x * torch.no_grad()(poptorch.CPU(torch.exp, "f"))(x),
    "half": lambda x: poptorch.CPU(torch.exp, "half")(x.half()),
}


def eager_step(model, *batches, lr=0.5):
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    sgd.zero_grad()
    for x in batches:
        y, loss = model(x)
        loss.backward()
    for p in model.parameters():
        p.grad /= len(batches)
    sgd.step()
    return y, loss


@pytest.mark.parametrize("name", BODIES)
def test_training(opts, name):
    model, eager = Trained(BODIES[name]), Trained(BODIES[name])
    run = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.5))
    for seed in range(2):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(run(x), eager_step(eager, x))
        for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            tolerance = {"rtol": 2e-3, "atol": 1e-3} if name == "half" else {}
            torch.testing.assert_close(mine.detach(), theirs.detach(), **tolerance)


def test_a_trained_function_runs_once_per_micro_batch(opts):
    opts.Training.gradientAccumulation(2)
    model, eager = Trained(several), Trained(several)
    run = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.5))
    x = torch.randn(8, 3)
    run.compile(x)
    Several.calls = 0
    run(x)
    assert Several.calls == 2
    eager_step(eager, *x.split(4))
    torch.testing.assert_close(model.linear.weight.detach(), eager.linear.weight.detach())


@pytest.mark.parametrize("strategy", ["pipeline", "replicas"])
def test_training_on_many_ipus(opts, strategy):
    """Graphs of several micro-batches are open at a time."""
    halved = poptorch.CPU(lambda x: (x / 2).exp(), "halved")

    class Stages(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def forward(self, x):
            with poptorch.Block(ipu_id=0):
                y = halved(self.first(x))
            with poptorch.Block(ipu_id=1 if strategy == "pipeline" else 0):
                return poptorch.identity_loss(self.second(y).square().mean(), "none")

    model, eager = Stages(), Stages()
    if strategy == "replicas":
        opts.replicationFactor(4)
    else:
        opts.Training.gradientAccumulation(4)
    opts.outputMode(poptorch.OutputMode.All)
    run = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.5))
    x = torch.randn(8, 3)
    losses = run(x)
    found = []
    for part in x.split(2):
        found.append(eager(part))
        (found[-1] / 4).backward()
    torch.testing.assert_close(losses, torch.stack(found).detach())
    torch.optim.SGD(eager.parameters(), lr=0.5).step()
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach())


def test_a_gradient_that_fails(opts):
    class Fails(torch.autograd.Function):
        broken = False

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            if Fails.broken:
                raise ValueError("no gradient today")
            return grad

    model = Trained(poptorch.CPU(Fails.apply, "fails"))
    run = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.5))
    x = torch.randn(4, 3)
    run(x)
    Fails.broken = True
    with pytest.raises(
        poptorch.Error, match="gradient of CPU op 'fails' .* no gradient today"
    ) as e:
        run(x)
    assert "test_cpu_ops.py" in e.value.location
    Fails.broken = False
    before = model.linear.weight.detach().clone()
    run(x)
    assert not torch.equal(before, model.linear.weight.detach())


def test_no_gradient_is_a_warning(opts, log):
    model = Trained(BODIES["without gradient"])
    poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.5))(
        torch.ones(4, 3)
    )
    assert "CPU op 'detached': no gradient flows through its function" in log.text


# Tensors of the program ---------------------------------------------------------------------------


def test_a_function_may_change_and_keep_what_it_gets(opts):
    kept = []

    def change(x):
        kept.append(x)
        return x.add_(1)

    run = poptorch.inferenceModel(Calls(lambda x: poptorch.CPU(change, "change")(x) + x), opts)
    y, _ = run(torch.tensor([1.0, 2.0]))
    assert y.tolist() == [3.0, 5.0]
    run(torch.tensor([5.0, 6.0]))
    run.destroy()
    assert [t.tolist() for t in kept[1:]] == [[2.0, 3.0], [6.0, 7.0]]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.bool,
    ],
    ids=str,
)
def test_types(opts, dtype):
    class Typed(torch.nn.Module):
        def forward(self, x):
            return poptorch.CPU(lambda t: (t, t.flip(0), t.to(torch.float32)), "flip")(x)

    seen = torch.tensor([0, 1, 1]).to(dtype)
    one, two, three = poptorch.inferenceModel(Typed(), opts)(seen)
    narrow = {torch.float64: torch.float32, torch.int64: torch.int32}  # of all results
    assert one.dtype == two.dtype == narrow.get(dtype, dtype)
    seen = seen.to(one.dtype)
    assert torch.equal(one, seen) and torch.equal(two, seen.flip(0))
    assert three.tolist() == [0.0, 1.0, 1.0]


def test_outside_a_model_it_only_calls_the_function():
    assert poptorch.CPU(lambda a, b=2: a + b, "plain")(1, b=4) == 5
    with pytest.raises(poptorch.Error, match="'x': int is no function or module"):
        poptorch.CPU(3, "x")


def test_a_failing_function_ends_the_call_and_the_next_one_works(opts):
    state = {"size": 2}

    def grow(x):
        if state["size"] == 0:
            raise ValueError("nothing left")
        return torch.ones(state["size"])

    run = poptorch.inferenceModel(Calls(poptorch.CPU(grow, "grow")), opts)
    texts = ((3, r"shape \[3\] instead of \[2\]"), (0, "CPU op 'grow' .* ValueError: nothing left"))
    for size, text in texts:
        run.compile(torch.ones(2)) if not run.isCompiled() else None
        state["size"] = size
        with pytest.raises(poptorch.Error, match=text):
            run(torch.ones(2))
        state["size"] = 2
        assert run(torch.ones(2))[1] == 2
