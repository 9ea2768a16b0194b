# SPDX-License-Identifier: Apache-2.0
"""What capture makes of loops and branches: one op with its bodies, equal to eager loops."""

import ir_interpreter as interpreter
import poptorch
import pytest
import torch
from control_flow_cases import CASES, Model, data
from harness import WithLoss, captured, check, close, evaluate


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name, training):
    model = Model(name)
    check(WithLoss(model) if training else model, (data(),), training=training)


class Function(torch.nn.Module):
    """A function of a weight and the inputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.tensor([1.1, 0.9, 1.2, 0.8]))

    def forward(self, *args):
        return self.function(self.weight, *args)


def graph_of(function, *args, training=False):
    model = Function(function)
    c = captured(WithLoss(model) if training else model, args, training=training)
    return c, interpreter.parse(c.text)


def test_the_text_does_not_depend_on_the_count():
    def text(count):
        def run(w, x):
            return poptorch.for_loop(count, lambda a: (a * w).tanh(), [x])

        return graph_of(run, torch.ones(4), training=True)[0].text

    few, many = text(10), text(10_000)
    assert many.replace("scan(10000,", "scan(10,").replace("[10000,", "[10,") == few


def test_every_turn_draws_other_numbers():
    def run(w, i, x):
        def inner(j, x):
            row = torch.rand(1, 4)
            return j + 1, x.index_copy(0, j.reshape(1), row)

        return poptorch.for_loop(3, lambda j, x: poptorch.for_loop(2, inner, [j, x]), [i, x])[1]

    args = torch.zeros((), dtype=torch.int64), torch.zeros(6, 4)
    c, _ = graph_of(run, *args)
    rows, _ = evaluate(c, args)
    assert len({tuple(row.tolist()) for row in rows}) == 6


def test_backward_draws_the_numbers_of_forward():
    def run(w, x):
        flag = x.sum() > 0
        drop = torch.nn.functional.dropout
        (x,) = poptorch.cond(flag, lambda: drop(x * w), [], lambda: x, [])
        return poptorch.for_loop(3, lambda a: drop(a * w, 0.2), [x])[0]

    x = torch.ones(16, 4)
    c, _ = graph_of(run, x, training=True)
    (out, _), raw = evaluate(c, (x,))
    assert 0 < out.count_nonzero() < out.numel()
    w = torch.tensor([1.1, 0.9, 1.2, 0.8])
    slope = torch.arange(out.numel(), dtype=torch.float32).mul(0.7).cos().reshape(out.shape)
    # out = x * w**4 * masks
    close(raw.grads["model.weight"], (slope * out * 4 / w).sum(0), "gradient")


def test_ops_in_a_body_keep_their_lines_and_modules():
    layer = torch.nn.Linear(4, 4)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return poptorch.for_loop(2, lambda a: self.layer(a).relu(), [x])

    graph = interpreter.parse(captured(Model(), (torch.ones(2, 4),), training=False).text)
    (scan,) = (n for n in graph.nodes if n.name == "scan")
    scopes = {graph.locations[n.loc][2] for n in scan.bodies[0].nodes}
    assert scopes == {"", "layer"}
    assert {graph.locations[n.loc][0] for n in scan.bodies[0].nodes} == {__file__}


def test_what_a_body_does_not_read_is_not_passed():
    def run(w, x):
        y, z = x * 2, x * 3
        (out,) = poptorch.for_loop(3, lambda a: a + y + torch.zeros(z.shape), [x])
        return out

    _, graph = graph_of(run, torch.ones(4))
    (scan,) = (n for n in graph.nodes if n.name == "scan")
    assert len(scan.args[3]) == 1 and "mul" in graph.ops() and graph.ops().count("mul") == 1
