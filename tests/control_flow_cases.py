# SPDX-License-Identifier: Apache-2.0
"""Models with loops and branches that run captured and, as Python's own loops, in eager.

Each case is a function of a Model and its input; CASES has them by name.
"""

import poptorch
import torch
from torch import nn

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def loop(count, body, inputs):
    """poptorch.for_loop, which calls its body once on the CPU, or a loop of Python's."""
    if poptorch.isRunningOnIpu():
        return poptorch.for_loop(count, body, inputs)
    values = [value.clone() for value in inputs]
    for _ in range(count):
        values = body(*values)
        values = list(values) if isinstance(values, (list, tuple)) else [values]
    return values


def choose(condition, then_body, then_inps, else_body, else_inps):
    """poptorch.cond, without changes to its inputs in eager either."""
    then_inps, else_inps = ([t.clone() for t in inps] for inps in (then_inps, else_inps))
    return poptorch.cond(condition, then_body, then_inps, else_body, else_inps)


class Model(nn.Module):
    """Weights, layers and buffers for a case."""

    def __init__(self, name):
        super().__init__()
        torch.manual_seed(1)
        self.case = name
        self.weight = nn.Parameter(torch.randn(4, 4) * 0.4)
        self.bias = nn.Parameter(torch.randn(4) * 0.2)
        self.layer = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.batch = nn.BatchNorm1d(4)
        self.rnn = nn.GRU(4, 4)
        self.register_buffer("turns", torch.zeros(()))
        self.register_buffer("kept", torch.linspace(0.1, 0.4, 4))
        self.register_buffer("table", torch.randn(6, 4))

    def forward(self, x):
        return CASES[self.case](self, x)


def data(dtype=torch.float32):
    return torch.linspace(-1, 1, 12).reshape(3, 4).to(dtype)


@case
def a_weight_and_an_outer_value(m, x):
    y = x @ m.weight
    return loop(5, lambda a: (a @ m.weight + y).tanh(), [x])


@case
def weights_only_reach_a_later_carry(m, x):
    def body(a, b, c):
        return a + m.bias, b + a * a, c + 1

    return loop(4, body, [torch.zeros_like(x), x, torch.zeros(2)])


@case
def modules(m, x):
    def body(a):
        h = m.norm(torch.relu(m.layer(a)) + a)
        return h + m.rnn(h.unsqueeze(1))[0].squeeze(1)

    return loop(3, body, [x])


@case
def inputs_changed_in_place(m, x):
    def body(a, b):
        a += 1
        b[:, 1] *= 2
        return a * m.bias, b + a

    return [*loop(3, body, [x, x]), x]


@case
def an_outer_value_changed_in_place(m, x):
    total = torch.zeros_like(x)

    def body(a):
        total.add_(a * m.bias)
        return a * 0.5

    return [*loop(4, body, [x]), total]


@case
def counts_in_a_buffer(m, x):
    def body(a):
        m.turns += 1
        return a * m.bias + m.turns

    return loop(4, body, [x])


@case
def a_buffer_with_a_gradient(m, x):
    def body(a):
        m.kept.mul_(0.5).add_((a @ m.weight).mean(0))
        return a * 0.5 + m.kept

    return loop(3, body, [x])


@case
def batch_norm(m, x):
    return loop(3, lambda a: m.batch(m.layer(a)) + x, [x])


@case
def an_index_that_counts(m, x):
    def body(i, a):
        return i + 1, a + m.table[i] * m.table[(i * 2) % 6] + m.bias

    return loop(6, body, [torch.zeros((), dtype=torch.int64), x])


@case
def tensors_made_in_the_body(m, x):
    factor = torch.arange(4.0)

    def body(a):
        scale = torch.tensor([0.1, 0.2, 0.3, 0.4])
        return a * scale + torch.ones(3, 4) * factor + torch.full((4,), 2.0) * m.bias

    return loop(3, body, [x])


