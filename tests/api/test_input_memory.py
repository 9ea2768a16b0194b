# SPDX-License-Identifier: Apache-2.0
"""Inputs whose values are not where their address says: refused with a name, or read rightly."""

import warnings

import poptorch
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


class Doubles(torch.nn.Module):
    def forward(self, x, more=None):
        return x * 2 if more is None else x * 2 + more["y"]


def good():
    return torch.arange(64.0).reshape(8, 8)


def on_meta():
    return good().to("meta")


def fake():
    with FakeTensorMode() as mode:
        return mode.from_tensor(good())


def freed():
    tensor = good()
    tensor.untyped_storage().resize_(0)
    return tensor


def shrunk():
    tensor = good()
    tensor.untyped_storage().resize_(32)
    return tensor


def shrunk_under_a_view():
    """The storage is as large as the view, which does not begin at its start."""
    whole = torch.arange(128.0)
    view = whole[64:].reshape(8, 8)
    whole.untyped_storage().resize_(64 * 4)
    return view


def freed_under_a_view():
    whole = torch.arange(128.0)
    view = whole[64:].reshape(8, 8)
    whole.untyped_storage().resize_(0)
    return view


def set_to_a_meta_storage():
    return torch.empty(0, device="meta").set_(torch.empty(64, device="meta").untyped_storage())


def functionalized():
    return torch._to_functional_tensor(good())


BAD = [on_meta, fake, freed, shrunk, shrunk_under_a_view, freed_under_a_view]


@pytest.mark.parametrize("bad", [*BAD, set_to_a_meta_storage, functionalized])
def test_a_first_call_with_memory_that_is_not_there(opts, bad):
    executor = poptorch.inferenceModel(Doubles(), opts)
    with pytest.raises(poptorch.Error, match="must be on the CPU but x (is|has|needs)") as caught:
        executor(bad())
    assert "FakeTensor" not in str(caught.value)
    assert torch.equal(executor(good()), good() * 2)


@pytest.mark.parametrize("bad", BAD)
def test_a_later_call_with_memory_that_is_not_there(opts, bad):
    executor = poptorch.inferenceModel(Doubles(), opts)
    executor(good())
    for call in (lambda t: executor(t), lambda t: executor(x=t)):
        with pytest.raises(
            poptorch.Error, match="must be on the CPU but x (is|has|needs)"
        ) as caught:
            call(bad())
        assert "FakeTensor" not in str(caught.value)
    assert torch.equal(executor(good()), good() * 2)


@pytest.mark.parametrize("bad", BAD)
def test_memory_that_is_not_there_deep_inside(opts, bad):
    executor = poptorch.inferenceModel(Doubles(), opts)
    executor(good(), {"y": good()})
    with pytest.raises(poptorch.Error, match=r"must be on the CPU but more\[y\] (is|has|needs)"):
        executor(good(), {"y": bad()})


def test_a_tensor_that_loses_its_memory_between_calls(opts):
    executor = poptorch.inferenceModel(Doubles(), opts)
    tensor = good()
    for _ in range(3):
        assert torch.equal(executor(tensor), good() * 2)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(poptorch.Error, match="its storage was freed"):
        executor(tensor)
    tensor.untyped_storage().resize_(64 * 4)
    tensor.copy_(good())
    assert torch.equal(executor(tensor), good() * 2)
    tensor.set_(torch.ones(8, 8))
    assert torch.equal(executor(tensor), torch.full((8, 8), 2.0))
    tensor.set_()
    with pytest.raises(poptorch.Error, match="Shape mismatch for x"):
        executor(tensor)


def test_a_view_of_a_larger_storage_is_read_where_it_lies(opts):
    executor = poptorch.inferenceModel(Doubles(), opts)
    rows = torch.arange(256.0).reshape(32, 8)
    for i in range(4):
        part = rows[i * 8 : i * 8 + 8]
        assert torch.equal(executor(part), part * 2)
    assert executor._executable.match((rows[8:16],), {}) is not None


@pytest.mark.parametrize("way", ["context", "default"])
@pytest.mark.parametrize("compiled", [True, False])
def test_calls_on_another_default_device(opts, way, compiled):
    class Makes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            index = self.linear(x).argmax(1)
            return x + torch.ones(8), index, x.sum(dtype=torch.float64)

    model = Makes()
    executor = poptorch.inferenceModel(model, opts)
    x = good()
    expected = [t.detach() for t in model(x)]
    if compiled:
        executor(x)
    for _ in range(2):
        if way == "context":
            with torch.device("meta"):
                results = executor(x)
        else:
            torch.set_default_device("meta")
            try:
                results = executor(x)
            finally:
                torch.set_default_device(None)
        assert all(t.device.type == "cpu" for t in results)
        for result, right in zip(results, expected, strict=True):
            torch.testing.assert_close(result, right.to(result.dtype))


