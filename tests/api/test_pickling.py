# SPDX-License-Identifier: Apache-2.0
"""Wrapped models and executors in files, copies and other processes."""

import copy
import io
import pickle
import subprocess
import sys

import poptorch
import pytest
import torch
from api_support import Regression


def trained(regression, batch, opts, optimizer=poptorch.optim.Adam):
    executor = poptorch.trainingModel(regression, opts, optimizer(regression.parameters(), lr=0.05))
    for _ in range(3):
        executor(*batch)
    return executor


def final_weights(executor, batch):
    for _ in range(3):
        executor(*batch)
    return {name: tensor.clone() for name, tensor in executor.state_dict().items()}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def test_a_training_executor_goes_on_where_it_was(regression, batch, opts):
    executor = trained(regression, batch, opts)
    other = pickle.loads(pickle.dumps(executor))
    assert not other.isCompiled()
    assert other.model is not regression
    assert_equal(final_weights(other, batch), final_weights(executor, batch))


def test_a_torch_optimizer_is_still_that_of_the_model(regression, batch, opts):
    executor = trained(regression, batch, opts, torch.optim.SGD)
    other = pickle.loads(pickle.dumps(executor))
    assert_equal(final_weights(other, batch), final_weights(executor, batch))


def test_an_inference_executor(regression, batch, opts):
    executor = poptorch.inferenceModel(regression, opts)
    expected = executor(batch[0])
    other = pickle.loads(pickle.dumps(executor))
    assert torch.equal(other(batch[0]), expected)


def test_a_deep_copy_is_a_second_executor(regression, batch, opts):
    executor = trained(regression, batch, opts)
    other = copy.deepcopy(executor)
    final_weights(other, batch)
    assert not torch.equal(other.model.linear.weight, regression.linear.weight)


def test_random_numbers_go_on(opts):
    opts.randomSeed(5)
    torch.manual_seed(0)
    executor = poptorch.inferenceModel(_Noise(), opts)
    executor(torch.zeros(4))
    other = pickle.loads(pickle.dumps(executor))
    assert torch.equal(other(torch.zeros(4)), executor(torch.zeros(4)))


class _Noise(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


def test_a_copy_in_the_same_process_stays_wrapped(regression, batch, opts):
    trained(regression, batch, opts)
    twin = copy.copy(regression)
    assert type(twin).__name__ == "PoptorchRegression"
    assert twin.linear is regression.linear
    with pytest.raises(RuntimeError, match="Model has already been wrapped"):
        poptorch.trainingModel(twin, opts)


def test_a_model_from_a_file_needs_no_poptorch(regression, batch, opts, tmp_path):
    executor = trained(regression, batch, opts)
    path = tmp_path / "model.pt"
    torch.save(torch.nn.Sequential(*executor.model.children()), path)
    code = (
        "import sys, torch; "
        f"model = torch.load({str(path)!r}, weights_only=False); "
        "assert 'poptorch' not in sys.modules; "
        "assert type(model[0].weight) is torch.nn.Parameter; "
        "print(model[0].weight.sum().item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(regression.linear.weight.sum().item())


def test_state_dicts_are_plain(regression, batch, opts):
    trained(regression, batch, opts)
    buffer = io.BytesIO()
    torch.save(regression.state_dict(), buffer)
    buffer.seek(0)
    fresh = Regression()
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(fresh.linear.weight, regression.linear.weight)
