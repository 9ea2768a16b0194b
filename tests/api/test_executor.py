# SPDX-License-Identifier: Apache-2.0
"""Calls of an executor: results, structures, batching, output modes, life cycle."""

import collections
import concurrent.futures
import copy
import dataclasses
import datetime
import gc
import pickle
import sys
import weakref

import poptorch
import pytest
import torch
from api_support import Regression, eager_step

Mode = poptorch.OutputMode


def test_training_equals_eager(regression, batch, opts):
    twin = copy.deepcopy(regression)
    training = poptorch.trainingModel(
        regression, opts, poptorch.optim.SGD(regression.parameters(), lr=0.1, momentum=0.9)
    )
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        out, loss = training(*batch)
        expected_out = twin(batch[0]).detach()
        expected = eager_step(twin, optimizer, *batch)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(out, expected_out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(dict(regression.state_dict()), dict(twin.state_dict()))


def test_default_optimizer_is_sgd_with_a_rate_of_one_hundredth(regression, batch, opts):
    twin = copy.deepcopy(regression)
    poptorch.trainingModel(regression, opts)(*batch)
    eager_step(twin, torch.optim.SGD(twin.parameters(), lr=0.01), *batch)
    torch.testing.assert_close(dict(regression.state_dict()), dict(twin.state_dict()))


def test_inference_returns_all_and_training_final_by_default(regression, batch, opts):
    opts.deviceIterations(2)
    x, y = batch
    assert poptorch.inferenceModel(regression, opts)(x).shape == (4, 2)
    out, loss = poptorch.trainingModel(regression, opts)(x, y)
    assert out.shape == (2, 2)
    assert loss.shape == ()


MODES = [(mode, 1, None) for mode in (Mode.All, Mode.Final, Mode.Sum)]
MODES += [(mode, 4, None) for mode in (Mode.All, Mode.Final, Mode.Sum)]
MODES += [(Mode.EveryN, 1, 1), (Mode.EveryN, 4, 1), (Mode.EveryN, 4, 2), (Mode.EveryN, 4, 4)]


@pytest.mark.parametrize("mode, iterations, period", MODES)
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("replicas", [1, 2])
def test_output_modes_and_weights(opts, mode, iterations, period, accumulation, replicas):
    """Shapes, order and values of every mode, and D updates over G x R micro-batches each."""
    torch.manual_seed(0)
    model = Regression()
    twin = copy.deepcopy(model)
    opts.deviceIterations(iterations).replicationFactor(replicas)
    opts.outputMode(mode, period)
    opts.Training.gradientAccumulation(accumulation)
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    steps = iterations * accumulation * replicas
    x, y = torch.randn(2 * steps, 3), torch.randn(2 * steps, 2)
    out, loss = training(x, y)

    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    outs, losses = [], []
    pieces = iter(zip(x.split(2), y.split(2), strict=True))
    for _ in range(iterations):
        optimizer.zero_grad()
        for _ in range(accumulation * replicas):
            o, one = twin(*next(pieces))
            (one / (accumulation * replicas)).backward()
            outs.append(o.detach())
            losses.append(one.detach())
        optimizer.step()

    def kept(values):
        table = torch.stack(values).reshape(iterations, accumulation, replicas, *values[0].shape)
        if mode == Mode.Final:
            table = table[-1, -1]
        elif mode == Mode.Sum:
            table = table.sum((0, 1))
        elif mode == Mode.EveryN:
            table = table[period - 1 :: period]
        if values[0].dim() == 0:
            return table.reshape(()) if table.numel() == 1 else table.reshape(-1)
        return table.reshape(-1, *values[0].shape[1:])

    torch.testing.assert_close(out, kept(outs), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss, kept(losses), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-5, atol=1e-6
    )


def test_sum_reduction(regression, opts):
    twin = copy.deepcopy(regression)
    opts.Training.gradientAccumulation(2)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    training = poptorch.trainingModel(
        regression, opts, torch.optim.SGD(regression.parameters(), lr=0.1)
    )
    x, y = torch.randn(4, 3), torch.randn(4, 2)
    training(x, y)
    for a, b in zip(x.split(2), y.split(2), strict=True):
        twin(a, b)[1].backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    torch.testing.assert_close(dict(regression.state_dict()), dict(twin.state_dict()))


@pytest.mark.parametrize(
    "kind, rows", [("Consecutive", [0, 0, 1, 1]), ("Orthogonal", [0, 1, 0, 1])]
)
def test_groups_of_replicas_share_inputs(regression, opts, kind, rows):
    opts.replicationFactor(4).deviceIterations(2)
    opts.inputReplicaGrouping(2, poptorch.CommGroupType[kind])
    x = torch.randn(4, 3)  # 2 iterations x 2 groups x 1 row
    out = poptorch.inferenceModel(regression, opts)(x)
    order = rows + [2 + r for r in rows]
    torch.testing.assert_close(out, regression(x[order]).detach())


def test_result_structures(opts):
    Pair = collections.namedtuple("Pair", "first second")

    class Structured(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            return {"list": [y, (x * 2,)], "pair": Pair(y, "text"), "none": None, "again": y}

    x = torch.randn(3)
    result = poptorch.inferenceModel(Structured(), opts)(x)
    assert list(result) == ["list", "pair", "none", "again"]
    assert isinstance(result["list"][1], tuple)
    assert isinstance(result["pair"], Pair) and result["pair"].second == "text"
    assert result["none"] is None
    torch.testing.assert_close(result["list"][0], x + 1)
    torch.testing.assert_close(result["list"][1][0], x * 2)
    torch.testing.assert_close(result["again"], x + 1)


def test_forward_without_result_returns_none(opts):
    class Nothing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(x.sum())

    executor = poptorch.inferenceModel(Nothing(), opts)
    assert executor(torch.ones(2)) is None
    executor.copyWeightsToHost()
    assert executor.count.item() == 2


def test_wide_results_are_narrowed(opts):
    class Wide(torch.nn.Module):
        def forward(self, x):
            return x.argmax(1), x.double() * 2

    x = torch.randn(4, 3)
    index, double = poptorch.inferenceModel(Wide(), opts)(x)
    assert index.dtype == torch.int32 and double.dtype == torch.float32
    assert torch.equal(index.long(), x.argmax(1))
    torch.testing.assert_close(double, x * 2)


def test_argument_structures(opts):
    class Structured(torch.nn.Module):
        def forward(self, pair, *rest, scale, **named):
            return pair[0] + pair[1]["b"] * scale + sum(rest) + named["extra"]

    one = torch.ones(2, 2)
    executor = poptorch.inferenceModel(Structured(), opts)
    for factor in (1.0, 2.0):
        x = one * factor
        result = executor((x, {"b": x}), x, x, scale=3, extra=x)
        torch.testing.assert_close(result, 7 * x)


def test_forms_of_a_call_are_equal(regression, batch, opts):
    x, y = batch
    executor = poptorch.trainingModel(
        regression, opts, torch.optim.SGD(regression.parameters(), lr=0.0)
    )
    expected = executor(x, y)[1]
    for _ in range(2):  # the second round takes the fast path of each form
        assert torch.equal(executor(x, target=y)[1], expected)
        assert torch.equal(executor(target=y, x=x)[1], expected)
        assert torch.equal(executor(x=x, target=y)[1], expected)
        assert torch.equal(executor(x, y)[1], expected)


def test_known_forms_take_the_short_path(opts):
    class Sum(torch.nn.Module):
        def forward(self, a, b, c=None):
            return a + 2 * b + (0 if c is None else c)

    x, y = torch.ones(2), torch.full((2,), 3.0)
    executor = poptorch.inferenceModel(Sum(), opts)
    executor(x, b=x)  # one tensor twice
    assert executor._executable.match((x,), {"b": y}) is not None
    assert executor._executable.match((x, y), {}) is None, "not seen yet"
    assert torch.equal(executor(b=y, a=x), torch.full((2,), 7.0))
    assert torch.equal(executor(b=x, a=y), torch.full((2,), 5.0))
    assert executor._executable.match((), {"b": x, "a": y})[0] is y
    for wrong in (x[:1], x.int(), x.expand(2, 2)[:, 0], x.clone().requires_grad_(), [x], None):
        assert executor._executable.match((x,), {"b": wrong}) is None
    with pytest.raises(poptorch.Error, match="Type mismatch for c"):
        executor(x, x, x)


def test_calls_from_several_threads_run_one_after_the_other(opts):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(1)
            return x * 2

    executor = poptorch.inferenceModel(Counter(), opts)
    executor.compile(torch.zeros(1000))

    def work(value):
        for _ in range(200):
            assert torch.equal(executor(torch.full((1000,), value)), torch.full((1000,), 2 * value))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [1.0, 2.0, 3.0, 4.0]))
    executor.copyWeightsToHost()
    assert executor.count.item() == 800


