# SPDX-License-Identifier: Apache-2.0
"""Arguments by name: whatever the order of keys, a tensor reaches the name it was passed under."""

import collections
import dataclasses
import types
from typing import Any, NamedTuple

import poptorch
import pytest
import torch

X, Y = torch.tensor([1.0, 2.0]), torch.tensor([30.0, 50.0])


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Batch:
    x: Any
    y: Any
    note: str = "none"


@dataclasses.dataclass(frozen=True)
class Fixed:
    y: Any
    x: Any
    total: Any = dataclasses.field(init=False, default=None)

    def __post_init__(self):
        object.__setattr__(self, "total", self.x + self.y)


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x", "y")
    x: Any
    y: Any


class Attributes(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


def combine(x, y):
    return 2 * x - y


class ByKey(torch.nn.Module):
    def forward(self, batch):
        return combine(batch["x"], batch["y"])


class ByAttribute(torch.nn.Module):
    def forward(self, batch):
        return combine(batch.x, batch.y)


class Bag(torch.nn.Module):
    def forward(self, **batch):
        return combine(batch["x"], batch["y"])


class Deep(torch.nn.Module):
    """Takes the innermost pair of names out of any nesting."""

    def forward(self, batch):
        while not (isinstance(batch, dict) and "x" in batch):
            if isinstance(batch, dict):
                batch = batch["inner"]
            else:
                batch = batch.x if hasattr(batch, "x") else batch[0]
        return combine(batch["x"], batch["y"])


def swapped(make, x, y):
    """The same call with the keys in another order."""
    return make({"y": y, "x": x})


def check(executor, eager, call, *others):
    """The first call compiles; each other one is run twice, the second time by the form that was
    learnt."""
    for args, kwargs in (call, *others, *others):
        torch.testing.assert_close(executor(*args, **kwargs), eager(*args, **kwargs))


@pytest.mark.parametrize(
    "kind",
    [
        dict,
        collections.OrderedDict,
        Attributes,
        collections.UserDict,
        types.MappingProxyType,
        lambda items: collections.defaultdict(list, items),
    ],
)
def test_keys_of_a_dict_may_come_in_any_order(opts, kind):
    executor = poptorch.inferenceModel(ByKey(), opts)
    check(
        executor,
        ByKey(),
        ((kind({"x": X, "y": Y}),), {}),
        ((kind({"y": Y, "x": X}),), {}),
        ((kind({"y": X, "x": Y}),), {}),
        ((), {"batch": kind({"y": X, "x": Y})}),
    )


@pytest.mark.parametrize(
    "wrap",
    [
        lambda d: {"outer": 1, "inner": d},
        lambda d: {"inner": {"inner": d, "other": X}},
        lambda d: [d, X],
        lambda d: (d,),
        lambda d: Pair(d, X),
        lambda d: Batch(d, X),
        lambda d: {"inner": [Pair((d,), 3)]},
        lambda d: collections.deque([d, X], maxlen=2),
    ],
)
def test_names_decide_at_any_depth(opts, wrap):
    executor = poptorch.inferenceModel(Deep(), opts)
    check(
        executor,
        Deep(),
        ((wrap({"x": X, "y": Y}),), {}),
        ((wrap({"y": Y, "x": X}),), {}),
        ((wrap({"y": X, "x": Y}),), {}),
    )


def test_keyword_arguments_may_come_in_any_order(opts):
    check(
        poptorch.inferenceModel(Bag(), opts),
        Bag(),
        ((), {"x": X, "y": Y}),
        ((), {"y": Y, "x": X}),
        ((), {"y": X, "x": Y}),
        ((), {"x": Y, "y": X}),
    )


def test_names_beside_positions_and_defaults(opts):
    class Mixed(torch.nn.Module):
        def forward(self, a, /, b, *rest, c=None, d=1, **more):
            out = a + 10 * b + sum(100 * r for r in rest)
            out = out if c is None else out + 1000 * c
            return out * d + more["p"] - 3 * more["q"]

    p, q = X + 5, Y + 7
    check(
        poptorch.inferenceModel(Mixed(), opts),
        Mixed(),
        ((X, Y), {"p": p, "q": q, "c": X}),
        ((X, Y), {"q": q, "c": X, "p": p}),
        ((X,), {"q": q, "c": X, "b": Y, "p": p}),
        ((Y,), {"q": p, "p": q, "c": Y, "b": X}),
    )


@pytest.mark.parametrize("kind", [Pair, Batch, Fixed, Slotted, types.SimpleNamespace])
def test_fields_are_found_by_name(opts, kind):
    if kind is types.SimpleNamespace:

        class Parser(poptorch.ICustomArgParser):
            def yieldTensors(self, struct):  # noqa: N802
                yield struct.y
                yield struct.x

            def reconstruct(self, original_structure, tensor_iterator):
                y, x = next(tensor_iterator), next(tensor_iterator)
                return types.SimpleNamespace(x=x, y=y)

        poptorch.registerCustomArgParser(kind, Parser())
    try:
        check(
            poptorch.inferenceModel(ByAttribute(), opts),
            ByAttribute(),
            ((kind(x=X, y=Y),), {}),
            ((kind(y=Y, x=X),), {}),
            ((kind(y=X, x=Y),), {}),
        )
    finally:
        poptorch.registerCustomArgParser(types.SimpleNamespace, None)


def test_computed_fields_of_a_dataclass_are_inputs_too(opts):
    class Total(torch.nn.Module):
        def forward(self, batch):
            return batch.total * 2

    check(
        poptorch.inferenceModel(Total(), opts), Total(), ((Fixed(X, Y),), {}), ((Fixed(Y, Y),), {})
    )


def test_dataclasses_and_mappings_are_returned_with_real_tensors(opts):
    class Returns(torch.nn.Module):
        def forward(self, x):
            return Batch(x + 1, {"twice": [x * 2]}, "kept"), collections.UserDict(z=x * 3)

    executor = poptorch.inferenceModel(Returns(), opts)
    for value in (X, Y):
        batch, mapping = executor(value)
        assert type(batch) is Batch and batch.note == "kept"
        assert type(mapping) is collections.UserDict
        assert torch.equal(batch.x, value + 1) and torch.equal(batch.y["twice"][0], value * 2)
        assert torch.equal(mapping["z"], value * 3)


def test_changes_in_place_reach_the_tensor_of_that_name(opts):
    class Writes(torch.nn.Module):
        def forward(self, batch):
            batch["x"].add_(batch["y"])
            return batch["y"] * 2

    executor = poptorch.inferenceModel(Writes(), opts)
    for keys in ("xy", "yx", "yx"):
        values = {"x": X.clone(), "y": Y.clone()}
        executor({key: values[key] for key in keys})
        assert torch.equal(values["x"], X + Y) and torch.equal(values["y"], Y)


def test_training_by_name(opts):
    class Trains(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(2))

        def forward(self, **batch):
            return torch.nn.functional.mse_loss(batch["data"] * self.w, batch["labels"])

    ours, twin = Trains(), Trains()
    training = poptorch.trainingModel(ours, opts, torch.optim.SGD(ours.parameters(), lr=0.01))
    eager = torch.optim.SGD(twin.parameters(), lr=0.01)
    for order in (("data", "labels"), ("labels", "data"), ("labels", "data")):
        values = {"data": X, "labels": Y}
        batch = {key: values[key] for key in order}
        eager.zero_grad()
        loss = twin(**batch)
        loss.backward()
        eager.step()
        torch.testing.assert_close(training(**batch), loss.detach())
    torch.testing.assert_close(ours.w.detach(), twin.w.detach())


@pytest.mark.parametrize(
    "first, later, text",
    [
        ({"x": X, "y": Y}, {"x": X}, r"Keys mismatch for batch: Missing arguments: y\."),
        (
            {"x": X, "y": Y},
            {"y": Y, "x": X, "z": X},
            r"Keys mismatch for batch: Unexpected arguments: z\.",
        ),
        (
            {"x": X, "y": Y},
            {"x": X, "Y": Y},
            "Keys mismatch for batch: Unexpected arguments: Y Missing arguments: y",
        ),
        (
            {"inner": [{"x": X, "y": Y}]},
            {"inner": [{"x": X}]},
            r"Keys mismatch for batch\[inner\]\[0\]: Missing arguments: y",
        ),
        (
            {"inner": Batch({"x": X, "y": Y}, 1)},
            {"inner": Batch({"x": X}, 1)},
            r"Keys mismatch for batch\[inner\]\.x: Missing arguments: y",
        ),
        (
            {"x": X, "y": Y},
            {"y": Y[:1], "x": X},
            r"Shape mismatch for batch\[y\]: expected torch.Size\(\[2\]\) but got",
        ),
        ({"x": X, "y": Y, "k": 1}, {"k": 2, "y": Y, "x": X}, r"Value mismatch for batch\[k\]"),
        (Batch({"x": X, "y": Y}, 1), Batch({"x": X, "y": Y}, 2), r"Value mismatch for batch\.y"),
        (Batch({"x": X, "y": Y}, 1), Pair({"x": X, "y": Y}, 1), "Type mismatch for batch"),
    ],
)
def test_errors_say_which_name_is_wrong(opts, first, later, text):
    executor = poptorch.inferenceModel(Deep(), opts)
    right = executor(first)
    for _ in range(2):
        with pytest.raises(poptorch.Error, match=text):
            executor(later)
    assert torch.equal(executor(first), right)


@pytest.mark.parametrize(
    "later, text",
    [
        ({"x": X}, "Keys mismatch for named arguments: Missing arguments: y"),
        ({"x": X, "y": Y, "z": X}, "Keys mismatch for named arguments: Unexpected arguments: z"),
    ],
)
def test_errors_name_keywords(opts, later, text):
    executor = poptorch.inferenceModel(Bag(), opts)
    executor(x=X, y=Y)
    with pytest.raises(poptorch.Error, match=text):
        executor(**later)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_combined_by_name(opts, workers):
    class Shuffled(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            items = {"x": torch.tensor([1.0 * i]), "y": torch.tensor([-1.0 * i])}
            return dict(reversed(items.items())) if i % 2 else items

    def collate(samples):
        return {key: torch.stack([s[key] for s in samples]) for key in samples[0]}

    sampler = torch.utils.data.BatchSampler(range(4), 1, False)
    loader = poptorch.DataLoader(
        opts.deviceIterations(4),
        Shuffled(),
        batch_sampler=sampler,
        collate_fn=collate,
        num_workers=workers,
    )
    (batch,) = list(loader)
    assert torch.equal(batch["x"], -batch["y"])
    assert torch.equal(batch["x"].flatten(), torch.arange(4.0))


def test_tensors_of_a_training_model_can_be_arguments(opts, regression, batch):
    """With their newest values, on the side of the model's own training and of another program."""

    class Adds(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    class Anchored(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("start", torch.zeros(2))
            self.w = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            self.start.add_(1)
            return poptorch.identity_loss(self.w * x, "sum")

    model, adds = Anchored(), poptorch.inferenceModel(Adds(), opts)
    assert torch.equal(adds(model.start, model.w), torch.ones(2))
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1.0))
    for i in range(1, 4):
        training(model.start if i == 1 else torch.full((2,), float(i - 1)))
        assert torch.equal(adds(model.start, model.w), torch.full((2,), i + 1.0 - sum(range(i))))
    with pytest.raises(poptorch.Error, match="but got <class 'torch.nn.parameter.Parameter'>"):
        adds(model.w, model.w)


def test_one_tensor_as_two_arguments_is_a_quick_call(opts):
    model = poptorch.inferenceModel(Bag(), opts)
    model(x=X, y=Y)
    for x, y in ((X, X), (Y, Y), (X, Y), (X, X)):
        assert torch.equal(model(x=x, y=y), combine(x, y))
    assert model._executable.match((), {"x": X, "y": X}) is not None
    assert model._executable.match((), {"x": X, "y": Y}) is not None
    assert model._executable.match((), {"x": X, "y": X.double()}) is None
