# SPDX-License-Identifier: Apache-2.0
"""Loops and branches of recorded programs."""

import os
import signal
import threading

import popart_support as support
import poptorch
import pytest
import torch


def flow(name, x, **attributes):
    return support.infer("test.flow", name, x, **attributes)


def test_loops_of_many_turns_are_not_written_out():
    x = torch.tensor([1.0, -2.0, 7.5])
    torch.testing.assert_close(flow("Long", x), x + 5000)


def test_functions_are_programs_as_they_were():
    x = torch.tensor([1.0, -2.0, 7.5])
    torch.testing.assert_close(flow("Calls", x), x / 2 + 2.5)


@pytest.mark.parametrize("name", ["WhileTrue", "WhileFalse"])
def test_a_loop_ends_when_its_data_say_so(name):
    model = poptorch.inferenceModel(support.Calls("test.flow", name))
    for x, turns in [([1.0, 0.5], 0), ([3.0, 0.0], 2), ([5.0, 1e30], 100), ([-1.0, 1.0], 0)]:
        wanted = torch.tensor(x) * 0.5**turns + turns
        torch.testing.assert_close(model(torch.tensor(x)), wanted)


def test_loops_branches_and_views_in_each_other():
    x = torch.tensor([[3.0, 1.0, 2.0], [-1.0, 4.0, 5.0], [0.0, 1.0, 1.0], [5.0, 0.0, -1.0]])
    wanted = x.clone()
    for row in wanted:
        if row[0] > 0:
            while row[0] > 0:
                row[0] -= 1
                row[1:] += row[0] + 1
        else:
            row *= -1
    torch.testing.assert_close(flow("Rows", x), wanted)


def test_one_way_of_a_branch_runs():
    x = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(flow("OneWay", x), x + 5)


@pytest.mark.parametrize("size", [3, 100_000])
def test_ctrl_c_ends_a_loop_that_does_not(size):
    model = poptorch.inferenceModel(support.Calls("test.flow", "Endless"))
    zeros = torch.zeros(size)
    torch.testing.assert_close(model(zeros), zeros)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(size))
    timer.join()
    torch.testing.assert_close(model(-torch.ones(size)), -torch.ones(size))


def test_bodies_are_traced_once_and_stay_bodies():
    model = poptorch.inferenceModel(support.Calls("test.flow", "Rows"))
    model(torch.ones(3, 3))
    kinds = set()
    todo = [model.getProgramSummary()]
    while todo:
        found = todo.pop()
        if isinstance(found, dict):
            kinds.add(str(found.get("op")))
        todo += found.values() if isinstance(found, dict) else found
        todo = [x for x in todo if isinstance(x, (dict, list))]
    assert {"scan", "while", "branch"} <= kinds


def test_a_program_that_was_added_is_what_it_was_then():
    x = torch.zeros(2)
    torch.testing.assert_close(flow("Later", x), x + 3 * 1 + 2 * 11 + 101)


def test_variables_of_a_turn():
    x = torch.tensor([1.0, 2.0, 3.0])
    local = x * x
    # From the third turn on `start` is below 1, and `extra` stays what it was set to.
    torch.testing.assert_close(flow("Locals", x), x + 4 * local + local + 2 * 1000)


def test_a_predicate_of_many_elements_is_refused():
    with pytest.raises(poptorch.Error, match="RepeatWhile: the predicate has more than one"):
        flow("Bad", torch.ones(2))


def test_training_takes_the_result_of_a_loop_without_gradient_for_a_constant():
    x = torch.tensor([3.0, 1.0])
    _, (grad,) = support.gradients("test.flow", "WhileTrue", [x], torch.ones(2))
    torch.testing.assert_close(grad, torch.zeros(2))


# Attention ----------------------------------------------------------------------------------------


def attention(qkv):
    q, k, v = qkv
    scores = q @ k.mT / q.shape[-1] ** 0.5
    hidden = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v


CHUNKS = [(1, 1), (2, 4), (4, 2), (8, 8)]


@pytest.mark.parametrize(("chunks_q", "chunks_kv"), CHUNKS)
def test_causal_attention_by_blocks(chunks_q, chunks_kv):
    qkv = torch.randn(3, 2, 16, 5)
    example = torch.zeros(2, 16, 5)
    found = flow("Flash", qkv, outputs=[example], chunks_q=chunks_q, chunks_kv=chunks_kv)
    torch.testing.assert_close(found, attention(qkv))


@pytest.mark.parametrize(("chunks_q", "chunks_kv"), CHUNKS[:3])
def test_the_gradient_op_of_attention_has_a_loop_of_its_own(chunks_q, chunks_kv):
    qkv, weights = torch.randn(3, 2, 8, 4), torch.randn(2, 8, 4)
    out, (grad,) = support.gradients(
        "test.flow",
        "Flash",
        [qkv],
        weights,
        [torch.zeros(2, 8, 4)],
        chunks_q=chunks_q,
        chunks_kv=chunks_kv,
    )
    given = qkv.clone().requires_grad_()
    wanted = attention(given)
    (wanted * weights).sum().backward()
    torch.testing.assert_close(out, wanted.detach())
    torch.testing.assert_close(grad, given.grad)
