# SPDX-License-Identifier: Apache-2.0
"""Indices and slice bounds that are tensors follow the data of each call, forward and backward."""

import copy

import poptorch
import pytest
import torch
from against_eager import quiet
from tolerances import assert_pass_close

SIZES = (6, 5, 4)


class Model(torch.nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 4))
        self.register_buffer("kept", torch.zeros(6, 4))

    def forward(self, x, i, j):
        y = self.body(self, x * self.weight, i, j)
        return y, poptorch.identity_loss((y * y).sum(), "none")


def _row(m, x, i, j):
    return x[i]


def _negative(m, x, i, j):
    return x[i - 6] + x[-1 - j]


def _element(m, x, i, j):
    return x[i, j]


def _later_dims(m, x, i, j):
    return x[:, j].sum() * x[..., j] + x[:, :, i - i]


def _inserted(m, x, i, j):
    return x[None, i, :, None, j]


def _among_indices(m, x, i, j):
    return x[torch.tensor([0, 2]), j, torch.tensor([1, 1])] * x[i, :, torch.tensor([2, 0])].sum()


def _masked(m, x, i, j):
    return x[torch.tensor([True, False] * 3), j]


def _window(m, x, i, j):
    return x[i : i + 2]


def _windows(m, x, i, j):
    return x[i : i + 2, j : j + 1, 1:3]


def _scaled_bounds(m, x, i, j):
    k = i // 2
    return x[k * 2 : (k + 1) * 2] + x[2 * k : 2 + k * 2]


def _from_both(m, x, i, j):
    return x[i + j - j : j + i - j + 2]


def _negative_bounds(m, x, i, j):
    return x[i - 6 : i - 4 - 1] + x[0]


def _stepped(m, x, i, j):
    return x[j : j + 3 : 2]


def _narrowed(m, x, i, j):
    return torch.narrow(x, 0, i, 2) + x.narrow(0, i - 6, 2) + x.narrow_copy(1, j, 2).sum()


def _selected(m, x, i, j):
    return torch.select(x, 0, i) + x.select(0, j) + x.select(1, j).sum() + x.select(-1, 2).sum()


def _scattered(m, x, i, j):
    return torch.select_scatter(x, x[0] * 2, 0, i)


def _cast(m, x, i, j):
    return x[i.int() : i.long() + torch.tensor(2)] + x[i.reshape(1) : i.reshape(1) + 2]


def _part_of_vector(m, x, i, j):
    both = torch.stack([i, j])
    return x[both[0] : both[0] + 2] + x[both[1], both[1]]


def _moved(m, x, i, j):
    k = i.clone()
    k += 1
    return x[k - 1 : k + 1]


def _listed(m, x, i, j):
    return x[[i, j]] + x[[i, 0, j], 1].sum() + x[:, [j, j + 1]].sum()


def _made_of_numbers(m, x, i, j):
    rows = torch.tensor([i, 0, j])
    both = torch.tensor([[x[0, 0, 0], 1.0], [2, i]])
    both = both * torch.as_tensor([i, 2]) + x.new_tensor([[j], [1]])
    return x[rows].sum(0) * both.sum() + torch.tensor([i, j], dtype=torch.float32).mean()


def _filled(m, x, i, j):
    y = torch.full((5, 4), i) + torch.full((4,), x.detach().sum(), dtype=torch.float32)
    return x * y + torch.full_like(x, j) + x.new_full((5, 4), i)


def _counted(m, x, i, j):
    return x[torch.arange(i, i + 2)] * torch.arange(j * 2, j * 2 + 4) + torch.arange(j, j + 5, 2)[1]


def _rolled(m, x, i, j):
    return torch.roll(x, i, 0) + x.roll(j, (1,)) + torch.roll(x, -j) * 2


def _assigned(m, x, i, j):
    y = x * 1
    y[i] = x[0] * 3
    return y


def _element_assigned(m, x, i, j):
    y = x * 1
    y[i, j] = x[0, 0]
    y[j, :, 1] = 2.0
    return y


def _window_assigned(m, x, i, j):
    y = x * 1
    y[i : i + 2, 1:3] = x[:1, :1]
    y[..., j : j + 1] = 0.5
    return y


def _added(m, x, i, j):
    y = x * 1
    y[i] += x[1]
    y[i, j] *= 2
    y[j : j + 2] -= x[:2]
    return y


def _written_through_view(m, x, i, j):
    y = x * 1
    row = y[i]
    row[1:3].mul_(3)
    part = y[i].view(-1)
    part[:2].add_(1)
    torch.relu_(row)
    return y + row


def _seen_through_view(m, x, i, j):
    y = x * 1
    row, window = y[i], y[j : j + 2]
    y[1:5].add_(2)
    y[j] = 0.25
    window[0] += 4
    return y + row + window.sum()