def test_executors_are_freed_with_their_models(opts, batch):
    model = Regression()
    training = poptorch.trainingModel(model, opts)
    training(*batch)
    references = [weakref.ref(model), weakref.ref(training)]
    del model, training
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_kept_parameter_still_gets_its_values(opts, batch):
    model = Regression()
    twin = copy.deepcopy(model)
    training = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    training(*batch)
    weight = model.linear.weight
    del model, training
    gc.collect()
    eager_step(twin, torch.optim.SGD(twin.parameters(), lr=0.1), *batch)
    torch.testing.assert_close(weight.detach(), twin.linear.weight.detach())


def test_an_op_without_a_kernel_is_run_by_torch(opts, log):
    class Spectrum(torch.nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x).abs() + 1, torch.linalg.eigvals(x).abs().sort()[0]

    executor = poptorch.inferenceModel(Spectrum(), opts.deviceIterations(2))
    for seed in range(3):
        x = torch.rand(6, 3, generator=torch.Generator().manual_seed(seed)) + 2
        first, second = executor(x)
        torch.testing.assert_close(first, torch.fft.rfft(x).abs() + 1)
        parts = [torch.linalg.eigvals(part).abs().sort()[0] for part in x.split(3)]
        torch.testing.assert_close(second, torch.cat(parts))
    assert log.text.count("aten::_fft_r2c.default") == 1
    assert "test_executor.py" in log.text


