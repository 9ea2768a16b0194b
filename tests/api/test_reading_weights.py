# SPDX-License-Identifier: Apache-2.0
"""Every way to read a parameter of a model that was trained gives the newest values, also those
that do not ask the class of a tensor."""

import copy
import io

import numpy as np
import poptorch
import pytest
import torch
from api_support import Regression, eager_step
from torch import nn


def saved(parameter):
    file = io.BytesIO()
    torch.save(parameter, file)
    file.seek(0)
    return torch.load(file)


READS = {
    "tensor": lambda p: torch.tensor(p),
    "tensor by name": lambda p: torch.tensor(data=p),
    "tensor of numbers": lambda p: torch.tensor([[n for n in row] for row in p]),
    "tensor of a list": lambda p: torch.stack([torch.tensor([n]) for n in p.view(-1)]).view(2, 3),
    "new_tensor": lambda p: torch.zeros(1).new_tensor(p),
    "new_tensor of itself": lambda p: p.new_tensor(p),
    "vmap": lambda p: torch.vmap(lambda row: row * 1)(p),
    "vmap of two": lambda p: torch.vmap(lambda a, b: a + b)(torch.zeros(2, 3), p),
    "grad": lambda p: torch.func.grad(lambda q: (q * q).sum() / 2)(p),
    "vjp": lambda p: torch.func.vjp(lambda q: q * 1, p)[0],
    "jacrev": lambda p: torch.func.jacrev(lambda q: (q * q).sum() / 2)(p),
    "nested": lambda p: torch.nested.nested_tensor([p, p])[0],
    "nested in two ways": lambda p: torch.nested.as_nested_tensor([p, p])[1],
    "jagged": lambda p: torch.nested.nested_tensor([p], layout=torch.jagged).unbind()[0],
    "Parameter": nn.Parameter,
    "frozen Parameter": lambda p: nn.Parameter(p, requires_grad=False),
    "Parameter of data": lambda p: nn.Parameter(p.data),
    "Buffer": nn.Buffer,
    "as_subclass": lambda p: p.as_subclass(torch.Tensor),
    "asarray": torch.asarray,
    "as_tensor": torch.as_tensor,
    "numpy": lambda p: torch.from_numpy(np.array(p.detach())),
    "dlpack": lambda p: torch.from_dlpack(p.detach()),
    "vector": lambda p: nn.utils.parameters_to_vector([p]).view(2, 3),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "save": saved,
    "sparse": lambda p: p.to_sparse().to_dense(),
    "ParameterList": lambda p: nn.ParameterList([p])[0],
}


@pytest.fixture
def newest(batch, opts):
    """A parameter that is old on the host, and the values that it should have."""
    torch.manual_seed(1)
    model = Regression()
    twin = copy.deepcopy(model)
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    parameter = model.linear.weight
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(2):
        training(*batch)
        eager_step(twin, optimizer, *batch)
    assert training._sync.stale
    return parameter, twin.linear.weight.detach()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_fetches_the_newest_values(read, newest):
    parameter, expected = newest
    torch.testing.assert_close(read(parameter).detach(), expected, check_stride=False)


def test_a_parameter_made_of_a_trained_one_shares_its_memory(newest):
    parameter, _ = newest
    made = nn.Parameter(parameter)
    assert isinstance(made, nn.Parameter) and made.is_leaf and made.requires_grad
    assert not nn.Parameter(parameter, False).requires_grad
    with torch.no_grad():
        made.zero_()
    assert torch.equal(parameter, torch.zeros(2, 3))


def test_it_goes_on_following(batch, opts):
    model = Regression()
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    training(*batch)
    made = nn.Parameter(model.linear.weight)
    other = nn.Linear(3, 2)
    other.weight = made
    training(*batch)
    now = other(batch[0])
    torch.testing.assert_close(now, model.linear(batch[0]) - model.linear.bias + other.bias)


def test_functions_of_torch_work_as_before(newest, batch, opts):
    assert torch.equal(torch.tensor([1, 2]), torch.arange(1, 3))
    assert torch.tensor([[True], [False]]).dtype == torch.bool
    assert torch.zeros(2, dtype=torch.float64).new_tensor([1.5]).dtype == torch.float64

    @torch.jit.script
    def scripted(x):
        return x + torch.tensor([1.0, 2.0])

    assert torch.equal(scripted(torch.zeros(2)), torch.tensor([1.0, 2.0]))

    class Lists(nn.Module):
        def forward(self, x):
            return torch.tensor([1.0, 2.0, 3.0]) * x + x.new_tensor([1.0])

    expected = Lists()(batch[0])
    torch.testing.assert_close(poptorch.inferenceModel(Lists(), opts)(batch[0]), expected)
