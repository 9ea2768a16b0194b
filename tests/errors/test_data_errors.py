# SPDX-License-Identifier: Apache-2.0
"""Data and circumstances that fail a call of a compiled model: each a typed error, nothing read or
written out of place, weights as they were, and a next call that works."""

import copy
import linecache
import os
import signal
import subprocess
import sys
import threading
import time

import poptorch
import pytest
import torch
from api_support import Regression, eager_step
from torch import nn


class Classifier(nn.Module):
    """An embedding, a linear layer and a loss over classes."""

    def __init__(self, loss):
        super().__init__()
        self.table = nn.Embedding(10, 6)
        self.linear = nn.Linear(6, 5)
        self.loss = loss

    def forward(self, index, label):
        out = self.linear(self.table(index))  # embedding
        if isinstance(self.loss, nn.NLLLoss):
            out = out.log_softmax(1)
        return out, self.loss(out, label)  # loss


INDEX, LABEL = torch.arange(8) % 10, torch.arange(8) % 5
LOSSES = [nn.CrossEntropyLoss(), nn.NLLLoss(), nn.CrossEntropyLoss(reduction="sum")]
OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.AdamW(p, lr=0.01),
]


def at(value, position, values):
    """A copy of `values` with one of them replaced."""
    changed = values.clone()
    changed[position] = value
    return changed


BAD = [
    (at(10, 7, INDEX), LABEL, r"\[embedding\] index 10 is out of bounds", "# embedding"),
    (at(-1, 0, INDEX), LABEL, r"\[embedding\] index -1 is out of bounds", "# embedding"),
    (at(2**62, 3, INDEX), LABEL, r"index 4611686018427387904 is out of bounds", "# embedding"),
    (INDEX, at(5, 7, LABEL), r"\[nll_loss\] target 5 is out of bounds for 5", "# loss"),
    (INDEX, at(-1, 0, LABEL), r"\[nll_loss\] target -1 is out of bounds", "# loss"),
    (INDEX, at(2**40, 4, LABEL), r"\[nll_loss\] target 1099511627776 is out", "# loss"),
]


def assert_line(error, mark):
    """The location is the marked line of this file, then the module's name."""
    file, _, line = error.location.split(" ")[0].rpartition(":")
    assert file == __file__ and mark in linecache.getline(file, int(line))
    assert error.location in str(error)


@pytest.mark.parametrize("make", OPTIMIZERS, ids=["sgd", "adamw"])
@pytest.mark.parametrize("loss", LOSSES, ids=["cross_entropy", "nll", "sum"])
def test_an_index_out_of_range_changes_nothing(opts, loss, make):
    torch.manual_seed(0)
    model = Classifier(loss)
    eager = copy.deepcopy(model)
    training = poptorch.trainingModel(model, opts, make(model.parameters()))
    optimizer = make(eager.parameters())
    training(INDEX, LABEL)
    eager_step(eager, optimizer, INDEX, LABEL)
    for index, label, text, mark in BAD:
        with pytest.raises(poptorch.Error, match=text) as caught:
            training(index, label)
        assert_line(caught.value, mark)
    for _ in range(2):  # the optimizer's state is as it was, too
        _, ours = training(INDEX, LABEL)
        torch.testing.assert_close(ours, eager_step(eager, optimizer, INDEX, LABEL))
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)


def test_an_index_out_of_range_in_a_later_iteration_keeps_what_came_before(opts):
    torch.manual_seed(0)
    model = Classifier(nn.CrossEntropyLoss())
    eager = copy.deepcopy(model)
    make = OPTIMIZERS[0]
    training = poptorch.trainingModel(model, opts.deviceIterations(4), make(model.parameters()))
    optimizer = make(eager.parameters())
    with pytest.raises(poptorch.Error, match="index 10 is out of bounds"):
        training(at(10, 5, INDEX), LABEL)
    for rows in (slice(0, 2), slice(2, 4)):
        eager_step(eager, optimizer, INDEX[rows], LABEL[rows])
    torch.testing.assert_close(model.linear.weight, eager.linear.weight)
    training(INDEX, LABEL)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.gather(0, i.unsqueeze(1).expand(-1, 3)),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x[i],
        lambda x, i: torch.zeros_like(x).scatter_add(0, i.unsqueeze(1).expand(-1, 3), x[:2]),
        lambda x, i: x.index_put((i,), torch.zeros(3)),
    ],
    ids=["gather", "index_select", "index", "scatter_add", "index_put"],
)
def test_other_ops_with_an_index(opts, function):
    class Indexes(nn.Module):
        def forward(self, x, index):
            return function(x, index)

    executor = poptorch.inferenceModel(Indexes(), opts)
    x, good = torch.randn(4, 3), torch.tensor([3, 1])
    for bad in (4, -5, 2**50):
        with pytest.raises(poptorch.Error, match=f"index {bad} is out of bounds") as caught:
            executor(x, torch.tensor([0, bad]))
        assert caught.value.location.startswith(__file__)
        torch.testing.assert_close(executor(x, good), function(x, good))


