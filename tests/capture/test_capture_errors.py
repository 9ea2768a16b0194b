# SPDX-License-Identifier: Apache-2.0
"""Bad models: a typed error with the user's line, and the model left as it was."""

import linecache

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from harness import captured, check
from poptorch.base.errors import Error
from poptorch.capture import running_on_ipu
from torch import nn


class Model(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.body = body

    def forward(self, x):
        y = self.body(self, self.lin(x))
        return y, F.mse_loss(y, x)


def _branch(m, y):
    if y.sum() > 0:
        return y
    return -y


def _item(m, y):
    return y * y.sum().item()


def _float(m, y):
    return y * float(y.sum())


def _tolist(m, y):
    return y * y.sum(0).tolist()[0]


def _numpy(m, y):
    return y * torch.from_numpy(y.detach().numpy())


def _assert(m, y):
    assert (y > 0).all()
    return y


def _buffer_item(m, y):
    return y * m.seen[0].item()


@pytest.mark.parametrize("body", [_branch, _item, _float, _tolist, _numpy, _assert, _buffer_item])
def test_reading_a_value_names_the_line(body):
    model = Model(body)
    with pytest.raises(Error) as e:
        captured(model, (torch.randn(3, 4),), values_read="error")
    first = body.__code__.co_firstlineno
    where, line = e.value.location.rsplit(":", 1)
    assert where.endswith("test_capture_errors.py") and first < int(line) <= first + 4
    assert linecache.getline(where, int(line)).strip() in e.value.message
    assert "reads the value of a tensor" in e.value.message
    assert "torch.where" in e.value.message


@pytest.mark.parametrize("body", [_branch, _item, _float, _tolist, _numpy, _buffer_item])
def test_a_value_that_is_read_is_that_of_the_first_inputs(body, caplog):
    check(Model(body), (torch.randn(3, 4),))
    (record,) = [r for r in caplog.records if "reads the value of a tensor" in r.getMessage()]
    line = body.__code__.co_firstlineno + 1
    assert f"test_capture_errors.py:{line}" in record.getMessage()


@pytest.mark.parametrize(
    "body, name",
    [
        (lambda m, y: y.nonzero().float(), "nonzero"),
        (lambda m, y: y[y > 0], "boolean mask"),
        (lambda m, y: y.masked_select(y > 0), "masked_select"),
        (lambda m, y: y.unique(), "unique"),
    ],
)
def test_shape_that_depends_on_data_names_the_line(body, name):
    with pytest.raises(Error) as e:
        captured(Model(body), (torch.randn(3, 4),), values_read="error")
    assert "depends on the data" in e.value.message and name in e.value.message
    assert "test_capture_errors.py:" in e.value.location
    assert "mask" in e.value.message


def test_a_known_constant_may_be_read():
    check(Model(lambda m, y: y * torch.tensor(3.0).item()), (torch.randn(3, 4),))


class Mine(Exception):
    pass


def _raises(m, y):
    raise Mine("no")


def test_exception_of_the_user_keeps_its_type_and_gets_a_note():
    model = Model(_raises)
    weight, before = model.lin.weight, model.state_dict()
    with pytest.raises(Mine, match="no") as e:
        captured(model, (torch.randn(3, 4),))
    assert any("while capturing" in n and "test_capture_errors.py" in n for n in e.value.__notes__)
    assert model.lin.weight is weight and type(model.lin.weight) is nn.Parameter
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name])
    assert not running_on_ipu()
    model.body = lambda m, y: y
    check(model, (torch.randn(3, 4),))


def test_shape_mismatch_keeps_its_type_and_gets_a_note():
    with pytest.raises(RuntimeError) as e:
        captured(Model(lambda m, y: y), (torch.randn(3, 5),))
    assert any("test_capture_errors.py" in n for n in e.value.__notes__)


def _replace_buffer(m, y):
    m.seen = m.seen + 1
    return y


def _remove_buffer(m, y):
    del m.seen
    return y


def _replace_parameter(m, y):
    m.lin.bias = nn.Parameter(torch.zeros(4))
    return y


@pytest.mark.parametrize(
    "body, message",
    [
        (_replace_buffer, "Buffer seen is reassigned within the model when calling the forward"),
        (_remove_buffer, "Buffer seen is removed from the model when calling the forward method"),
        (_replace_parameter, "Parameter lin.bias is reassigned within the model when calling"),
    ],
)
def test_replacing_state_in_forward(body, message):
    model = Model(body)
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    with pytest.raises(Error, match=message):
        captured(model, (torch.randn(3, 4),))
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert list(before) == list(after)
    assert all(after[k] is before[k] for k in before)


def test_fake_tensors_do_not_stay_on_the_module():
    def keep(m, y):
        m.cache = y
        m.seen.add_(1)
        return y

    model = Model(keep)
    model.old = torch.ones(2)
    captured(model, (torch.randn(3, 4),))
    assert "cache" not in model.__dict__
    assert type(model.seen) is torch.Tensor and model.seen.sum() == 0


def test_uninitialised_lazy_module():
    with pytest.raises(Error, match="lazy module"):
        captured(nn.LazyLinear(4), (torch.randn(3, 4),), training=False)


def test_sparse_gradients_are_refused():
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4, sparse=True)

        def forward(self, i):
            return F.mse_loss(self.table(i), torch.zeros(3, 4))

    with pytest.raises(Error, match="sparse"):
        captured(Sparse(), (torch.tensor([1, 2, 3]),))


def test_batch_norm_with_cumulative_average_reads_no_value():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return F.mse_loss(self.inner(x), x)

    captured(Outer(), (torch.randn(3, 4),), values_read="error")
    check(Outer(), (torch.randn(3, 4),))


def test_constant_result_warns_and_is_returned():
    class Const(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.arange(3.0)

        def forward(self, x):
            return x * 2, self.table

    model = Const()
    with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
        c = captured(model, (torch.ones(2),), training=False)
    y, table = c.rebuild([torch.ones(2)])
    assert table is model.table
    assert len(c.outputs) == 1


def test_parameter_outside_the_model_warns():
    stray = nn.Parameter(torch.ones(4))
    with pytest.warns(UserWarning, match="does not belong to the model"):
        captured(Model(lambda m, y: y * stray), (torch.randn(3, 4),))


def test_running_on_ipu_only_while_forward_is_captured():
    seen = []

    def note(m, y):
        seen.append(running_on_ipu())
        return y

    captured(Model(note), (torch.randn(3, 4),))
    assert seen == [True]
    assert not running_on_ipu()


def test_forward_runs_once():
    calls = []

    def note(m, y):
        calls.append(1)
        m.seen[1:] += 1  # a view write: the second, functionalizing pass must not run forward again
        return y

    captured(Model(note), (torch.randn(3, 4),))
    assert len(calls) == 1
