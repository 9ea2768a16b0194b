# SPDX-License-Identifier: Apache-2.0
"""One executor, or several of one model, used from several threads at once."""

import copy
import threading

import poptorch
import pytest
import torch
from api_support import Regression
from poptorch.weights import transfer

THREADS = 4


def together(*functions):
    """Run functions in threads that start at the same moment; returns their results."""
    barrier = threading.Barrier(len(functions))
    results = [None] * len(functions)

    def run(i, function):
        barrier.wait()
        try:
            results[i] = function()
        except BaseException as exc:
            results[i] = exc

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


class Counted(Regression):
    """Counts how often it was captured, and lets other threads in while it is."""

    def __init__(self):
        super().__init__()
        self.captures = [0]

    def forward(self, x, target=None):
        self.captures[0] += 1
        threading.Event().wait(0.02)
        return super().forward(x, target)


@pytest.mark.parametrize("training", [False, True])
def test_first_calls_compile_once_and_see_the_weights(opts, batch, training, monkeypatch):
    """The weights must be there before another thread may run the program."""
    upload = transfer.StateMover.upload

    def slow_upload(*args):
        threading.Event().wait(0.05)
        return upload(*args)

    monkeypatch.setattr(transfer.StateMover, "upload", slow_upload)
    model = Counted().eval()
    expected = Regression.forward(model, batch[0]).detach()
    if training:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        executor = poptorch.trainingModel(model, opts, optimizer)
        results = [out for out, _ in together(*[lambda: executor(*batch)] * THREADS)]
    else:
        executor = poptorch.inferenceModel(model, opts)
        results = together(*[lambda: executor(batch[0])] * THREADS)
    assert model.captures == [1]
    for result in results:
        torch.testing.assert_close(result, expected)


def test_compile_beside_calls(opts, batch):
    model = Counted().eval()
    expected = Regression.forward(model, batch[0]).detach()
    executor = poptorch.inferenceModel(model, opts)
    compiling = [lambda: executor.compile(batch[0])] * 2
    results = together(*compiling, *[lambda: executor(batch[0])] * 2)
    assert model.captures == [1]
    for result in results[2:]:
        torch.testing.assert_close(result, expected)


def test_a_failing_first_call_lets_the_others_compile(opts, batch):
    executor = poptorch.inferenceModel(Counted().eval(), opts)

    def wrong():
        with pytest.raises(Exception, match="while capturing|mat1 and mat2"):
            executor(torch.ones(4, 7))

    # Whoever comes first: a wrong call before the right ones must not spoil them.
    wrong()
    results = together(*[lambda: executor(batch[0])] * THREADS)
    assert all(torch.equal(result, results[0]) for result in results)


def test_every_update_counts(opts, batch):
    """Training steps from several threads are made one after the other, none is lost, and reading
    the weights meanwhile gives those of a whole step."""

    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.zeros(1000))
            self.b = torch.nn.Parameter(torch.zeros(1000))

        def forward(self, x):
            return poptorch.identity_loss((self.a + self.b) * x, "sum")

    model = Counter()
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1.0))
    x = -torch.ones(1000)
    training.compile(x)

    def train():
        for _ in range(50):
            training(x)

    def read():
        for _ in range(50):
            state = model.state_dict()
            assert len(state["a"].unique()) == 1 and torch.equal(state["a"], state["b"])

    together(train, train, read, read)
    assert torch.equal(model.a.detach(), torch.full((1000,), 100.0))
    assert torch.equal(model.b.detach(), model.a.detach())


@pytest.mark.parametrize("training", [False, True])
def test_destroy_and_detach_beside_calls(opts, training):
    """A call runs the program or compiles a new one; no update is lost with an old one."""

    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(8))

        def forward(self, x):
            return poptorch.identity_loss(self.w * x, "sum") if training else self.w + x

    model = Counter()
    if training:
        optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0, momentum=0.0)
        executor = poptorch.trainingModel(model, opts, optimizer)
    else:
        executor = poptorch.inferenceModel(model, opts)
    x = -torch.ones(8)
    calls = 40

    def call():
        for _ in range(calls):
            result = executor(x)
            assert training or torch.equal(result, x)

    def disturb():
        for i in range(12):
            threading.Event().wait(0.01)
            if i % 3:
                executor.destroy()
            elif executor.isCompiled():
                try:
                    executor.detachFromDevice()
                except poptorch.Error:
                    pass  # another thread was quicker

    together(call, call, disturb)
    executor.destroy()
    if training:
        assert torch.equal(model.w.detach(), torch.full((8,), 2.0 * calls))


