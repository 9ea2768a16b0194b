# SPDX-License-Identifier: Apache-2.0
"""PopTorch's own ops: values and gradients against plain PyTorch, and their checks."""

import poptorch
import pytest
import torch

MODE = poptorch.MatMulSerializationMode


class Apply(torch.nn.Module):
    """A function of the inputs and of a weight; with training the sum of squares is the loss."""

    def __init__(self, function, train=False):
        super().__init__()
        self.function = function
        self.train_it = train
        self.weight = torch.nn.Parameter(torch.linspace(-1, 2, 24).reshape(4, 6))

    def forward(self, *args):
        out = self.function(self.weight, *args)
        if self.train_it:
            return out, poptorch.identity_loss(out.square().sum(), "none")
        return out


def check(function, *args, opts, train=True):
    """Compiled equals eager, and one step of SGD gives the same weights."""
    expected = function(torch.linspace(-1, 2, 24).reshape(4, 6), *args)
    actual = poptorch.inferenceModel(Apply(function), opts)(*args)
    torch.testing.assert_close(actual, expected, check_dtype=False)
    if not train:
        return
    model, eager = Apply(function, True), Apply(function, True)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    executor(*args)
    sgd = torch.optim.SGD(eager.parameters(), lr=0.1)
    eager(*args)[1].backward()
    sgd.step()
    torch.testing.assert_close(model.weight.detach(), eager.weight.detach())


def test_hints_are_identities(opts):
    modes = poptorch.OverlapMode

    def all_of_them(w, x):
        x = poptorch.set_overlap_for_input(x, modes.NoOverlap)
        w = poptorch.set_available_memory(poptorch.nop(w), 0.3)
        w, x = poptorch.recomputationCheckpoint(w, x)
        with poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Serial):
            out = torch.nn.functional.conv1d(x.reshape(1, 4, 6), w.reshape(2, 4, 3))
        return poptorch.set_overlap_for_output(out, modes.NoOverlap)

    check(all_of_them, torch.randn(4, 6), opts=opts)


def test_recomputation_checkpoint_keeps_the_structure():
    a, b = torch.ones(1), torch.zeros(1)
    assert poptorch.recomputationCheckpoint(a) is a
    assert poptorch.recomputationCheckpoint(a, b) == (a, b)
    for container in ([a, b], (a, b)):
        found = poptorch.recomputationCheckpoint(container)
        assert type(found) is type(container) and found[1] is b


def test_overlap_takes_nested_structures():
    nested = {"a": [torch.ones(1), (torch.zeros(1),)]}
    mode = poptorch.OverlapMode.OverlapDeviceIterationLoop
    assert poptorch.set_overlap_for_input(nested, mode) is nested
    assert poptorch.set_overlap_for_output(nested, mode) is nested


@pytest.mark.parametrize("mode", MODE)
def test_serialized_matmul_is_a_matmul(opts, mode):
    def product(w, x):
        return poptorch.serializedMatMul(w, x, mode, 2, keep_precision=True)

    check(product, torch.randn(6, 2), opts=opts)


@pytest.mark.parametrize("start", [0, 2, 4])
@pytest.mark.parametrize("step", [1, 2])
def test_dynamic_slice(opts, start, step):
    def cut(w, i):
        return poptorch.dynamic_slice(w, 1, i, 3, step)

    check(cut, torch.tensor([start], dtype=torch.int32), opts=opts)
    whole = torch.linspace(-1, 2, 24).reshape(4, 6)
    wrapped = torch.cat([whole, whole], 1)[:, start : start + 3 : step]
    torch.testing.assert_close(cut(whole, torch.tensor(start)), wrapped)


def test_dynamic_update(opts):
    def write(w, x, i):
        return poptorch.dynamic_update(w, w[:, :2] * x, 1, i, 2)

    check(write, torch.randn(4, 2), torch.tensor([3]), opts=opts)


def test_for_loop_feeds_results_back(opts):
    def loop(w, x):
        def body(a, b):
            a += 1  # stays inside
            return a * 2, b + a

        return poptorch.for_loop(5, body, [w, x])[1]

    check(loop, torch.randn(4, 6), opts=opts, train=False)