def _view_of_view(m, x, i, j):
    y = x * 1
    y[i][j].fill_(3.0)
    y[i : i + 2][0, j, 1:] = 5.0
    return y


def _detached(m, x, i, j):
    y = x.detach() * 1
    y[i].detach().zero_()
    return y * x


def _buffer(m, x, i, j):
    m.kept[i] += x.detach()[j, 0]
    m.kept[j : j + 2] = 1.0
    return x + m.kept[:, None]


def _parameter(m, x, i, j):
    return x * m.weight[j] + m.weight[j % 3 : j % 3 + 2].sum()


def _constant(m, x, i, j):
    return x * torch.arange(6.0)[i] + torch.eye(5)[j, j]


def _loop(m, x, i, j):
    total = x[i] * 0
    for step in range(4):
        total = total + x[(i + step) % 6] * step
    return total


BODIES = [
    _row,
    _negative,
    _element,
    _later_dims,
    _inserted,
    _among_indices,
    _masked,
    _window,
    _windows,
    _scaled_bounds,
    _from_both,
    _negative_bounds,
    _stepped,
    _narrowed,
    _selected,
    _scattered,
    _cast,
    _part_of_vector,
    _moved,
    _listed,
    _made_of_numbers,
    _filled,
    _counted,
    _rolled,
    _assigned,
    _element_assigned,
    _window_assigned,
    _added,
    _written_through_view,
    _seen_through_view,
    _view_of_view,
    _detached,
    _buffer,
    _parameter,
    _constant,
    _loop,
]


def _args(i, j):
    x = torch.randn(SIZES, generator=torch.Generator().manual_seed(i + 7 * j))
    return x, torch.tensor(i), torch.tensor(j, dtype=torch.int32)


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__.strip("_"))
def test_as_in_eager_for_every_index(body, caplog):
    model = Model(body)
    eager = copy.deepcopy(model)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
    executor = poptorch.trainingModel(model, options=quiet(), optimizer=optimizer)
    for i, j in ((1, 2), (4, 0), (0, 1), (2, 2), (4, 1)):
        args = _args(i, j)
        actual = executor(*args)
        eager.zero_grad()
        expected = eager(*args)
        expected[1].backward()
        torch.optim.SGD(eager.parameters(), lr=0.01).step()
        for a, b, what in zip(actual, expected, ("result", "loss"), strict=True):
            assert_pass_close(a, b.detach(), f"{what} at {i}, {j}")
        executor.copyWeightsToHost()
        for name, value in eager.state_dict().items():
            assert_pass_close(model.state_dict()[name], value, f"{name} at {i}, {j}")
            value.copy_(model.state_dict()[name])
    assert not any("reads the value" in r.getMessage() for r in caplog.records)
    assert executor.getProgramSummary()["host_calls"] == []


class Indexed(torch.nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x, i):
        return self.body(x, i)