def test_inputs_that_are_not_contiguous_or_need_gradients(regression, opts, log):
    executor = poptorch.inferenceModel(regression, opts)
    x = torch.randn(3, 4)
    for _ in range(2):
        torch.testing.assert_close(executor(x.t()), regression(x.t()).detach())
    assert log.text.count("not contiguous") == 1
    result = executor(torch.randn(4, 3, requires_grad=True))
    assert not result.requires_grad
    assert "Input tensor has requires_grad=True set" in log.text


def test_an_input_changed_in_place_is_changed_for_the_caller(opts):
    class Adds(torch.nn.Module):
        def forward(self, x):
            x += 1
            return x * 2

    x = torch.zeros(4)
    executor = poptorch.inferenceModel(Adds(), opts)
    for count in (1, 2):
        assert torch.equal(executor(x), torch.full((4,), 2.0 * count))
        assert torch.equal(x, torch.full((4,), float(count)))


def test_an_input_changed_in_place_under_every_output_mode(opts):
    class Adds(torch.nn.Module):
        def forward(self, x):
            x += 1
            return x * 2

    opts.deviceIterations(2).outputMode(Mode.Final)
    x = torch.zeros(4)
    result = poptorch.inferenceModel(Adds(), opts)(x)
    assert torch.equal(x, torch.ones(4))
    assert torch.equal(result, torch.full((2,), 2.0))


def test_custom_argument_types(opts):
    @dataclasses.dataclass
    class Point:
        x: torch.Tensor
        y: torch.Tensor

    class Parser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield struct.x
            yield struct.y

        def reconstruct(self, original_structure, tensor_iterator):
            return Point(next(tensor_iterator), next(tensor_iterator))

    class Swap(torch.nn.Module):
        def forward(self, point):
            return Point(point.y * 1, point.x + 1)

    poptorch.registerCustomArgParser(Point, Parser())
    try:
        result = poptorch.inferenceModel(Swap(), opts)(Point(torch.zeros(2), torch.ones(2)))
        assert torch.equal(result.x, torch.ones(2)) and torch.equal(result.y, torch.ones(2))
    finally:
        poptorch.registerCustomArgParser(Point, None)
    with pytest.raises(poptorch.Error, match="arg_parser must inherit from ICustomArgParser"):
        poptorch.registerCustomArgParser(Point, object())


