# SPDX-License-Identifier: Apache-2.0
"""Counters, random numbers and clocks of Python that forward uses: said once, with the line; and
what looks like one of them but is none."""

import collections
import datetime
import functools
import itertools
import logging
import os
import random
import time
import types
import uuid
from datetime import datetime as moment
from random import uniform
from time import perf_counter

import numpy as np
import poptorch
import pytest
import torch
from torch import nn

X = torch.arange(6.0).reshape(2, 3)
COUNTER = "changes in forward, but Python runs only once"
NUMBER = "forward reads a random number from Python"
CLOCK = "forward reads the time from Python"

calls = 0
table = {"calls": 0}
stack = [3, 2, 1]
namespace = types.SimpleNamespace(calls=0)
numbers = itertools.count()


class Model(nn.Module):
    """A module with something to count with, whose forward is a function of it."""

    shared = 0

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.n = 0
        self.flag = False
        self.rate = 1.0
        self.table = {"n": 0, "inner": {"n": 0}}
        self.items = [0, 0]
        self.queue = collections.deque([1.0, 2.0])
        self.array = np.zeros(2)
        self.helper = Helper()
        self.generator = random.Random(0)
        self.rng = np.random.default_rng(0)
        self.numbers = itertools.count()
        self.cycle = itertools.cycle([1.0, 2.0])
        self.schedule = iter([1.0, 2.0])
        self.squares = (i * i for i in itertools.count(1))
        self.system = random.SystemRandom()
        self.length = None
        self.cache = {}

    def forward(self, x):
        return self.function(self, x)