@pytest.mark.parametrize("flag", [True, False])
def test_cond_picks_one_branch(opts, flag):
    def choose(w, x, condition):
        then = [w, x]
        return poptorch.cond(condition, torch.add, then, lambda: w.exp().reshape(6, 4), [])[0]

    x, condition = torch.randn(4, 6), torch.tensor([flag])
    expected = choose(torch.linspace(-1, 2, 24).reshape(4, 6), x, condition)
    actual = poptorch.inferenceModel(Apply(choose), opts)(x, condition)
    torch.testing.assert_close(actual, expected.reshape(6, 4))


def test_nearest(opts):
    x, y = torch.randn(5, 3), torch.randn(7, 3)
    batches = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 0, 0, 0, 1, 1, 1])
    plain = torch.cdist(x, y)
    apart = plain.masked_fill(batches[0][:, None] != batches[1], float("inf"))
    for args, distance in (((), plain), (batches, apart)):

        def find(w, x, y, args=args):
            return poptorch.nearest(x, y, *[a.tolist() for a in args])

        actual = poptorch.inferenceModel(Apply(find), opts)(x, y)
        assert torch.equal(actual.long(), distance.argmin(1))
    assert torch.equal(poptorch.nearest(x, y, *batches), apart.argmin(1))


def test_fps_takes_points_far_apart(opts):
    points = torch.tensor([[0.0, 0], [1, 0], [5, 0], [0, 9], [2, 2], [8, 8], [2, 3]])

    def sample(w, src):
        return poptorch.fps(src, [0, 4, 7], ratio=0.5)

    assert sample(None, points).tolist() == [0, 3, 4, 5]
    assert poptorch.inferenceModel(Apply(sample), opts)(points).tolist() == [0, 3, 4, 5]
    random = poptorch.fps(points, [0, 4, 7], 0.7, random_start=True)
    assert len(random) == 6 and random.unique().numel() == 6


# Printing -----------------------------------------------------------------------------------------


def test_a_printed_tensor_is_printed_in_every_run(opts, capfd):
    opts.deviceIterations(2)

    def show(w, x):
        return poptorch.ipu_print_tensor(w.sum() * x, "shown", digits=2, float_format="fixed")

    executor = poptorch.inferenceModel(Apply(show), opts)
    x = torch.tensor([1.0, 2.0])
    out = executor(x)
    torch.testing.assert_close(out, torch.tensor([12.0, 24.0]))
    printed = capfd.readouterr().err
    assert printed.splitlines() == ["shown: (12.00)", "shown: (24.00)"]
    executor(x)
    assert capfd.readouterr().err == printed
    assert show(torch.ones(1), x) is not None and capfd.readouterr().err == ""


@pytest.mark.parametrize("gradient", [True, False])
def test_the_gradient_is_printed_too(opts, capfd, gradient):
    def show(w, x):
        return poptorch.ipu_print_tensor(w, "w", gradient, separator="; ", open_bracket="<") * x

    check(show, torch.ones(4, 6), opts=opts)
    printed = capfd.readouterr().err
    assert "w: <<-1." in printed and "; " in printed
    assert ("w_gradient: <<" in printed) == gradient


def test_forms_of_printed_tensors():
    show = poptorch.ops.ipu_print_tensor.__globals__["format_tensor"]
    x = torch.tensor([[1.0, 2.5], [-3.0, 1e-3]])
    assert show(x, style=1, digits=1) == "((1.0, 2.5),\n (-3.0, 0.0))"
    assert show(x[0], style=2, digits=1) == "(1.0e+00, 2.5e+00)"
    assert show(x[0], style=3) == "(1.0, 2.5)"
    long = torch.arange(2000)
    assert show(long, edge_items=2) == "(   0,    1, ..., 1998, 1999)"
    assert "..." not in show(long, threshold=0)
    assert "\n" not in show(long, threshold=0, width=0)
    assert show(torch.tensor([True, False])) == "( True, False)"
    assert show(torch.ones(1, dtype=torch.bfloat16)) == "(1.)"


# Checks -------------------------------------------------------------------------------------------

