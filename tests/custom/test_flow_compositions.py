# SPDX-License-Identifier: Apache-2.0
"""Loops and branches in a composition, and their gradients."""

import poptorch
import pytest
import torch
from custom_support import custom, load_door
from function_model import Call

# A power by a loop whose body reads a capture.
POWER = """tessera 1
graph "g" {
  input %0 "x" : f32[4]
  %1 = full(1.0) : f32[4]
  %2 = scan(5, [%1], [], [%0], false) {
    input %0 "p" : f32[4]
    input %1 "x" : f32[4]
    %2 = mul(%0, %1) : f32[4]
    output %2
  } : f32[4]
  output %2
}
"""

# x * x where the sum of x is positive, else -x.
EITHER = """tessera 1
graph "g" {
  input %0 "x" : f32[4]
  %1 = sum(%0, [0], false) : f32[]
  %2 = gt(%1, 0.0) : bool[]
  %3 = branch(%2, [%0]) {
    input %0 "x" : f32[4]
    %1 = mul(%0, %0) : f32[4]
    output %1
  } {
    input %0 "x" : f32[4]
    %1 = neg(%0) : f32[4]
    output %1
  } : f32[4]
  output %3
}
"""

# Doubles as long as the largest is below 100, in a loop in a loop.
DOUBLES = """tessera 1
graph "g" {
  input %0 "x" : f32[4]
  %1 = full(true) : bool[]
  %2 = scan(2, [%0], [], [%1], false) {
    input %0 "x" : f32[4]
    input %1 "go" : bool[]
    %2, %3 = while([%1, %0], [%0]) {
      input %0 "go" : bool[]
      input %1 "y" : f32[4]
      input %2 "x" : f32[4]
      %3 = add(%1, %2) : f32[4]
      %4 = amax(%3, [0], false) : f32[]
      %5 = lt(%4, 100.0) : bool[]
      output %5, %3
    } : bool[], f32[4]
    output %3
  } : f32[4]
  output %2
}
"""

SLICES = """tessera 1
graph "g" {
  input %0 "x" : f32[4]
  %1 = full(0.0) : f32[]
  %2, %3 = scan(4, [%1], [%0], [], false) {
    input %0 "s" : f32[]
    input %1 "x" : f32[]
    %2 = add(%0, %1) : f32[]
    output %2, %2
  } : f32[], f32[4]
  output %3
}
"""

HOST = """tessera 1
graph "g" {
  input %0 "x" : f32[4]
  %1 = scan(4, [%0], [], [], false) {
    input %0 "x" : f32[4]
    %1 = host_call("aten::frac", %0) : f32[4]
    output %1
  } : f32[4]
  output %1
}
"""


@pytest.fixture(scope="module", autouse=True)
def _library():
    load_door()


def op(text):
    return lambda x: custom([x], "Text", text=text, shape=[4])


def doubled(x):
    for _ in range(2):
        y = x
        while True:
            y = y + x
            if float(y.max()) >= 100:
                break
        x = y
    return x


@pytest.mark.parametrize(
    ("text", "function", "x"),
    [
        (POWER, lambda x: x**5, [1.0, -2.0, 0.5, 3.0]),
        (EITHER, lambda x: x * x, [1.0, -2.0, 0.5, 3.0]),
        (EITHER, lambda x: -x, [1.0, -2.0, 0.5, -3.0]),
        (DOUBLES, doubled, [1.0, 7.0, -3.0, 0.0]),
    ],
)
def test_values(text, function, x):
    x = torch.tensor(x)
    torch.testing.assert_close(poptorch.inferenceModel(Call(op(text)))(x), function(x))


class _Fit(torch.nn.Module):
    def __init__(self, function, x):
        super().__init__()
        self.function = function
        self.x = torch.nn.Parameter(x.clone())

    def forward(self):
        return poptorch.identity_loss(self.function(self.x).sum(), "sum")


def _gradient(function, x):
    model = _Fit(function, x)
    step = poptorch.optim.SGD(model.parameters(), lr=1.0, use_combined_accum=False)
    trained = poptorch.trainingModel(model, optimizer=step)
    trained()
    trained.copyWeightsToHost()
    return x - model.x.detach()


@pytest.mark.parametrize(
    ("text", "slope"), [(POWER, lambda x: 5 * x**4), (EITHER, lambda x: 2 * x)]
)
def test_gradients_are_those_of_torch(text, slope):
    x = torch.tensor([1.0, -2.0, 0.5, 3.0])
    torch.testing.assert_close(_gradient(op(text), x), slope(x))


def test_a_loop_of_unknown_length_has_no_gradient():
    x = torch.tensor([1.0, 7.0, -3.0, 0.0])
    with pytest.raises(poptorch.Error, match="RepeatWhileTrue. has no gradient") as error:
        _gradient(op(DOUBLES), x)
    assert "custom_support.py" in str(error.value)


def test_a_loop_without_gradient_stands_beside_others():
    x = torch.tensor([1.0, 7.0, -3.0, 0.0])
    found = _gradient(lambda x: x * op(DOUBLES)(x.detach()), x)
    torch.testing.assert_close(found, doubled(x))


def test_what_a_loop_in_a_composition_may_not_have():
    for text, part in [(SLICES, "carries and captures alone"), (HOST, "host_call has no place")]:
        with pytest.raises(poptorch.Error, match=part):
            poptorch.inferenceModel(Call(op(text)))(torch.ones(4))
