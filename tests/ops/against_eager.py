# SPDX-License-Identifier: Apache-2.0
"""Runs a model on the core through the public API and in eager torch, and compares all they do."""

import copy

import poptorch
import torch
from function_model import Call  # noqa: F401
from harness import WithLoss
from poptorch.capture import structure
from tolerances import assert_no_worse, assert_pass_close

# what a user sees of the wide types
NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32}


def quiet():
    opts = poptorch.Options().showCompilationProgressBar(False)
    # Types of mixed operands as eager has them.
    opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    return opts


def summary(executor):
    return executor.getProgramSummary()


def visible(tensor):
    """An eager result as a wrapped model returns it."""
    return tensor.detach().to(NARROWED.get(tensor.dtype, tensor.dtype))


def compare_results(actual, expected):
    assert type(actual) is type(expected)
    got, want = structure.tensors_of(actual), structure.tensors_of(expected)
    assert [path for path, _ in got] == [path for path, _ in want]
    for (path, a), (_, b) in zip(got, want, strict=True):
        assert_pass_close(a, visible(b), f"output {path}")


def check_training(model, args, calls=2, with_loss=WithLoss):
    """Outputs, gradients, buffers and written inputs of some steps; returns the executor.

    ``with_loss`` turns a model into one that gives (output, loss). A step of SGD with rate 1 moves
    each weight by its gradient. Eager starts each step from the weights that ours reached, so that
    no difference is fed back.
    """
    model = with_loss(model)
    eager = copy.deepcopy(model)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    executor = poptorch.trainingModel(model, options=quiet(), optimizer=optimizer)
    for _ in range(calls):
        our_args, their_args = copy.deepcopy(args), copy.deepcopy(args)
        before = {n: p.detach().clone() for n, p in eager.named_parameters()}
        actual = executor(*our_args)
        executor.copyWeightsToHost()
        eager.zero_grad()
        expected = eager(*their_args)
        compare_results(actual, expected)
        expected[1].sum().backward()
        compare_written(our_args, their_args)
        _compare_gradients(model, eager, before)
        buffers = dict(model.named_buffers())
        for n, b in eager.named_buffers():
            assert_pass_close(buffers[n], b, f"buffer {n}")
        with torch.no_grad():
            for n, p in eager.named_parameters():
                p.copy_(dict(model.named_parameters())[n])
    return executor


def compare_written(ours, theirs):
    pairs = zip(structure.tensors_of(ours), structure.tensors_of(theirs), strict=True)
    for (path, a), (_, b) in pairs:
        assert_pass_close(a, b, f"input {path} after the call")


def _compare_gradients(model, eager, before):
    after = dict(model.named_parameters())
    for n, p in eager.named_parameters():
        new = after[n].detach()
        assert new.dtype == p.dtype and new.shape == p.shape
        if p.grad is None:
            assert torch.equal(new, before[n]), f"{n} has no gradient but moved"
        else:
            # What forward wrote to it is where the step starts.
            assert_pass_close(new, p.detach() - p.grad, f"{n} after the step")


def check_gradients(model, args):
    """Outputs and gradients of one step, judged against float64; returns the executor.

    For sums of many terms, where eager float32 itself is far from the truth.
    """
    model = WithLoss(model)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    before = {n: p.detach().double() for n, p in eager.named_parameters()}
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    executor = poptorch.trainingModel(model, options=quiet(), optimizer=optimizer)
    results = executor(*args), eager(*args), exact(*double(args))
    leaves = [structure.tensors_of(r) for r in results]
    for (path, ours), (_, theirs), (_, true) in zip(*leaves, strict=True):
        assert_no_worse(*(t.detach().double() for t in (ours, theirs, true)), f"output {path}")
    executor.copyWeightsToHost()
    for _, loss in results[1:]:
        loss.backward()
    after, truth = dict(model.named_parameters()), dict(exact.named_parameters())
    for n, p in eager.named_parameters():
        # the subtraction of the update rounds, for eager as for us
        theirs = (p.detach() - p.grad).double()
        assert_no_worse(after[n].detach().double(), theirs, before[n] - truth[n].grad, n)
    return executor


def check_inference(model, args, calls=2):
    """Outputs and written inputs of some forward passes; returns the executor."""
    eager = copy.deepcopy(model)
    executor = poptorch.inferenceModel(model, options=quiet())
    for _ in range(calls):
        our_args, their_args = copy.deepcopy(args), copy.deepcopy(args)
        with torch.no_grad():
            compare_results(executor(*our_args), eager(*their_args))
        compare_written(our_args, their_args)
    return executor


def check_steps(model, batch, make_optimizer, steps=5, exact_weights=True):
    """Trains a model whose forward gives (output, loss) beside eager; returns the executor.

    Judged against float64, because training feeds rounding back.
    """
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    executor = poptorch.trainingModel(
        model, options=quiet(), optimizer=make_optimizer(model.parameters())
    )
    optimizers = [make_optimizer(m.parameters()) for m in (eager, exact)]
    for step in range(steps):
        actual = executor(*batch)
        expected, true = eager(*batch), exact(*double(batch))
        if step == 0:
            compare_results(actual, expected)
        for optimizer, (_, loss) in zip(optimizers, (expected, true), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses = [t[1].detach().double() for t in (actual, expected, true)]
        assert_no_worse(*losses, f"loss of step {step}")
    executor.copyWeightsToHost()
    ours, theirs, truth = (m.state_dict() for m in (model, eager, exact))
    for n in ours if exact_weights else ():
        if ours[n].is_floating_point():
            assert_no_worse(ours[n].double(), theirs[n].double(), truth[n], n)
        else:
            assert torch.equal(ours[n], theirs[n]), n
    return executor


def double(batch):
    return tuple(t.double() if t.is_floating_point() else t for t in batch)