T, ONE = torch.ones(4, 6), torch.tensor([1])


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: poptorch.nop(1), poptorch.Error, r"nop: .* is not supported\."),
        (lambda: poptorch.ipu_print_tensor(1), poptorch.Error, r"is not supported\."),
        (lambda: poptorch.ipu_print_tensor(T, float_format="hex"), KeyError, "hex"),
        (lambda: poptorch.set_available_memory(1, 0.1), poptorch.Error, "You may only set avail"),
        (lambda: poptorch.recomputationCheckpoint(T, 1), ValueError, "All inputs must be tensors"),
        (lambda: poptorch.recomputationCheckpoint([1]), ValueError, "All inputs must be tensors"),
        (
            lambda: poptorch.set_overlap_for_input(1, poptorch.OverlapMode.NoOverlap),
            poptorch.Error,
            "You may only set overlap for torch.tensor inputs",
        ),
        (
            lambda: poptorch.set_overlap_for_output(1, poptorch.OverlapMode.NoOverlap),
            poptorch.Error,
            "You may only set overlap for torch.tensor outputs",
        ),
        (lambda: poptorch.identity_loss(T, "max"), AssertionError, "Unsupported reduction type!"),
        (lambda: poptorch.serializedMatMul(T, T.T, "none"), AssertionError, "SerializationMode"),
        (
            lambda: poptorch.serializedMatMul(T, T.T, MODE.ReducingDim, 4),
            poptorch.Error,
            "4 does not divide",
        ),
        (lambda: poptorch.dynamic_slice(1, 0, ONE, 1, 1), poptorch.Error, "is not supported"),
        (lambda: poptorch.dynamic_slice(T, 0.0, ONE, 1, 1), poptorch.Error, "Dimension must be an"),
        (
            lambda: poptorch.dynamic_slice(T, 0, 1, 1, 1),
            poptorch.Error,
            "Slice start argument to dynamic_slice must be a torch.tensor",
        ),
        (
            lambda: poptorch.dynamic_slice(T, 0, torch.ones(1), 1, 1),
            poptorch.Error,
            "Expected integer typed start tensor",
        ),
        (lambda: poptorch.dynamic_slice(T, 0, ONE, 1.0, 1), poptorch.Error, "Size must be an int"),
        (lambda: poptorch.dynamic_slice(T, 0, ONE, 1, 1.0), poptorch.Error, "Step must be an int"),
        (lambda: poptorch.dynamic_slice(T, 0, ONE, 1, 0), poptorch.Error, "must be at least 1"),
        (lambda: poptorch.dynamic_slice(T, 0, ONE, 0, 1), poptorch.Error, "must be different."),
        (
            lambda: poptorch.dynamic_slice(T, 0, ONE, -1, 1),
            poptorch.Error,
            "end less than the start is not supported",
        ),
        (
            lambda: poptorch.dynamic_update(T, T[0], 0, ONE, 1),
            poptorch.Error,
            "must have same dimensionality",
        ),
        (
            lambda: poptorch.dynamic_update(T, T.int(), 0, ONE, 1),
            poptorch.Error,
            "must have same dtype",
        ),
        (lambda: poptorch.for_loop(1, torch.exp, T), ValueError, "Object is not list"),
        (lambda: poptorch.for_loop(1, torch.exp, [1]), ValueError, "is not torch.tensor"),
        (lambda: poptorch.for_loop(2, torch.sum, [T]), poptorch.Error, "same shapes and types"),
        (
            lambda: poptorch.cond(ONE > 0, torch.exp, T, torch.exp, [T]),
            ValueError,
            "poptorch.cond expects then_inps and else_inps tensors",
        ),
        (
            lambda: poptorch.ctc_beam_search_decoder(T, ONE),
            poptorch.Error,
            "must be rank-3",
        ),
        (lambda: poptorch.ctc_beam_search_decoder(1, ONE), poptorch.Error, "is not supported"),
        (lambda: poptorch.fps(T, [0]), AssertionError, "must containt at least 2 elements"),
        (lambda: poptorch.fps(T, [0, 4], 1), AssertionError, "Expected a float as ratio"),
        (lambda: poptorch.nearest(T, T, [1, 0, 0, 0], [0] * 4), poptorch.Error, "'batch_x' is not"),
        (
            lambda: poptorch.nearest(T, T, [0, 0, 1, 2], [0, 0, 1, 1]),
            poptorch.Error,
            "Some batch indices occur in 'batch_x' that do not occur in 'batch_y'",
        ),
        (lambda: poptorch.nearest(T, T, [0], [0]), poptorch.Error, "one id for each of the 4 rows"),
        (lambda: poptorch.nearest(T, T[:, :2]), poptorch.Error, "equal feature sizes"),
        (
            lambda: poptorch.MultiConv().availableMemoryProportions("a"),
            AssertionError,
            "Invalid available memory proportion!",
        ),
        (
            lambda: poptorch.MultiConv().partialsTypes([torch.float, torch.int]),
            ValueError,
            "Invalid partials types. Expecting torch.float or torch.half",
        ),
        (
            lambda: poptorch.MultiConv().enableConvDithering([1]),
            ValueError,
            "value must be bool or list of bools",
        ),
        (lambda: poptorch.MultiConv().planType(0), AssertionError, "Invalid plan type!"),
        (
            lambda: poptorch.custom_op([], "a", "b", 1, [], {1: 1.0}),
            ValueError,
            "All attribute keys must be strings.",
        ),
        (
            lambda: poptorch.custom_op([], "a", "b", 1, [], {"k": None}),
            ValueError,
            "Attribute values must be floats, ints, strings",
        ),
        (
            lambda: poptorch.custom_op([], "a", "b", 1, [], {"k": [1, 1.0]}),
            ValueError,
            "must all be the same",
        ),
        (
            lambda: poptorch.custom_op([], "a", "b", 1, [], {"k": "ü"}),
            ValueError,
            "contains non-ASCII characters",
        ),
    ],
)
def test_arguments_that_are_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def nested_multi_conv(w):
    with poptorch.MultiConv(), poptorch.MultiConv():
        return w


