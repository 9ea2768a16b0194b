# SPDX-License-Identifier: Apache-2.0
"""``poptorch.CPU``: functions of the user's inside programs."""

import poptorch
import pytest
import torch


class Mixed(torch.nn.Module):
    """Native layers around a layer and a method that run on the host."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.table = torch.nn.Linear(3, 2)
        self.on_host = poptorch.CPU(self.table, "table")
        self.counted = poptorch.CPU(self.count, "count")
        self.calls = []

    def count(self, x, times=1):
        self.calls.append(x.clone())
        # What no program can do: values steer Python, numpy computes.
        lines = torch.from_numpy(x.detach().numpy() * 2) if x.sum().item() > 0 else -x
        return lines, torch.full((2,), times, dtype=torch.int32)

    def forward(self, x):
        y = self.on_host(self.first(x))
        lines, times = self.counted(y, times=3)
        return y, lines + 1, times, self.on_host(x)


def test_functions_run_once_per_micro_batch(opts):
    model = Mixed()
    assert not model.table.weight.requires_grad
    x = torch.randn(4, 3)
    with torch.no_grad():
        parts = [model(part) for part in x.split(2)]
    expected = [torch.cat(values) for values in zip(*parts, strict=True)]
    model.calls.clear()
    run = poptorch.inferenceModel(model, opts.deviceIterations(2))
    for actual, wanted in zip(run(x), expected, strict=True):
        torch.testing.assert_close(actual, wanted)
    zeros, *rest = model.calls
    assert not zeros.any() and len(rest) == 2
    torch.testing.assert_close(torch.cat(rest), expected[0])
    run(x)
    assert len(model.calls) == 5


class Calls(torch.nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.body = forward

    def forward(self, x):
        y = self.body(x * self.weight)
        return y, poptorch.identity_loss(y.sum(), "none")


def _nested(x):
    return poptorch.CPU(lambda t: poptorch.CPU(torch.exp, "inner")(t), "outer")(x)


def _same_name(x):
    return poptorch.CPU(torch.exp, "f")(x) + poptorch.CPU(torch.log, "f")(x)


def _no_tensor(x):
    return poptorch.CPU(lambda t: t.tolist(), "list")(x)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (_nested, "CPU ops must not overlap"),
        (_same_name, "'f' is the name of two functions"),
        (_no_tensor, "must return a tensor, or a list or tuple of tensors"),
    ],
)
def test_what_is_refused(body, text, opts):
    with pytest.raises(poptorch.Error, match=text):
        poptorch.inferenceModel(Calls(body), opts)(torch.ones(2))


def test_training_is_refused(opts):
    model = Calls(poptorch.CPU(torch.exp, "exp"))
    with pytest.raises(poptorch.Error, match="in inference only"):
        poptorch.trainingModel(model, opts)(torch.ones(2))


def test_a_failing_function_ends_the_call_and_the_next_one_works(opts):
    state = {"size": 2}

    def grow(x):
        if state["size"] == 0:
            raise ValueError("nothing left")
        return torch.ones(state["size"])

    run = poptorch.inferenceModel(Calls(poptorch.CPU(grow, "grow")), opts)
    for size, text in ((3, r"shape \[3\] instead of \[2\]"), (0, "ValueError: nothing left")):
        run.compile(torch.ones(2)) if not run.isCompiled() else None
        state["size"] = size
        with pytest.raises(poptorch.Error, match=text):
            run(torch.ones(2))
        state["size"] = 2
        assert run(torch.ones(2))[1] == 2