def test_an_error_belongs_to_the_executor_that_made_it(opts):
    """Two programs run side by side, one with bad data: only that one fails."""
    good = poptorch.inferenceModel(Classifier(LOSSES[0]), opts)
    bad = poptorch.inferenceModel(Classifier(LOSSES[0]), opts)
    for executor in (good, bad):
        executor(INDEX, LABEL)
    failures = {"good": 0, "bad": 0}

    def work(name, executor, label):
        for _ in range(300):
            try:
                executor(INDEX, label)
            except poptorch.Error:
                failures[name] += 1

    threads = [
        threading.Thread(target=work, args=("good", good, LABEL)),
        threading.Thread(target=work, args=("bad", bad, at(9, 0, LABEL))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == {"good": 0, "bad": 300}


# Calls that differ from the first ----------------------------------------------------------------


@pytest.mark.parametrize("iterations, accumulation", [(2, 1), (1, 3), (2, 3)])
def test_a_batch_that_is_no_multiple(regression, opts, iterations, accumulation):
    opts.deviceIterations(iterations).Training.gradientAccumulation(accumulation)
    training = poptorch.trainingModel(regression, opts)
    pieces = iterations * accumulation
    rows = 2 * pieces + 1
    with pytest.raises(AssertionError, match="Invalid batch dimension: In the input") as caught:
        training(torch.ones(rows, 3), torch.ones(rows, 2))
    for number in (rows, iterations, accumulation, pieces):
        assert str(number) in str(caught.value)
    training(torch.ones(2 * pieces, 3), torch.ones(2 * pieces, 2))
    with pytest.raises(poptorch.Error, match=r"Shape mismatch for x.*\n.*destroy\(\)"):
        training(torch.ones(pieces, 3), torch.ones(pieces, 2))
    training(torch.ones(2 * pieces, 3), torch.ones(2 * pieces, 2))


def test_short_last_batch_of_a_loader(regression, opts):
    data = torch.utils.data.TensorDataset(torch.ones(10, 3), torch.ones(10, 2))
    loader = poptorch.DataLoader(opts, data, batch_size=4, drop_last=False)
    training = poptorch.trainingModel(regression, opts)
    with pytest.raises(poptorch.Error, match="Shape mismatch for x: expected .*4, 3.* but got .*2"):
        for x, target in loader:
            training(x, target)
    training(torch.ones(4, 3), torch.ones(4, 2))


def test_training_with_inputs_that_need_gradients(regression, batch, opts, log):
    eager = copy.deepcopy(regression)
    training = poptorch.trainingModel(regression, opts)
    x = batch[0].clone().requires_grad_()
    for _ in range(2):
        training(x, batch[1])
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.01)
    for _ in range(2):
        eager_step(eager, optimizer, *batch)
    torch.testing.assert_close(regression.linear.weight, eager.linear.weight)
    assert x.grad is None and x.requires_grad, "the caller's tensor is left alone"
    assert log.text.count("Input tensor has requires_grad=True set") == 1


def test_a_call_after_destroy_compiles_again(regression, batch, opts):
    eager = copy.deepcopy(regression)
    make = OPTIMIZERS[1]
    training = poptorch.trainingModel(regression, opts, make(regression.parameters()))
    training(*batch)
    training.destroy()
    assert not training.isCompiled() and type(regression) is Regression
    for call in (training.copyWeightsToHost, training.copyWeightsToDevice):
        with pytest.raises(poptorch.Error, match="has not been compiled or has been destroyed"):
            call()
    training.destroy()  # a second time does nothing
    eager_step(eager, make(eager.parameters()), *batch)
    torch.testing.assert_close(training(*batch)[1], eager(*batch)[1].detach())


def test_the_number_of_threads_may_change_between_calls(opts):
    """A program keeps the number it was compiled for; nothing hangs, results stay the same."""
    before = torch.get_num_threads()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()
    x = torch.randn(16, 3, 8, 8)
    try:
        torch.set_num_threads(2)
        two = poptorch.inferenceModel(model, opts)
        expected = two(x)
        for threads in (1, 4, 2):
            torch.set_num_threads(threads)
            assert torch.equal(two(x), expected)
            torch.testing.assert_close(poptorch.inferenceModel(model, opts)(x), expected)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


# Other processes ---------------------------------------------------------------------------------


def test_a_loader_with_workers_feeds_a_model(regression, opts):
    """Workers are forked after the model's threads were started."""
    eager = copy.deepcopy(regression)
    x, target = torch.randn(32, 3), torch.randn(32, 2)
    training = poptorch.trainingModel(regression, opts)
    training.compile(x[:4], target[:4])
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(x, target)
    loader = poptorch.DataLoader(opts, data, batch_size=4, num_workers=2)
    for _ in range(2):
        seen = 0
        for number, (a, b) in enumerate(loader):
            rows = slice(4 * number, 4 * number + 4)
            assert torch.equal(a, x[rows]) and torch.equal(b, target[rows])
            _, ours = training(a, b)
            torch.testing.assert_close(ours, eager_step(eager, optimizer, a, b))
            seen += 1
        assert seen == 8


def run_script(text, timeout=60, **environment):
    """Runs a program in a process of its own; returns what it printed."""
    script = "import poptorch, torch, os, signal, threading, time\n"
    script += "opts = poptorch.Options().showCompilationProgressBar(False)\n" + text
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout, done.stderr


MODEL = """
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                            torch.nn.Linear(288, 10)).eval()
executor = poptorch.inferenceModel(model, opts)
x = torch.randn(16, 3, 8, 8)
expected = executor(x)
assert torch.allclose(expected, model(x), atol=1e-5)
"""


def test_an_executor_works_in_a_forked_child():
    """The child has none of its parent's threads: it runs and compiles with one."""
    script = """
child = os.fork()
if child == 0:
    signal.alarm(30)
    same = torch.equal(executor(x), expected)
    executor.destroy()
    same &= torch.allclose(executor(x), expected, atol=1e-5)
    os._exit(7 if same else 8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.equal(executor(x), expected))
"""
    assert run_script(MODEL + script)[:2] == (0, "7 True\n")


@pytest.mark.parametrize("name, value", [("OMP_THREAD_LIMIT", "1"), ("OMP_DYNAMIC", "true")])
def test_fewer_threads_than_asked_for_do_not_hang(name, value):
    script = "torch.set_num_threads(2)" + MODEL + "print(torch.equal(executor(x), expected))"
    assert run_script(script, **{name: value})[:2] == (0, "True\n")


def test_an_error_that_ends_the_process_is_the_last_thing_it_says():
    script = "\nexecutor(x[:1])\n"
    code, _, err = run_script(MODEL + script)
    assert code == 1
    lines = err.strip().splitlines()
    assert lines[-2].startswith("poptorch.poptorch_core.Error: 'poptorch_py_error': Shape mismatch")
    assert "destroy()" in lines[-1]


# Ctrl-C ------------------------------------------------------------------------------------------


class Deep(nn.Module):
    """One micro-batch of it takes seconds."""

    def __init__(self, layers, size):
        super().__init__()
        self.layers = layers
        self.weight = nn.Parameter(torch.randn(size, size) / size**0.5)

    def forward(self, x):
        for _ in range(self.layers):
            x = torch.tanh(x @ self.weight)
        return poptorch.identity_loss(x.pow(2), "mean")


def test_ctrl_c_inside_one_long_micro_batch(opts):
    model = Deep(30, 1024)
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.0))
    x = torch.randn(1024, 1024)
    training.compile(x)
    start = time.perf_counter()
    expected = training(x)
    whole = time.perf_counter() - start
    sent = []

    def interrupt():
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(whole / 8, interrupt).start()
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        training(x)
    end = time.perf_counter()
    assert end - sent[0] < 1.0
    assert end - start < 0.7 * whole, "it stopped in the middle"
    assert torch.equal(training(x), expected)


