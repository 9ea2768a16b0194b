# SPDX-License-Identifier: Apache-2.0
"""Values that forward reads are those of the first inputs: the program is frozen to them."""

import poptorch
import pytest
import torch
from against_eager import check_inference, check_training, quiet


class Model(torch.nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 4))
        self.register_buffer("kept", torch.full((4,), 2.0))

    def forward(self, x):
        return self.body(self, x * self.weight)


def _branch(m, x):
    if x.sum() > 0:
        return x + 1
    return -x


def _asserted(m, x):
    assert (x < 100).all(), "too large"
    return x * 2


def _loop(m, x):
    for step in range(int((x > 0).sum())):
        x = x + step
    return x


def _found(m, x):
    number = (x > 0).sum()
    return x + 1 if number in (3, 4, 5, 6, 7, 8) else x


def _contained(m, x):
    return x + 1 if x.detach()[0, 0] in x else x


def _list(m, x):
    lengths = (x > 0).sum(1).tolist()
    return torch.stack([row[: max(1, n)].sum() for row, n in zip(x, lengths, strict=True)])


def _array(m, x):
    return x * float((x > 0).sum(1).numpy().max())


def _view_written(m, x):
    steps = torch.zeros(4)
    steps[:2].copy_(x[0, :2])
    x = x * 2 if steps.sum().item() > 0 else x
    steps[2:].fill_(-100)
    return x * 3 if steps.sum().item() > 0 else x


def _input_written(m, x):
    y = x.clone()
    before = y.sum()
    y.add_(1)
    return y * (y.sum() - before).item() + before.item()


def _buffer_written(m, x):
    m.kept.add_(x.detach().sum(0))
    return x * m.kept.sum().item()


def _weight(m, x):
    return x / m.weight.detach().abs().max().item()


def _split(m, x):
    where = (x > 0).sum().clamp(1, 3)
    return torch.cat(list(reversed(x.tensor_split(torch.stack([where]), 1))), 1)


def _split_by_name(m, x):
    where = (x > 0).sum().clamp(1, 3).reshape(1)
    parts = torch.tensor_split(x, dim=1, tensor_indices_or_sections=where)
    fixed = x.tensor_split(tensor_indices_or_sections=torch.tensor([1, 2]))
    return torch.cat(list(reversed(parts)), 1) + fixed[0]


def _sizes(m, x):
    count = int((x > 0).sum(1).max())
    return x.narrow(1, 0, max(1, count)).sum(1) + torch.arange(count + 1).sum()


def _attention(m, x):
    heads = x.reshape(1, 1, 4, 4)
    y = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return x * y.sum().item() + y.reshape(4, 4)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.lstm = torch.nn.LSTM(4, 4, bidirectional=True)
        self.gru, self.rnn = torch.nn.GRU(8, 4), torch.nn.RNN(4, 4)

    def forward(self, x):
        for cell in (self.lstm, self.gru, self.rnn):
            x = cell(x)[0]
            x = x * 2 if x[0, 0] > 0 else x * 3
        return x * x.sum().item()


class Packed(Recurrent):
    def forward(self, x, lengths):
        pack = torch.nn.utils.rnn.pack_padded_sequence
        packed = pack(x, lengths, batch_first=True, enforce_sorted=False)
        return torch.nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


def _equal(m, x):
    x = -x if torch.equal(x, x * 1) else x
    return x * 2 if torch.allclose(x, x + 1e-9) else x


def _caught(m, x):
    try:
        assert x.sum() > 1e9
    except AssertionError:
        return x - 1
    return x


READS = [
    _branch,
    _asserted,
    _loop,
    _found,
    _contained,
    _list,
    _array,
    _view_written,
    _input_written,
    _buffer_written,
    _weight,
    _split,
    _split_by_name,
    _sizes,
    _attention,
    _equal,
    _caught,
]


def _x(seed=0):
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))


def _warnings(caplog):
    return [r.getMessage() for r in caplog.records if "reads the value" in r.getMessage()]


@pytest.mark.parametrize("body", READS, ids=lambda f: f.__name__.strip("_"))
def test_the_first_inputs_decide(body):
    check_inference(Model(body), (_x(),), calls=1)
    check_training(Model(body), (_x(),), calls=1)


def test_values_behind_recurrent_layers():
    check_inference(Recurrent(), (_x(),), calls=1)
    check_training(Recurrent(), (_x(),), calls=1)