@case
def without_gradient(m, x):
    def body(a, b):
        with torch.no_grad():
            scale = (a @ m.weight).sigmoid()
        return (a * scale + m.bias).tanh(), b + (a @ m.weight).detach() * m.bias

    return loop(3, body, [x, x])


class Straight(torch.autograd.Function):
    """Rounds; the gradient passes, times a number of its own."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return (x * 4).round() / 4 + weight * 0

    @staticmethod
    def backward(ctx, grad):
        (weight,) = ctx.saved_tensors
        return grad * 1.5, (grad * weight).sum(0)


@case
def a_function_with_its_own_gradient(m, x):
    return loop(3, lambda a: Straight.apply(a, m.bias) @ m.weight, [x])


@case
def nested_loops(m, x):
    y = x * m.bias

    def outer(a, b):
        scale = a.mean() + 1

        def inner(c):
            m.turns += 1
            return (c @ m.weight + y * scale).tanh() + a * m.bias

        (c,) = loop(3, inner, [b])
        return a + c.mean(0), c

    return loop(4, outer, [m.kept * 2, x])


@case
def a_branch_in_a_loop(m, x):
    def body(i, a):
        even = i % 2 == 0
        (a,) = choose(even, lambda t: t @ m.weight, [a], lambda t: t * m.bias + x, [a])
        return i + 1, a

    return loop(5, body, [torch.zeros((), dtype=torch.int32), x])


@case
def a_loop_in_a_branch(m, x):
    def then(a):
        return loop(3, lambda t: (t @ m.weight).tanh(), [a])

    first = choose(x.sum() > 100, then, [x], lambda: m.table[:3] * m.bias, [])
    second = choose(x.sum() < 100, then, [x], lambda: m.table[:3] * m.bias, [])
    return [*first, *second]


@case
def branches(m, x):
    y = x @ m.weight

    def then(a, b):
        return a * m.bias + b, y.exp().sum(0)

    def otherwise(a):
        return m.layer(a), m.bias * 2

    flag = x.mean() > 0.5
    return [
        *choose(flag, then, [x, y], otherwise, [x]),
        *choose(~flag, then, [x, y], otherwise, [y]),
    ]


@case
def outputs_of_other_shapes(m, x):
    first, second = (lambda: x @ m.weight), (lambda: (m.table[:3] * m.bias).reshape(2, 6))
    (out,) = poptorch.cond(x.sum() < 100, first, [], second, [])
    return out.reshape(2, 6)


@case
def buffers_of_branches(m, x):
    def then(a):
        m.turns += 1
        m.kept.copy_(a[0].detach())
        return a * m.bias

    def otherwise(a):
        m.turns += 10
        return a + m.bias

    first = choose(x.sum() < 100, then, [x], otherwise, [x])
    second = choose(x.sum() > 100, then, [x * 2], otherwise, [x])
    return [*first, *second, m.kept * 1]


@case
def results_as_they_came(m, x):
    def body(a, b, c):
        return b, a, m.weight[0] * 1

    def other(a, b):
        return m.weight, a

    return [
        *loop(3, body, [x + m.bias, x * m.bias, m.bias]),
        *loop(2, other, [m.weight * 2, m.weight]),
    ]


@case
def flags_and_masks(m, x):
    def body(done, a):
        a = torch.where(done, a, a + m.bias)
        return done | (a.sum(1, keepdim=True) > 1), a

    return loop(6, body, [torch.zeros(3, 1, dtype=torch.bool), x])


@case
def attention(m, x):
    def body(a):
        q = m.layer(a).reshape(1, 1, 3, 4)
        return nn.functional.scaled_dot_product_attention(q, q, q)[0, 0] + a

    return loop(2, body, [x])


@case
def no_turn_and_one(m, x):
    return [*loop(0, lambda a: a @ m.weight, [x * m.bias]), *loop(1, lambda a: a @ m.weight, [x])]


@case
def buffers_without_inputs(m, x):
    def body():
        m.turns += 1

    loop(3, lambda: body() or [], [])
    return x * m.bias * m.turns
