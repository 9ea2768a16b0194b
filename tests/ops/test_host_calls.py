# SPDX-License-Identifier: Apache-2.0
"""Ops without a kernel: run by torch at their place in the program."""

import copy
import gc
import inspect
import traceback

import poptorch
import pytest
import torch
from against_eager import check_inference, check_training, quiet, summary
from harness import WithLoss
from tolerances import assert_pass_close
from torch import nn


class Fails(RuntimeError):
    pass


@torch.library.custom_op("tessera_tests::checked_double", mutates_args=())
def checked_double(x: torch.Tensor) -> torch.Tensor:
    if bool((x < 0).any()):
        raise Fails("a negative number")
    return x * 2


@checked_double.register_fake
def _(x):
    return torch.empty_like(x)


checked_double.register_autograd(lambda ctx, grad: grad * 2)


@torch.library.custom_op("tessera_tests::running_sum", mutates_args=())
def running_sum(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.cumsum(dim)


@running_sum.register_fake
def _(x, dim):
    return torch.empty_like(x.cumsum(dim), memory_format=torch.contiguous_format)


running_sum.register_autograd(
    lambda ctx, grad: (running_sum(grad.flip(ctx.dim), ctx.dim).flip(ctx.dim), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "dim", inputs[1]),
)

ORDER = []


@torch.library.custom_op("tessera_tests::noted", mutates_args=())
def noted(x: torch.Tensor, tag: str) -> torch.Tensor:
    ORDER.append((tag, x.clone()))
    return x.clone()


@noted.register_fake
def _(x, tag):
    return torch.empty_like(x)


noted.register_autograd(lambda ctx, grad: (grad, None))


@torch.library.custom_op("tessera_tests::two_results", mutates_args=())
def two_results(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return x.t().clone(), torch.full((n,), x.shape[0])


@two_results.register_fake
def _(x, n):
    return x.new_empty(x.shape[1], x.shape[0]), x.new_empty(n, dtype=torch.int64)


class Checked(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = torch.ops.tessera_tests.checked_double(x * self.w)  # the line
        return y, poptorch.identity_loss(y.sum(), reduction="none")


LINE = next(
    inspect.getsourcelines(Checked)[1] + i
    for i, text in enumerate(inspect.getsourcelines(Checked)[0])
    if "# the line" in text
)


class Between(nn.Module):
    """Native ops before, between and after host calls, which also feed the backward pass."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        y = running_sum(self.a(x).relu(), 1)
        z = running_sum(self.b(y).tanh(), 0)
        return z * y.mean(1, keepdim=True)


def test_result_and_gradient_between_native_ops():
    torch.manual_seed(0)
    executor = check_training(Between(), (torch.randn(6, 4),))
    targets = {call["target"] for call in summary(executor)["host_calls"]}
    assert targets == {"tessera_tests::running_sum.default"}


class Ordered(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.full((2,), 3.0))

    def forward(self, x):
        y = torch.ops.tessera_tests.noted(x * self.w, "first")
        z = torch.ops.tessera_tests.noted(y + 1, "second")
        return z, poptorch.identity_loss(z.sum(), reduction="none")


def test_runs_at_its_place_in_every_micro_batch():
    options = quiet().deviceIterations(3)
    model = Ordered()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    executor = poptorch.trainingModel(model, options=options, optimizer=optimizer)
    executor.compile(torch.ones(3, 2))
    ORDER.clear()
    executor(torch.tensor([[1.0, 2.0], [1.0, 1.0], [2.0, 0.0]]))
    assert [tag for tag, _ in ORDER] == ["first", "second"] * 3
    # the weight falls by x between the micro-batches: 3,3 then 2,1 then 1,0
    expected = [[3.0, 6.0], [2.0, 1.0], [2.0, 0.0]]
    assert torch.stack([x.flatten() for _, x in ORDER[::2]]).tolist() == expected
    assert torch.equal(
        torch.stack([x for _, x in ORDER[1::2]]).flatten(1), torch.tensor(expected) + 1
    )


def test_several_results_of_other_types_and_layouts():
    class Model(nn.Module):
        def forward(self, x):
            a, b = torch.ops.tessera_tests.two_results(x * 2, 5)
            return a + 1, b * 2, a.t()[1:] * 3

    check_inference(Model(), (torch.randn(3, 4),))


def test_reads_a_view_and_is_viewed():
    class Model(nn.Module):
        def forward(self, x):
            y = running_sum(x.transpose(1, 2)[:, 1:], -1)
            return y.permute(2, 0, 1)[::2] + 1, y[:, 0]

    check_inference(Model(), (torch.randn(2, 5, 4),))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_reads_what_a_kernel_left_in_another_order(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3, padding=1, padding_mode=mode))
    check_training(model, (torch.randn(2, 3, 8, 8),))


def test_result_is_an_output_and_an_input_is_handed_through():
    class Model(nn.Module):
        def forward(self, x):
            return two_results(x, 5), running_sum(x, 0), x

    check_inference(Model(), (torch.randn(3, 5),))


def test_reads_what_is_also_an_output():
    class Model(nn.Module):
        def forward(self, x):
            y, z = x * 2, x + 1
            return y, running_sum(y, 0), z, running_sum(z.t(), 0), z

    check_inference(Model(), (torch.randn(3, 5),))


def test_on_integers_and_bools():
    class Model(nn.Module):
        def forward(self, i, b):
            return running_sum(i, 0), running_sum(b, 0), torch.bincount(i).shape[0]

    with pytest.raises(poptorch.Error):  # the shape of bincount depends on data
        poptorch.inferenceModel(Model(), options=quiet())(
            torch.tensor([1, 2, 3]), torch.tensor([True, False, True])
        )

    class Fixed(Model):
        def forward(self, i, b):
            return running_sum(i, 0), running_sum(b, 0), running_sum(i.float(), 0)

    check_inference(Fixed(), (torch.tensor([1, 2, 3]), torch.tensor([True, False, True])))


def test_an_exception_names_the_users_line_and_leaves_the_executor_usable():
    model = Checked()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
    executor = poptorch.trainingModel(model, options=quiet(), optimizer=optimizer)
    good, bad = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, -2.0, 3.0]])
    assert executor(good)[0].tolist() == [[2.0, 4.0, 6.0]]
    executor.copyWeightsToHost()
    kept = model.w.detach().clone()
    with pytest.raises(Exception) as error:
        executor(bad)
    text = str(error.value)
    assert isinstance(error.value, poptorch.Error)
    assert "a negative number" in text and "tessera_tests::checked_double" in text
    assert f"test_host_calls.py:{LINE}" in text, text
    executor.copyWeightsToHost()
    assert torch.equal(model.w.detach(), kept), "a step that failed must not move weights"
    out, _ = executor(good.abs())
    assert torch.equal(out, good * kept * 2)


def test_what_is_kept_of_an_exception_survives_the_program():
    executor = poptorch.inferenceModel(Checked(), options=quiet())
    with pytest.raises(poptorch.Error) as error:
        executor(torch.tensor([[1.0, -2.0, 3.0]]))
    cause = error.value.__cause__
    assert isinstance(cause, Fails)
    assert any("in checked_double" in note for note in cause.__notes__)
    executor.destroy()
    del executor
    gc.collect()
    # frames of the op would hold tensors over memory that is gone
    kept = traceback.TracebackException.from_exception(error.value, capture_locals=True)
    assert "a negative number" in "".join(kept.format())


def test_an_exception_in_the_first_run():
    executor = poptorch.inferenceModel(Checked(), options=quiet())
    with pytest.raises(poptorch.Error, match="a negative number"):
        executor(torch.tensor([[1.0, -2.0, 3.0]]))
    assert executor(torch.tensor([[1.0, 2.0, 3.0]]))[0].tolist() == [[2.0, 4.0, 6.0]]


class Twice(nn.Module):
    def forward(self, x):
        return running_sum(x, 0) + running_sum(x, 1)


def test_one_warning_per_op_with_its_line(caplog):
    executor = poptorch.inferenceModel(Twice(), options=quiet())
    x = torch.randn(3, 4)
    for _ in range(3):
        executor(x)
    warnings = [r.getMessage() for r in caplog.records if "running_sum" in r.getMessage()]
    line = inspect.getsourcelines(Twice)[1] + 2
    assert len(warnings) == 1
    assert f"test_host_calls.py:{line}" in warnings[0]


def test_the_summary_lists_them():
    executor = poptorch.inferenceModel(Twice(), options=quiet())
    executor(torch.randn(3, 4))
    calls = summary(executor)["host_calls"]
    assert [c["target"] for c in calls] == ["tessera_tests::running_sum.default"] * 2
    assert all("test_host_calls.py" in c["where"] for c in calls)


def test_gradients_accumulate_through_them():
    torch.manual_seed(0)
    model = WithLoss(Between())
    eager = copy.deepcopy(model)
    options = quiet().deviceIterations(2)
    options.Training.gradientAccumulation(3)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, options=options, optimizer=optimizer)
    batch = torch.randn(24, 4)
    executor(batch)
    executor.copyWeightsToHost()
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    for update in batch.split(12):
        optimizer.zero_grad()
        for micro_batch in update.split(4):
            (eager(micro_batch)[1] / 3).backward()
        optimizer.step()
    for (n, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert_pass_close(p.detach(), q.detach(), n)