def test_a_signal_handler_of_the_user_runs_during_a_call(opts):
    """It may raise what it likes, or nothing, and then the call goes on."""
    model = Deep(4, 256)
    executor = poptorch.inferenceModel(model, opts.deviceIterations(200))
    x = torch.randn(200 * 256, 256)
    executor.compile(x)
    expected = executor(x)
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        assert torch.equal(executor(x), expected)
        assert seen
        signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        with pytest.raises(ZeroDivisionError):
            executor(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert torch.equal(executor(x), expected)


# Memory ------------------------------------------------------------------------------------------


class Wide(nn.Module):
    """Needs `gib` GiB, and as much again for what is sorted."""

    def __init__(self, gib):
        super().__init__()
        self.gib = gib

    def forward(self, x):
        if self.gib == 0:
            return x + 1
        wide = x.expand(self.gib, 2**28).clone()
        return torch.sort(wide, 1)[0].sum()


def test_a_plan_that_the_machine_has_no_room_for(opts):
    """The system would grant each part of it, and kill the process when they are used."""
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) >> 20
    executor = poptorch.inferenceModel(Wide(total // 2 + 1), opts)
    with pytest.raises(poptorch.Error, match="the program needs .* GiB at once but") as caught:
        executor(torch.ones(1))
    assert caught.value.type == "memory"
    assert "smaller micro-batch with gradientAccumulation" in str(caught.value), "what to try"
    assert not executor.isCompiled()
    executor.model.gib = 0
    assert torch.equal(executor(torch.ones(1)), torch.full((1,), 2.0))