def test_lengths_of_packed_sequences_are_those_of_the_first_inputs():
    args = torch.randn(3, 5, 4), torch.tensor([2, 5, 3])
    check_inference(Packed(), args)
    check_training(Packed(), args)


def test_the_path_stays(caplog):
    model = Model(_branch)
    executor = poptorch.inferenceModel(model, options=quiet())
    first, other = _x(), -_x()
    positive = bool((first * model.weight).sum() > 0)
    executor(first)
    expected = other * model.weight
    torch.testing.assert_close(executor(other), expected + 1 if positive else -expected)
    (text,) = _warnings(caplog)
    assert f"in forward: {positive}." in text and "test_values_read_in_forward.py:" in text
    assert "x.sum() > 0" in text


def test_one_warning_per_line(caplog):
    def body(m, x):
        for _ in range(3):
            x = x + x.sum().item()
        return x * x.max().item()

    poptorch.inferenceModel(Model(body), options=quiet())(_x())
    assert len(_warnings(caplog)) == 2


def test_the_first_micro_batch_decides():
    def body(m, x):
        return x + x.sum().item()

    model = Model(body)
    executor = poptorch.inferenceModel(model, options=quiet().deviceIterations(2))
    x = torch.cat([_x(0), _x(1)])
    plain = x * model.weight
    torch.testing.assert_close(executor(x), plain + plain[:4].sum().item())


def test_trained_weights_are_read():
    class Trained(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x, target=None):
            y = x * self.weight
            if target is None:
                return y * self.weight.sum().item()
            return y, torch.nn.functional.mse_loss(y, target)

    model = Trained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    training = poptorch.trainingModel(model, options=quiet(), optimizer=optimizer)
    training(_x(), torch.zeros(4, 4))
    actual = poptorch.inferenceModel(model, options=quiet())(_x())
    assert abs(model.weight.sum().item() - 4) > 0.1
    torch.testing.assert_close(actual, model(_x()).detach())


def test_random_numbers_are_drawn_once_and_stay_the_same(caplog):
    def body(m, x):
        noise = torch.empty(3).uniform_()
        first, again = noise.sum().item(), noise.sum().item()
        assert first == again
        return x * 0 + first

    torch.manual_seed(5)
    expected = torch.empty(3).uniform_().sum().item()
    torch.manual_seed(5)
    executor = poptorch.inferenceModel(Model(body), options=quiet())
    for _ in range(2):
        torch.testing.assert_close(executor(_x()), torch.full((4, 4), expected))
    assert "random number" in _warnings(caplog)[0]


def test_the_users_tensors_stay_as_they_are():
    def body(m, x):
        m.kept.mul_(2)
        return x * m.kept.sum().item()

    model, x = Model(body), _x()
    poptorch.inferenceModel(model, options=quiet())(x)
    assert torch.equal(model.kept, torch.full((4,), 2.0)) and torch.equal(x, _x())


def test_large_tensors_are_not_decisions():
    def body(m, x):
        return x * float(x.expand(200, 4, 4).contiguous().numpy().sum())

    with pytest.raises(poptorch.Error, match="reads the value"):
        poptorch.inferenceModel(Model(body), options=quiet())(_x())


def test_an_error_of_eager_is_told():
    def body(m, x):
        return x * x.flatten()[(x * 0 + 99).long()[0]].sum().item()

    with pytest.raises(poptorch.Error, match="cannot be computed now: index 99 is out of bounds"):
        poptorch.inferenceModel(Model(body), options=quiet())(_x())


def test_nothing_is_computed_if_nobody_reads(monkeypatch):
    from poptorch.capture.values import replay

    def forbidden(*_):
        raise AssertionError("computed a value")

    monkeypatch.setattr(replay.Replay, "values_of", forbidden)
    check_inference(Model(lambda m, x: x + 1), (_x(),))


# Checked calls ------------------------------------------------------------------------------------


def _checked():
    return quiet().valuesReadInForward("check")


CHECKED = {
    "branch": (_branch, -1),
    "loop": (_loop, -1),
    "list": (_list, -1),
    "array": (_array, -1),
    "equal": (lambda m, x: -x if torch.equal(x, x.abs()) else x, -1),
    "float": (lambda m, x: x * x.sum().item(), 1.01),
    "weight": (lambda m, x: x * float(m.weight.sum()) + x[:1, : int(x.abs().max())].sum(), 10),
}