def test_inference_follows_training_in_another_thread(opts):
    """Several inference wrappers of the model see weights of whole steps, never older than those
    that the same thread has seen before."""

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.zeros(64))
            self.b = torch.nn.Parameter(torch.zeros(64))

        def forward(self, x):
            if self.training:
                return poptorch.identity_loss((self.a + self.b) * x, "sum")
            return self.a * x, self.b * x

    model = Twice()
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1.0))
    x = -torch.ones(64)
    training(x)
    model.eval()
    inference = [poptorch.inferenceModel(model, opts) for _ in range(2)]

    def train():
        for _ in range(60):
            training(x)

    def infer(executor):
        last = 0.0
        for _ in range(40):
            a, b = executor(x)
            assert len(a.unique()) == 1 and torch.equal(a, b)
            assert -a[0].item() >= last
            last = -a[0].item()

    together(
        train, lambda: infer(inference[0]), lambda: infer(inference[0]), lambda: infer(inference[1])
    )
    assert torch.equal(inference[1](x)[0], -torch.full((64,), 61.0))


def test_two_training_wrappers_with_a_common_part(opts):
    """They wait for each other's weights, and must not do so for ever."""
    shared = torch.nn.Linear(4, 4)

    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.own = shared, torch.nn.Linear(4, 4)

        def forward(self, x):
            return poptorch.identity_loss(self.own(self.shared(x)), "mean")

    heads = [Head(), Head()]
    before = copy.deepcopy(heads)
    optimizers = [poptorch.optim.SGD(head.parameters(), lr=0.5) for head in heads]
    executors = [poptorch.trainingModel(h, opts, o) for h, o in zip(heads, optimizers, strict=True)]
    x = torch.ones(2, 4)

    def work(executor):
        for _ in range(3):
            executor(x)
            executor.copyWeightsToDevice()  # those of the host, which takes the step back
            executor(x)
            executor.destroy()

    together(*[lambda e=e: work(e) for e in executors])
    for head, old in zip(heads, before, strict=True):
        # Whole steps, each with the gradient of a mean over two rows of four, whatever the shared
        # part is at the time. Three of the six are taken back, unless the other thread asked for
        # the shared weights in between: then the host has the step already.
        steps = (old.own.bias - head.own.bias) / (0.5 * 0.25)
        torch.testing.assert_close(steps, steps[0].round().expand_as(steps))
        assert 3 <= steps[0].round() <= 6
        assert head.shared is shared and not shared.weight.equal(old.shared.weight)
        assert shared.weight.isfinite().all()


def test_threads_have_their_own_inputs_and_results(opts):
    class Triple(torch.nn.Module):
        def forward(self, x, scale=None):
            return x * 3 if scale is None else x * scale["s"]

    executor = poptorch.inferenceModel(Triple(), opts)

    def use(k):
        for i in range(100):
            value = torch.full((32,), float(k * 1000 + i))
            assert torch.equal(executor(value), value * 3)

    together(*[lambda k=k: use(k) for k in range(THREADS)])


def test_an_eager_model_beside_a_capture(opts):
    """Modules that other threads run meanwhile are no part of what is captured."""
    inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    captured = threading.Event()

    class Slow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())

        def forward(self, x):
            for _ in range(20):
                threading.Event().wait(0.005)
                x = self.layers(x)
            captured.set()
            return x

    model = Slow().eval()
    executor = poptorch.inferenceModel(model, opts)
    x = torch.ones(2, 3)
    expected = x
    for _ in range(20):
        expected = model.layers(expected)
    plain = inner(x)

    def eager():
        count = 0
        while not captured.is_set():
            assert torch.equal(inner(x), plain)
            count += 1
        assert count

    result, _ = together(lambda: executor(x), eager)
    torch.testing.assert_close(result, expected.detach())
