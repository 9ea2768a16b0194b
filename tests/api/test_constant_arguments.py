# SPDX-License-Identifier: Apache-2.0
"""Arguments that are no tensors are constants: later calls are compared with what they were when
the model was compiled, even if somebody changed the object since."""

import dataclasses
import enum

import numpy
import poptorch
import pytest
import torch

X = torch.tensor([1.0, 2.0])


class Settings:
    """Equal only to itself, as most classes are."""

    def __init__(self, scale):
        self.scale = scale
        self.nested = {"list": [1, scale], "self": self}


class Comparing(Settings):
    __hash__ = None

    def __eq__(self, other):
        return self.scale == other.scale


class Unequal(Settings):
    """Whose comparison does not answer with yes or no."""

    __hash__ = None

    def __eq__(self, other):
        return numpy.array([True, False])


class Slots:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale


@dataclasses.dataclass
class Config:
    scale: float


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Scales(torch.nn.Module):
    def forward(self, x, constant, read):
        return x * read(constant)


def attribute(constant):
    return constant.scale


def total(constant):
    return float(sum(constant))


def change_attribute(constant):
    constant.scale = 7.0


def change_nested(constant):
    constant.nested["list"].append(3)


def write(constant):
    constant[0] = 7.0


@pytest.mark.parametrize(
    "make, read, change, where",
    [
        (lambda: Settings(2.0), attribute, change_attribute, "constant.scale"),
        (lambda: Settings(2.0), attribute, change_nested, "constant.nested"),
        (lambda: Comparing(2.0), attribute, change_attribute, "constant"),
        (lambda: Unequal(2.0), attribute, change_attribute, "constant.scale"),
        (lambda: Slots(2.0), attribute, change_attribute, "constant.scale"),
        (lambda: Config(2.0), attribute, change_attribute, "constant"),
        (lambda: numpy.array([1.0, 1.0]), total, write, "constant"),
        (lambda: numpy.array([1.0, float("nan")]), lambda c: c[0], write, "constant"),
        (lambda: {1.0, 2.0}, total, lambda c: c.add(4.0), "constant"),
        (lambda: bytearray(b"\x02"), total, lambda c: c.append(1), "constant"),
        (lambda: [1.0, 2.0], total, write, "constant"),
        (lambda: {"a": [2.0]}, lambda c: c["a"][0], lambda c: write(c["a"]), "constant"),
        (
            lambda: [Settings(2.0)],
            lambda c: c[0].scale,
            lambda c: change_attribute(c[0]),
            "constant",
        ),
    ],
)
def test_a_changed_constant_is_noticed(opts, make, read, change, where):
    executor = poptorch.inferenceModel(Scales(), opts)
    constant = make()
    right = executor(X, constant, read)
    torch.testing.assert_close(right, X * read(constant))
    assert torch.equal(executor(X, constant, read), right)
    if not isinstance(constant, Unequal):
        assert torch.equal(executor(X, make(), read), right), (
            "another object with the same contents"
        )
    change(constant)
    for _ in range(2):
        with pytest.raises(poptorch.Error, match=f"mismatch for {where}"):
            executor(X, constant, read)
    executor.destroy()
    torch.testing.assert_close(executor(X, constant, read), X * read(constant))


def test_tensors_inside_an_object_are_constants(opts):
    class Holder:
        def __init__(self, tensor):
            self.tensor = tensor

    executor = poptorch.inferenceModel(Scales(), opts)
    holder = Holder(torch.tensor([3.0, float("nan")]))

    def read(constant):
        return constant.tensor

    executor(X, holder, read)
    executor(X, holder, read)
    holder.tensor[0] = 4.0
    with pytest.raises(poptorch.Error, match=r"Value mismatch for constant\.tensor"):
        executor(X, holder, read)


@pytest.mark.parametrize(
    "constant", [Colour.RED, torch.float16, len, Settings, torch.nn.ReLU(), float("nan"), None, "a"]
)
def test_constants_that_cannot_change_stay_equal(opts, constant):
    executor = poptorch.inferenceModel(Scales(), opts)

    def two(_):
        return 2.0

    for _ in range(2):
        assert torch.equal(executor(X, constant, two), X * 2)
    with pytest.raises(poptorch.Error, match="mismatch for constant"):
        executor(X, Colour.BLUE if isinstance(constant, Colour) else object(), two)


def test_an_object_that_refers_to_itself_can_be_a_constant(opts):
    @dataclasses.dataclass
    class Node:
        parent: object = None
        scale: float = 2.0

    node = Node()
    node.parent = node
    executor = poptorch.inferenceModel(Scales(), opts)
    for _ in range(2):
        assert torch.equal(executor(X, node, attribute), X * 2)
    node.scale = 3.0
    with pytest.raises(poptorch.Error, match="mismatch for constant"):
        executor(X, node, attribute)