class Helper:
    """Not a module."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.calls


def said(caplog, model, *words, args=(X,)):
    """The warnings of one compilation that have one of the words."""
    options = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.inferenceModel(model, options)
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        executor(*args)
        executor(*args)
    texts = [record.getMessage() for record in caplog.records]
    return [text for text in texts if any(word in text for word in words)]


# Counters ----------------------------------------------------------------------------------------


def added(m, x):
    m.n += 1
    return x * m.n


def written_out(m, x):
    m.n = (m.n + 1) % 4
    return x * m.n


def through_a_local(m, x):
    n = m.n
    n = n + 1
    m.n = n
    return x * n


def after_a_branch(m, x):
    if m.n < 10:
        m.n += 1
    return x * m.n


def toggled(m, x):
    m.flag = not m.flag
    return x if m.flag else -x


def decayed(m, x):
    m.rate *= 0.5
    return x * m.rate


def in_a_dict(m, x):
    m.table["n"] += 1
    return x * m.table["n"]


def in_a_nested_dict(m, x):
    m.table["inner"]["n"] += 1
    return x + m.table["inner"]["n"]


def in_a_list(m, x):
    m.items[1] = m.items[1] + 1
    return x + m.items[1]


def taken_from_a_queue(m, x):
    return x * m.queue.popleft()


def appended(m, x):
    m.items.append(x.shape[0])
    return x * len(m.items)


def in_an_array(m, x):
    m.array[0] += 1
    return x * float(m.array[0])


def by_a_helper(m, x):
    return x * m.helper()


def on_the_class(m, x):
    Model.shared += 1
    return x * Model.shared


def global_name(m, x):
    global calls
    calls += 1
    return x * calls


def global_item(m, x):
    table["calls"] += 1
    return x * table["calls"]


def global_object(m, x):
    namespace.calls += 1
    return x * namespace.calls


def global_stack(m, x):
    return x * stack.pop()


def attribute_of_function(m, x):
    attribute_of_function.calls += 1
    return x * attribute_of_function.calls


attribute_of_function.calls = 0


def counted_iterator(m, x):
    return x * next(m.numbers)


def global_iterator(m, x):
    return x * next(numbers)


def cycled(m, x):
    return x * next(m.cycle)


def drawn_from_a_list(m, x):
    return x * next(m.schedule)


def drawn_from_a_generator(m, x):
    return x * next(m.squares)


def added_up(m, x):
    m.rate += x.sum()
    return x * m.rate


def closure():
    count = 0

    def forward(m, x):
        nonlocal count
        count += 1
        return x * count

    return forward


def closure_of_a_list():
    count = [0]

    def forward(m, x):
        count[0] += 1
        return x * count[0]

    return forward


COUNTERS = {
    added: "n (from 0 to 1)",
    written_out: "n (from 0 to 1)",
    through_a_local: "n (from 0 to 1)",
    after_a_branch: "n (from 0 to 1)",
    toggled: "flag (from False to True)",
    decayed: "rate (from 1.0 to 0.5)",
    in_a_dict: "table['n'] (from 0 to 1)",
    in_a_nested_dict: "table['inner']['n'] (from 0 to 1)",
    in_a_list: "items[1] (from 0 to 1)",
    taken_from_a_queue: "queue",
    appended: "items",
    in_an_array: "array[0] (from 0.0 to 1.0)",
    by_a_helper: "helper.calls (from 0 to 1)",
    on_the_class: "Model.shared",
    global_name: "calls (from ",
    global_item: "table['calls'] (from ",
    global_object: "namespace.calls (from ",
    global_stack: "stack",
    attribute_of_function: "attribute_of_function.calls (from ",
    counted_iterator: "numbers",
    global_iterator: "numbers",
    cycled: "cycle",
    drawn_from_a_list: "schedule",
    drawn_from_a_generator: "squares",
    added_up: "rate",
    closure(): "count (from 0 to 1)",
    closure_of_a_list(): "count[0] (from 0 to 1)",
}


@pytest.mark.parametrize("function", COUNTERS, ids=lambda f: f.__qualname__)
def test_a_counter_is_said_once_by_name(function, caplog):
    texts = said(caplog, Model(function), COUNTER)
    assert len(texts) == 1, texts
    assert texts[0].startswith(COUNTERS[function])
    assert "register_buffer" in texts[0]


def test_the_line_of_a_counter_is_given(caplog):
    (text,) = said(caplog, Model(added), COUNTER)
    assert __file__ in text and "m.n += 1" in text


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return x * self.steps


def test_many_layers_with_one_counter_are_one_warning(caplog):
    model = nn.Sequential(*[Counting() for _ in range(5)])
    (text,) = said(caplog, model, COUNTER)
    assert text.startswith("0.steps and 4 more like it")


def test_training_says_it_too(caplog):
    class Trained(Counting):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return poptorch.identity_loss(super().forward(x) * self.weight, "sum")

    executor = poptorch.trainingModel(Trained())
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        executor(X)
    assert sum(COUNTER in record.getMessage() for record in caplog.records) == 1


def test_a_hook_that_counts(caplog):
    seen = {"calls": 0}

    def hook(module, args):
        seen["calls"] += 1

    model = nn.Linear(3, 3)
    model.register_forward_pre_hook(hook)
    assert len(said(caplog, model, COUNTER)) == 1


def test_what_is_advised_counts(caplog):
    class Buffered(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x):
            self.n.add_(1)
            return x * self.n

    executor = poptorch.inferenceModel(Buffered())
    assert torch.equal(executor(X), X)
    assert torch.equal(executor(X), X * 2)
    assert not [r for r in caplog.records if COUNTER in r.getMessage()]


# What is no counter ------------------------------------------------------------------------------


def cached_length(m, x):
    if m.length is None or x.shape[0] > m.length:
        m.length = x.shape[0]
    return x * m.length


def cached_length_in_arithmetic(m, x):
    m.n = x.shape[0] * 2
    return x * m.n


def cached_by_key(m, x):
    if "rows" not in m.cache:
        m.cache["rows"] = x.shape[0] + 1
    return x * m.cache["rows"]


def cached_by_number(m, x):
    m.cache[0] = x.shape[0] * 2
    rows = m.cache
    rows[1] = x.shape[1] + x.shape[0]
    return x * m.cache[0]


def longest(m, x):
    m.n = max(m.n, x.shape[0])
    return x * m.n


def set_and_then_counted(m, x):
    m.n = 0
    for _ in range(3):
        m.n += 1
    return x * m.n


def same_value(m, x):
    m.n = m.n * 1
    m.flag = bool(m.flag)
    return x


def balanced(m, x):
    m.n += 1
    m.items.append(1)
    try:
        return x + m.items.pop()
    finally:
        m.n -= 1


def local_counter(m, x):
    n = 0
    parts = []
    for row in x:
        n += 1
        parts.append(row * n)
    return torch.stack(parts)


def lazily(m, x):
    if not hasattr(m, "scale"):
        m.scale = 2.0 * x.shape[0]
    return x * m.scale


def seen_once(m, x):
    if x.shape not in m.items:
        m.items.append(x.shape)
    return x


NO_COUNTERS = [
    cached_length,
    cached_length_in_arithmetic,
    cached_by_key,
    cached_by_number,
    longest,
    set_and_then_counted,
    same_value,
    balanced,
    local_counter,
    lazily,
    seen_once,
]


@pytest.mark.parametrize("function", NO_COUNTERS, ids=lambda f: f.__name__)
def test_caches_are_no_counters(function, caplog):
    assert said(caplog, Model(function), COUNTER, NUMBER, CLOCK) == []


def test_counters_outside_of_forward_are_not_meant(caplog):
    global calls
    model = Model(lambda m, x: x + 1)
    options = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.inferenceModel(model, options)
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        for _ in range(3):
            calls += 1
            model.n += 1
            executor(X)
    assert caplog.records == []


# Random numbers and clocks -----------------------------------------------------------------------


def local_import(m, x):
    import random as other

    return x * other.random()


READS = {
    "random": (lambda m, x: x * random.random(), NUMBER),
    "randint": (lambda m, x: x if random.randint(0, 3) else -x, NUMBER),
    "choice": (lambda m, x: x * random.choice([1.0, 2.0]), NUMBER),
    "shuffle": (lambda m, x: random.shuffle([1, 2, 3]) or x + 1, NUMBER),
    "imported name": (lambda m, x: x * uniform(0, 1), NUMBER),
    "import in forward": (local_import, NUMBER),
    "numpy": (lambda m, x: x * float(np.random.rand()), NUMBER),
    "numpy integers": (lambda m, x: x * int(np.random.randint(3)), NUMBER),
    "urandom": (lambda m, x: x * os.urandom(1)[0], NUMBER),
    "uuid": (lambda m, x: x * (uuid.uuid4().int % 7), NUMBER),
    "new numpy generator": (lambda m, x: x * float(np.random.default_rng().random()), NUMBER),
    "own generator": (lambda m, x: x * m.generator.random(), "generator " + COUNTER),
    "numpy generator": (lambda m, x: x * float(m.rng.random()), "rng " + COUNTER),
    "time": (lambda m, x: x * time.time(), CLOCK),
    "monotonic": (lambda m, x: x * time.monotonic_ns(), CLOCK),
    "imported clock": (lambda m, x: x * perf_counter(), CLOCK),
    "datetime": (lambda m, x: x * datetime.datetime.now().second, CLOCK),
    "imported datetime": (lambda m, x: x * moment.now().second, CLOCK),
    "date": (lambda m, x: x * datetime.date.today().day, CLOCK),
}


@pytest.mark.parametrize("name", READS)
def test_what_python_gives_anew_each_time_is_frozen(name, caplog):
    function, words = READS[name]
    texts = said(caplog, Model(function), COUNTER, NUMBER, CLOCK)
    assert len(texts) == 1 and texts[0].startswith(words), texts
    if words in (NUMBER, CLOCK) and name != "import in forward":
        assert __file__ in texts[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x * random.Random(3).random(),
        lambda m, x: x * float(np.random.default_rng(3).random()),
        lambda m, x: x * datetime.datetime(2020, 1, 2).day,
        lambda m, x: x * len(os.sep),
    ],
)
def test_what_gives_the_same_each_time(function, caplog):
    assert said(caplog, Model(function), COUNTER, NUMBER, CLOCK) == []


class Prickly:
    """Does not like to be looked at."""

    def __getattribute__(self, name):
        if name != "__class__":  # torch looks at that itself
            raise ValueError(name)
        return Prickly

    def __eq__(self, other):
        raise ValueError("equal?")

    __hash__ = None


def test_objects_that_can_not_be_looked_at(caplog):
    model = Model(lambda m, x: x + 1)
    model.prickly = Prickly()
    model.more = {"prickly": [Prickly()]}
    assert said(caplog, model, COUNTER) == []


def test_methods_that_are_no_functions():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = types.MethodType(functools.partial(torch.mul, X), torch.tensor(2.0))

        def forward(self, x):
            return x + self.scaled()

    assert torch.equal(poptorch.inferenceModel(Scaled())(X), X + 2 * X)


def test_names_are_what_they_were_after_capture(caplog):
    before = random, time, datetime, np, moment, uniform, perf_counter
    said(caplog, Model(lambda m, x: x * random.random() * time.time()), NUMBER)
    after = random, time, datetime, np, moment, uniform, perf_counter
    assert all(a is b for a, b in zip(before, after, strict=True))

    def fails(m, x):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        said(caplog, Model(fails))
    assert (random, time) == before[:2]


def test_dates_are_dates_while_captured(caplog):
    def forward(m, x):
        then = moment(2020, 1, 2) + datetime.timedelta(days=1)
        assert isinstance(then, moment) and isinstance(then, datetime.date)
        assert isinstance(moment.now(), moment) and type(moment.now()) is type(then)
        return x * then.day

    model = Model(forward)
    assert torch.equal(poptorch.inferenceModel(model)(X), X * 3)


def test_reading_outside_of_forward_is_not_meant(caplog):
    class Seeded(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = random.random()

        def forward(self, x):
            return x * self.scale

    model = Seeded()
    random.random()
    assert said(caplog, model, NUMBER, CLOCK, COUNTER) == []


def test_torch_draws_on_every_call(caplog):
    model = Model(lambda m, x: x + torch.rand(3))
    executor = poptorch.inferenceModel(model)
    assert not torch.equal(executor(X), executor(X))
    assert caplog.records == []