def test_training_on_another_default_device(opts):
    class Trains(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x):
            return poptorch.identity_loss(self.linear(x), "mean")

    model = Trains()
    before = model.linear.bias.detach().clone()
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.8))
    x = good()
    with torch.device("meta"):
        assert training(x).device.type == "cpu"
        training(x)
        training.copyWeightsToHost()
        training.destroy()
    torch.testing.assert_close(model.linear.bias.detach(), before - 0.2)


def test_calls_inside_a_fake_mode(opts):
    executor = poptorch.inferenceModel(Doubles(), opts)
    x = good()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about addresses
        for _ in range(2):
            with FakeTensorMode(allow_non_fake_inputs=True):
                result = executor(x)
            assert torch.equal(result, x * 2)


@pytest.mark.parametrize("again", [False, True])
def test_a_negated_view_is_read_with_its_sign(opts, again):
    """torch only marks such a tensor; its memory holds the other sign."""
    executor = poptorch.inferenceModel(Doubles(), opts)
    x = good()
    if again:
        executor(x)
    negated = torch._neg_view(x)
    assert negated.is_neg() and negated.is_contiguous()
    for _ in range(2):
        assert torch.equal(executor(negated), -2 * x)
    assert torch.equal(executor(x), 2 * x)
    imaginary = torch.complex(x, x).conj().imag
    assert imaginary.is_neg()
    assert torch.equal(executor(imaginary), -2 * x)


def test_a_negated_view_is_written_back_with_its_sign(opts):
    class Writes(torch.nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    executor = poptorch.inferenceModel(Writes(), opts)
    for _ in range(2):
        memory = good()
        view = torch._neg_view(memory)
        assert torch.equal(executor(view), (1 - good()) * 2)
        assert torch.equal(view, 1 - good()) and torch.equal(memory, good() - 1)


def test_conjugated_inputs_are_refused_on_every_path(opts):
    executor = poptorch.inferenceModel(Doubles(), opts)
    executor(good())
    with pytest.raises(poptorch.Error, match="mismatch for x: expected torch.float32"):
        executor(torch.complex(good(), good()).conj())


def test_zeros_that_torch_has_not_made_yet(opts):
    executor = poptorch.inferenceModel(Doubles(), opts)
    zeros = torch._efficientzerotensor((8, 8))
    for _ in range(2):
        assert torch.equal(executor(zeros), torch.zeros(8, 8))
        assert torch.equal(executor(good()), good() * 2)


def test_nested_tensors_are_refused(opts):
    executor = poptorch.inferenceModel(Doubles(), opts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(poptorch.Error, match="x is a nested tensor"):
        executor(nested)


# Tensors made in inference mode -------------------------------------------------------------------


class Trains(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear = torch.nn.Linear(8, 2)

    def forward(self, x, target=None):
        out = self.linear(x)
        if target is None:
            return out
        return out, torch.nn.functional.cross_entropy(out, target)


def made_in_inference_mode():
    with torch.inference_mode():
        return good(), torch.arange(8) % 2


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("iterations", [1, 2])
def test_inputs_made_in_inference_mode(opts, inside, iterations):
    x, _ = made_in_inference_mode()
    model = Trains().eval()
    executor = poptorch.inferenceModel(model, opts.deviceIterations(iterations))
    expected = model(good()).detach()
    for value in (x, good(), x, x.t().contiguous().t(), {"x": x}["x"]):
        with torch.inference_mode(inside):
            result = executor(value)
        torch.testing.assert_close(result.clone(), expected)


@pytest.mark.parametrize("iterations", [1, 2])
def test_training_with_inputs_made_in_inference_mode(opts, iterations):
    x, target = made_in_inference_mode()
    ours, twin = Trains(), Trains()
    executor = poptorch.trainingModel(
        ours, opts.deviceIterations(iterations), torch.optim.SGD(ours.parameters(), lr=0.1)
    )
    eager = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        executor(x, target)
        rows = 8 // iterations
        for i in range(iterations):
            eager.zero_grad()
            part = slice(i * rows, (i + 1) * rows)
            twin(good()[part], (torch.arange(8) % 2)[part])[1].backward()
            eager.step()
    torch.testing.assert_close(ours.linear.weight.detach(), twin.linear.weight.detach())


def test_inputs_made_in_inference_mode_can_be_written(opts):
    class Writes(torch.nn.Module):
        def forward(self, x):
            x[0].add_(1)
            return x.sum()

    executor = poptorch.inferenceModel(Writes(), opts)
    x, _ = made_in_inference_mode()
    for i in range(1, 4):
        executor(x)
        assert torch.equal(x[0], good()[0] + i)