@pytest.mark.parametrize(
    "function, train, text",
    [
        (lambda w: poptorch.dynamic_slice(w, 1, ONE, 4, 1), False, "must be a factor of the slic"),
        (
            lambda w: poptorch.for_loop(1, torch.exp, [w])[0],
            True,
            r"poptorch.for_loop\(\) is only supported in inference.",
        ),
        (
            lambda w: poptorch.cond(ONE > 0, torch.exp, [w], torch.sin, [w])[0],
            True,
            r"poptorch.cond\(\) is only supported in inference.",
        ),
        (
            lambda w: poptorch.cond(w.sum(), torch.exp, [w], torch.sin, [w])[0],
            False,
            "must be a boolean tensor",
        ),
        (nested_multi_conv, False, "Nested poptorch.MultiConv is not supported."),
    ],
)
def test_uses_that_are_refused_in_models(opts, function, train, text):
    model = Apply(function, train)
    wrap = poptorch.trainingModel if train else poptorch.inferenceModel
    with pytest.raises(poptorch.Error, match=text):
        wrap(model, opts)()
    with poptorch.MultiConv():
        pass  # a failed capture leaves no scope open


def test_explicit_casts_of_examples(opts):
    def cast(w):
        half = torch.ops.poptorch.internal_cast(w, "FLOAT16")
        return torch.ops.poptorch.internal_cast(half, "FLOAT")

    actual = poptorch.inferenceModel(Apply(cast), opts)()
    torch.testing.assert_close(actual, torch.linspace(-1, 2, 24).reshape(4, 6).half().float())


def test_channels_are_labels_in_the_profiler(monkeypatch):
    class Work:
        def step(self):
            return 3

    plain = Work()
    assert poptorch.profiling.Channel("c").instrument(plain, "step") is plain
    assert "step" not in vars(plain)
    monkeypatch.setenv("PVTI_OPTIONS", '{"enable":"true"}')
    channel = poptorch.profiling.Channel("mine")
    traced = channel.instrument(Work(), "step")
    with torch.profiler.profile() as profile, channel.tracepoint("outer"):
        assert traced.step() == 3
    names = {event.name for event in profile.events()}
    assert {"mine.outer", "mine.step"} <= names


def test_allclose_of_nested_results():
    from poptorch.testing import allclose

    x = torch.ones(2)
    assert allclose((x, [x]), [x, (x + 1e-9,)])
    assert not allclose((x, [x]), (x, [x + 1]))
    assert not allclose((x,), (x, x)) and not allclose((x,), x)
