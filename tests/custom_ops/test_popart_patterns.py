# SPDX-License-Identifier: Apache-2.0
"""Patterns of PopART: moving averages once per weight update, pruned inputs, switches."""

import popart_support as support
import poptorch
import pytest
import torch

LR = 0.1


class Student(torch.nn.Module):
    """Trains a layer and keeps the moving average of its weights in another one."""

    def __init__(self, teacher_as_parameter, op="ExpMovAvg"):
        super().__init__()
        support.load()
        torch.manual_seed(3)
        self.op = op
        self.student = torch.nn.Linear(3, 2)
        start = torch.randn(2, 3)
        if teacher_as_parameter:
            self.teacher = torch.nn.Parameter(start, requires_grad=False)
        else:
            self.register_buffer("teacher", start)

    def forward(self, x, keep):
        out = self.student(x)
        kept = torch.nn.functional.linear(x, self.teacher)
        loss = poptorch.identity_loss(((out - kept) ** 2).sum(), "sum")
        poptorch.custom_op(
            [self.student.weight, self.teacher, keep], self.op, "com.acme", 1, [self.teacher]
        )
        # What comes after the op sees the average as it was.
        return out, (self.teacher * 1.0), loss


def eager(model, batches, steps):
    """The same in torch: `batches` of a step are its micro-batches and replicas."""
    weight, bias = (p.detach().clone() for p in model.student.parameters())
    teacher = model.teacher.detach().clone()
    for _ in range(steps):
        weight.requires_grad_()
        bias.requires_grad_()
        for x, _ in batches:
            out = torch.nn.functional.linear(x, weight, bias)
            kept = torch.nn.functional.linear(x, teacher)
            (((out - kept) ** 2).sum() / len(batches)).backward()
        grads = weight.grad, bias.grad
        keep = batches[-1][1][0]
        with torch.no_grad():
            teacher = keep * teacher + (1 - keep) * weight
            weight = (weight - LR * grads[0]).detach()
            bias = (bias - LR * grads[1]).detach()
    return weight, teacher


@pytest.mark.parametrize("as_parameter", [True, False])
@pytest.mark.parametrize(("accumulation", "replicas"), [(1, 1), (3, 1), (1, 2), (2, 2)])
def test_moving_average_once_per_weight_update(as_parameter, accumulation, replicas):
    model = Student(as_parameter)
    n = accumulation * replicas
    torch.manual_seed(5)
    xs = torch.randn(n, 4, 3)
    keep = torch.full((n, 1), 0.75)
    wanted = eager(model, list(zip(xs, keep, strict=True)), steps=3)
    options = poptorch.Options().replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    trained = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=LR))
    before = model.teacher.detach().clone()
    _, seen, _ = trained(xs.reshape(-1, 3), keep.reshape(-1))
    torch.testing.assert_close(seen[:2], before)
    for _ in range(2):
        trained(xs.reshape(-1, 3), keep.reshape(-1))
    trained.copyWeightsToHost()
    torch.testing.assert_close(model.student.weight.detach(), wanted[0])
    torch.testing.assert_close(model.teacher.detach(), wanted[1])
    torch.testing.assert_close(model.state_dict()["teacher"], wanted[1])


def test_an_update_in_the_normal_context_is_one_per_micro_batch():
    model = Student(False, "CountSteps")
    start, weight = model.teacher.clone(), model.student.weight.detach().clone()
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    trained = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.0))
    trained(torch.randn(6, 3), torch.zeros(3))
    torch.testing.assert_close(model.teacher, start + 3 * weight)


def test_what_is_no_parameter_or_buffer_can_not_be_updated():
    x = torch.ones(2, 3)
    with pytest.raises(poptorch.Error, match="parameter or a buffer"):
        support.infer("com.acme", "ExpMovAvg", x, x, torch.ones(1))


def test_a_pattern_prunes_an_input_and_the_gradient_goes_to_it():
    a, b = torch.tensor([1.0, -2.0]), torch.tensor([5.0, 7.0])
    weights = torch.tensor([3.0, 4.0])
    out, grads = support.gradients("com.acme", "Proxy", [a, b], weights)
    torch.testing.assert_close(out, a)
    torch.testing.assert_close(grads, [torch.zeros(2), weights])
    torch.testing.assert_close(support.infer("com.acme", "Proxy", a, b), a)


def _twice(patterns):
    options = poptorch.Options()
    options._Popart.setPatterns(patterns)
    model = support.Calls("com.acme", "Twice")
    return poptorch.inferenceModel(model, options)(torch.tensor([1.0, 3.0])).tolist()


def test_patterns_are_switched_by_the_options():
    assert _twice({}) == [2.0, 6.0]
    assert _twice({"DropTwice": True}) == [1.0, 3.0]
    assert _twice({}) == [2.0, 6.0]
    assert _twice({"Hint": False}) == [2.0, 6.0]


def test_a_pattern_without_an_end_is_an_error():
    with pytest.raises(poptorch.Error, match="Restless finds something to change again"):
        _twice({"Restless": True})


def test_an_op_whose_pattern_is_off_has_no_opx():
    options = poptorch.Options()
    options._Popart.setPatterns({"AveragePattern": False})
    x = torch.ones(2, 3)
    model = support.Calls("com.acme", "ExpMovAvg")
    with pytest.raises(poptorch.Error, match="no patterns intended to remove it"):
        poptorch.inferenceModel(model, options)(x, x, torch.ones(1))
