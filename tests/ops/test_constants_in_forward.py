# SPDX-License-Identifier: Apache-2.0
"""Values known at capture may steer Python and shapes; values of inputs and weights may not."""

import functools

import poptorch
import pytest
import torch
from against_eager import check_inference, check_training, quiet


class Model(torch.nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 4))
        self.register_buffer("kept", torch.ones(4))
        self.plain = torch.tensor([True, False, True, True])

    def forward(self, x):
        return self.body(self, x * self.weight)


def _branch(m, x):
    mask = torch.arange(4) % 2 == 0
    return x + 1 if mask.any() else x


def _item(m, x):
    return x * torch.tensor([1.0, 2.5]).sum().item()


def _list(m, x):
    return x[:, torch.tensor([3, 1, 2]).sort()[0].tolist()]


def _numpy(m, x):
    return x * float(torch.full((2,), 3.0).numpy().sum())


def _written(m, x):
    steps = torch.zeros(4)
    steps[1] = 3.0
    steps.add_(1)
    return x * 2 if steps.sum().item() == 7 else x


def _mask(m, x):
    return x[:, torch.arange(4) > 1]


def _attribute_mask(m, x):
    return x[:, m.plain]


def _select(m, x):
    return torch.masked_select(x @ x.T, torch.ones(4, 4).triu().bool())


def _positions(m, x):
    rows, columns = torch.eye(4).nonzero(as_tuple=True)
    return x[rows, columns]


def _unique(m, x):
    return x[:, torch.unique(torch.tensor([0, 2, 2, 3]))]


def _equal(m, x):
    return -x if torch.equal(torch.ones(2), torch.full((2,), 1.0)) else x


def _assigned(m, x):
    x = x.clone()
    x[:, torch.tensor([True, False, False, True])] = 0.5
    return x


KNOWN = [
    _branch,
    _item,
    _list,
    _numpy,
    _written,
    _mask,
    _attribute_mask,
    _select,
    _positions,
    _unique,
    _equal,
    _assigned,
]


@pytest.mark.parametrize("body", KNOWN, ids=lambda f: f.__name__.strip("_"))
def test_known_values_are_used(body):
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    check_inference(Model(body), (x,))
    check_training(Model(body), (x,))


def _write_of_data(m, x):
    steps = torch.zeros(4)
    steps[1] = x[0, 0]
    return x * 2 if steps.sum().item() > 0 else x


def _write_through_view(m, x):
    steps = torch.zeros(4)
    view = steps[:2]
    view.copy_(x[0, :2])
    return x * 2 if steps.sum().item() > 0 else x


READ = {
    "input": lambda m, x: x * x.sum().item(),
    "weight": lambda m, x: x * m.weight.max().item(),
    "buffer": lambda m, x: x * m.kept.sum().item(),
    "random": lambda m, x: x * torch.rand(2).sum().item(),
    "undefined": lambda m, x: x * torch.empty(2).sum().item(),
    "write": _write_of_data,
    "write through a view": _write_through_view,
    "equal": lambda m, x: -x if torch.equal(x, x + 1) else x,
    "allclose": lambda m, x: -x if torch.allclose(x, x + 1) else x,
    "tolist": lambda m, x: x * x.sum().tolist(),
    "bool": lambda m, x: -x if bool((x > 0).all()) else x,
    "range": lambda m, x: x[: int(x.sum())],
}
COUNTS = {
    "nonzero": lambda m, x: torch.nonzero(x),
    "argwhere": lambda m, x: torch.argwhere(x > 0),
}
SHAPES = {
    "mask": lambda m, x: x[x > 0],
    "masked_select": lambda m, x: torch.masked_select(x, x > 0),
    "unique": lambda m, x: torch.unique(x),
    "unique_consecutive": lambda m, x: torch.unique_consecutive(x),
    "bincount": lambda m, x: torch.bincount((x.flatten() > 0).long()),
}


@pytest.mark.parametrize("name", [*READ, *COUNTS, *SHAPES])
def test_unknown_values_are_refused_with_the_line(name):
    body = {**READ, **COUNTS, **SHAPES}[name]
    options = quiet() if name in SHAPES else quiet().valuesReadInForward("error")
    executor = poptorch.inferenceModel(Model(body), options=options)
    with pytest.raises(poptorch.Error) as caught:
        executor(torch.randn(4, 4))
    text = str(caught.value)
    assert "captured once" in text, text
    assert "test_constants_in_forward.py:" in text, text
    shape = name in ("nonzero", "mask", "masked_select", "unique", "argwhere", "bincount")
    assert ("torch.where" in text) and (("topk" in text) or not shape), text


def test_a_random_number_that_python_reads_is_drawn_once(caplog):
    """As a branch on it is, the layer that is dropped at random stays dropped or kept."""

    def body(m, x):
        return x + sum(10**i for i in range(6) if torch.rand([]) < 0.5)

    torch.manual_seed(1)
    expected = sum(10**i for i in range(6) if torch.rand([]) < 0.5)
    assert 0 < expected < 111111
    torch.manual_seed(1)
    executor = poptorch.inferenceModel(Model(body), options=quiet())
    for _ in range(2):
        assert (executor(torch.zeros(4)) == expected).all()
    (record,) = [r for r in caplog.records if "random number" in r.getMessage()]
    assert "test_constants_in_forward.py:" in record.getMessage()


def test_an_argument_by_keyword_reaches_a_decorator_as_one():
    def decorated(function):
        @functools.wraps(function)
        def wrapper(self, *args, **kwargs):
            kwargs.setdefault("scale", 3)
            return function(self, *args, **kwargs)

        return wrapper

    class Scaled(torch.nn.Module):
        @decorated
        def forward(self, x, y=None, scale=1, *, shift=0):
            return x * scale + y + shift

    one = torch.ones(2)
    for kwargs, expected in (({"y": one}, 4), ({"shift": 1, "y": one, "scale": 2}, 4)):
        assert (poptorch.inferenceModel(Scaled(), options=quiet())(one, **kwargs) == expected).all()