def test_python_runs_once_and_scalars_are_frozen(opts):
    calls = []

    class Counts(torch.nn.Module):
        def forward(self, x):
            calls.append(poptorch.isRunningOnIpu())
            return x + len(calls)

    executor = poptorch.inferenceModel(Counts(), opts)
    x = torch.zeros(2)
    assert torch.equal(executor(x), executor(x))
    assert calls == [True]
    assert not poptorch.isRunningOnIpu()


def test_compile_without_running(regression, batch, opts, log):
    before = regression.linear.weight.detach().clone()
    training = poptorch.trainingModel(regression, opts)
    assert not training.isCompiled() and not training.isAttachedToDevice()
    training.compile(*batch)
    assert training.isCompiled() and training.isAttachedToDevice()
    assert torch.equal(regression.linear.weight, before)
    training.compile(*batch)
    assert "Call to compile() ignored" in log.text


def test_compilation_time_and_bar(regression, batch, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    inference = poptorch.inferenceModel(regression)
    inference(batch[0])
    assert inference.compilationTime() > datetime.timedelta(0)
    shown = capsys.readouterr().err
    assert "Graph compilation: 100%" in shown and "100/100 [00:00<" in shown
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    poptorch.inferenceModel(regression)(batch[0])
    assert capsys.readouterr().err == "", "a log file gets no bar"


def test_destroy_allows_new_shapes(regression, batch, opts):
    inference = poptorch.inferenceModel(regression, opts)
    inference(batch[0])
    inference.destroy()
    assert not inference.isCompiled()
    assert inference(torch.ones(7, 3)).shape == (7, 2)


def test_hooks_run_around_capture(regression, batch, opts):
    events = []
    handles = [
        poptorch.registerPreCompileHook(lambda: events.append("pre")),
        poptorch.registerPostCompileHook(lambda: events.append("post")),
    ]
    poptorch.inferenceModel(regression, opts)(batch[0])
    for handle in handles:
        handle.remove()
    poptorch.inferenceModel(regression, opts)(batch[0])
    assert events == ["pre", "post"]
    with pytest.raises(RuntimeError, match="Pre-compile hook must be callable"):
        poptorch.registerPreCompileHook(3)


def test_attributes_are_those_of_the_model(regression, opts):
    regression.note = "mine"
    executor = poptorch.inferenceModel(regression, opts)
    assert executor.note == "mine"
    assert executor.linear is regression.linear
    assert executor.training is True
    with pytest.raises(AttributeError):
        getattr(executor, "nothing")  # noqa: B009
    executor.note = "other"
    assert regression.note == "mine"
    assert "Linear" in repr(executor)


def test_several_executors_of_one_model(regression, batch, opts):
    first = poptorch.inferenceModel(regression, opts)
    second = poptorch.inferenceModel(regression, opts)
    assert torch.equal(first(batch[0]), second(batch[0]))
    assert second(torch.zeros(9, 3)[:4]).shape == (4, 2)


def test_wrapping_an_executor_wraps_its_model(regression, batch, opts):
    training = poptorch.trainingModel(regression, opts)
    inference = poptorch.inferenceModel(training, opts)
    training(*batch)
    torch.testing.assert_close(inference(batch[0]), regression(batch[0]).detach())


def test_detach_and_attach(regression, batch, opts):
    training = poptorch.trainingModel(
        regression, opts, poptorch.optim.Adam(regression.parameters(), lr=0.1)
    )
    twin = copy.deepcopy(regression)
    reference = poptorch.trainingModel(twin, opts, poptorch.optim.Adam(twin.parameters(), lr=0.1))
    for step in range(4):
        if step == 2:
            training.detachFromDevice()
            assert not training.isAttachedToDevice()
            with pytest.raises(poptorch.Error, match="Device is not attached"):
                training.detachFromDevice()
            training.attachToDevice()
            with pytest.raises(poptorch.Error, match="Device is already attached"):
                training.attachToDevice()
        training(*batch)
        reference(*batch)
    assert torch.equal(regression.linear.weight, twin.linear.weight)
    training.detachFromDevice()
    training(*batch)  # attaches by itself
    assert training.isAttachedToDevice()


def test_errors_can_be_pickled():
    error = pickle.loads(pickle.dumps(poptorch.Error("text", "kind", "here")))
    assert (error.message, error.type, error.location) == ("text", "kind", "here")
    assert type(error).__module__ == "poptorch.poptorch_core"