@pytest.mark.parametrize("name", CHECKED)
def test_another_value_is_an_error_if_calls_are_checked(name):
    body, factor = CHECKED[name]
    model, x = Model(body), _x().abs() if name == "equal" else _x()
    if name == "equal":
        model.weight.data.abs_()
    executor = poptorch.inferenceModel(model, options=_checked())
    expected = model(x).detach()
    for _ in range(2):
        torch.testing.assert_close(executor(x), expected)
    with pytest.raises(poptorch.Error, match="reads in forward is another one") as caught:
        executor(x * factor)
    assert "test_values_read_in_forward.py:" in str(caught.value)
    torch.testing.assert_close(executor(x), expected)


def test_only_what_python_gets_is_checked():
    def body(m, x):
        return x + int(x.abs().max()) if x.abs().max() else x

    x = torch.full((4, 4), 3.2)
    executor = poptorch.inferenceModel(Model(body), options=_checked())
    executor(x)
    executor(x + 0.5)
    with pytest.raises(poptorch.Error, match="There it was 3"):
        executor(x + 1)


def test_checks_are_no_outputs_of_the_users():
    executor = poptorch.inferenceModel(Model(_branch), options=_checked())
    assert executor(_x()).shape == (4, 4)
    assert len(executor.getPerfCounters()["output"]) == 1


def _sum_sign(m, x):
    return x * (1.0 if x.sum() >= 0 else -1.0)


@pytest.mark.parametrize("iterations, replicas", [(3, 1), (1, 2), (2, 2)])
def test_every_micro_batch_is_checked(iterations, replicas):
    options = _checked().deviceIterations(iterations).replicationFactor(replicas)
    model = Model(_sum_sign)
    model.weight.data.fill_(1.0)
    executor = poptorch.inferenceModel(model, options=options)
    x = torch.ones(iterations * replicas, 4)
    torch.testing.assert_close(executor(x), x)
    for row in range(len(x)):
        wrong = x.clone()
        wrong[row] = -1
        with pytest.raises(poptorch.Error, match="another one"):
            executor(wrong)


class Staged(torch.nn.Module):
    """Reads a value on each of its two IPUs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, target):
        with poptorch.Block("one", ipu_id=0):
            y = self.first(x) if x.sum() > 0 else self.first(-x)
        with poptorch.Block("two", ipu_id=1):
            z = self.second(y) * (1 if x[0, 0] > 0 else 2)
            return z, torch.nn.functional.mse_loss(z, target)


@pytest.mark.parametrize("pipelined", [False, True])
def test_training_on_several_ipus_is_checked(pipelined):
    options = _checked()
    options.Training.gradientAccumulation(3)
    if not pipelined:
        options.setExecutionStrategy(poptorch.ShardedExecution())
    model = Staged()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, options=options, optimizer=optimizer)
    x, target = torch.ones(6, 4), torch.zeros(6, 4)
    first = executor(x, target)[1].sum()
    assert executor(x, target)[1].sum() < first
    for row, value in ((3, -9.0), (4, -0.5)):
        wrong = x.clone()
        wrong[row, 0] = value
        with pytest.raises(poptorch.Error, match="another one"):
            executor(wrong, target)


def test_hooks_of_gradients_may_read():
    class Hooked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x):
            y = x * self.weight
            y.register_hook(lambda g: g * 2 if g.abs().sum() > 0 else g)
            return y, torch.nn.functional.mse_loss(y, torch.zeros_like(y))

    check_training(Hooked(), (_x(),), calls=1, with_loss=lambda m: m)


def test_the_option_is_checked():
    with pytest.raises(ValueError, match="valuesReadInForward"):
        poptorch.Options().valuesReadInForward("sometimes")


def test_values_are_read_in_inference_mode_too():
    for body in (_branch, _asserted, _loop, lambda m, x: x * x.max().item()):
        model = Model(body)
        with torch.inference_mode():
            actual = poptorch.inferenceModel(model, options=quiet())(_x())
            torch.testing.assert_close(actual, model(_x()))


def test_what_was_computed_for_one_read_is_there_for_the_next(monkeypatch):
    from poptorch.capture.values import replay

    computed = []
    apply = replay.Replay._apply
    monkeypatch.setattr(
        replay.Replay, "_apply", lambda self, node: computed.append(node) or apply(self, node)
    )

    def body(m, x):
        for _ in range(20):
            x = torch.relu(x + 1)
            assert not torch.isnan(x).any()
        return x

    check_inference(Model(body), (_x(),))
    assert len(computed) == len(set(computed)) < 20 * 8