OUT_OF_RANGE = {
    "row": (lambda x, i: x[i], (6, 9, -7)),
    "window": (lambda x, i: x[i : i + 2], (5, 6, -1, -2, -7)),
    "narrow": (lambda x, i: x.narrow(0, i, 2), (5, -1, -7)),
    "select": (lambda x, i: x.select(0, i), (6, -7)),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_out_of_range_is_an_error_of_the_call(name):
    body, places = OUT_OF_RANGE[name]
    executor = poptorch.inferenceModel(Indexed(body), options=quiet())
    x = torch.randn(6, 3)
    for i in (0, 3, -3):
        assert torch.equal(executor(x, torch.tensor(i)), body(x, torch.tensor(i)))
    for i in places:
        with pytest.raises(poptorch.Error, match="(?s)test_dynamic_index.py.*out of bounds"):
            executor(x, torch.tensor(i))
    assert torch.equal(executor(x, torch.tensor(1)), body(x, torch.tensor(1)))


@pytest.mark.parametrize(
    "body",
    [
        lambda x, i: x[i:],
        lambda x, i: x[: i + 1],
        lambda x, i: x[i : i * 2 + 1],
        lambda x, i: x[i : i + 9],
        lambda x, i: torch.zeros(6)[: x.abs().max().long() : 1].sum() + x,
    ],
)
def test_a_size_that_depends_on_data_is_frozen(body, caplog):
    executor = poptorch.inferenceModel(Indexed(body), options=quiet())
    x, i = torch.randn(6, 3), torch.tensor(2)
    assert torch.equal(executor(x, i), body(x, i))
    assert any("reads the value" in r.getMessage() for r in caplog.records)
    other = torch.randn(6, 3)
    assert torch.equal(executor(other, i), body(other, i))


def test_repeats_have_the_sum_of_the_first_inputs(caplog):
    def body(x, repeats):
        return x.repeat_interleave(repeats, 0)

    executor = poptorch.inferenceModel(Indexed(body), options=quiet())
    x = torch.randn(3, 2)
    for repeats in ([1, 2, 3], [6, 0, 0], [0, 5, 1]):
        repeats = torch.tensor(repeats)
        assert torch.equal(executor(x, repeats), body(x, repeats))
    assert any("in forward: 6." in r.getMessage() for r in caplog.records)
    with pytest.raises(poptorch.Error, match="add up to 4, output_size is 6"):
        executor(x, torch.tensor([2, 1, 1]))


PLACES = {
    "rows": lambda x, i: x.nonzero(),
    "tuple": lambda x, i: x.nonzero(as_tuple=True)[1] * 2,
    "argwhere": lambda x, i: torch.argwhere(x > 0.5),
    "gather": lambda x, i: x.flatten()[(x.flatten() > 0).nonzero()],
    "where": lambda x, i: torch.where(x)[0],
}


@pytest.mark.parametrize("name", PLACES)
def test_places_that_are_not_zero_are_as_many_as_in_the_first_inputs(name):
    body = PLACES[name]
    executor = poptorch.inferenceModel(Indexed(body), options=quiet())
    i = torch.tensor(0)
    for places in ([0, 4, 7], [1, 2, 8], [6, 7, 8]):
        x = torch.zeros(9).index_fill(0, torch.tensor(places), 1.0).reshape(3, 3)
        assert torch.equal(executor(x, i), body(x, i).to(executor(x, i).dtype))
    for wrong in (torch.ones(3, 3), torch.zeros(3, 3)):
        with pytest.raises(poptorch.Error, match="add up to"):
            executor(wrong, i)


def test_no_place_at_all_is_checked_in_each_call():
    def body(x, i):
        y = x.clone()
        y[(x > 5).nonzero(as_tuple=True)] = 0.0
        return y

    executor = poptorch.inferenceModel(Indexed(body), options=quiet())
    x, i = torch.randn(3, 3), torch.tensor(0)
    for _ in range(2):
        assert torch.equal(executor(x, i), x)
    with pytest.raises(poptorch.Error, match="There it was 0"):
        executor(x + 9, i)


def test_bounds_written_in_place_are_not_confused():
    def body(x, i):
        k = i * 1
        low = k.view(())
        high = k + 2
        k.add_(1)  # low is i + 1 now
        return x[low:high]

    executor = poptorch.inferenceModel(Indexed(body), options=quiet())
    x = torch.randn(6, 3)
    assert torch.equal(executor(x, torch.tensor(2)), body(x, torch.tensor(2)))


# Labels that a mask selects -----------------------------------------------------------------------


class Speech(torch.nn.Module):
    """The targets of ctc_loss one behind the other, as libraries make them of padded labels."""

    def __init__(self, select):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(5, 6)
        self.select = select

    def forward(self, x, labels):
        logits = self.linear(x).log_softmax(-1)
        lengths = torch.full((x.shape[1],), x.shape[0])
        targets = self.select(labels, labels >= 0)
        counts = (labels >= 0).sum(-1)
        loss = torch.nn.functional.ctc_loss(logits, targets, lengths, counts, zero_infinity=True)
        return logits, loss


SELECT = {
    "masked_select": lambda labels, mask: labels.masked_select(mask),
    "function": lambda labels, mask: torch.masked_select(labels, mask).to(torch.int32),
    "mask": lambda labels, mask: labels[mask],
}


@pytest.mark.parametrize("name", SELECT)
def test_selected_labels_may_be_targets_of_ctc(name):
    model = Speech(SELECT[name])
    eager = copy.deepcopy(model)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, options=quiet(), optimizer=optimizer)
    for labels in ([[1, 2, 3], [4, -1, -1]], [[5, -1, -1], [1, 2, -1]], [[1, 2, 3], [3, 2, 1]]):
        args = torch.randn(8, 2, 5), torch.tensor(labels)
        _, loss = executor(*args)
        eager.zero_grad()
        expected = eager(*args)[1]
        expected.backward()
        torch.optim.SGD(eager.parameters(), lr=0.1).step()
        assert_pass_close(loss, expected.detach(), "loss")
        executor.copyWeightsToHost()
        for key, value in eager.state_dict().items():
            assert_pass_close(model.state_dict()[key], value, key)
            value.copy_(model.state_dict()[key])


@pytest.mark.parametrize(
    "use",
    [
        lambda labels: labels,
        lambda labels: labels.sum(),
        lambda labels: labels.long().shape[0],
        lambda labels: len(labels),
        lambda labels: labels + 1,
        lambda labels: torch.cat([labels, labels]),
    ],
)
@pytest.mark.parametrize("name", SELECT)
def test_no_other_use_of_selected_labels(name, use):
    def body(x, labels):
        return x, use(SELECT[name](labels, labels >= 0))

    executor = poptorch.inferenceModel(Indexed(body), options=quiet())
    with pytest.raises(poptorch.Error, match="depends on the data"):
        executor(torch.randn(2), torch.tensor([1, 2, -1]))
