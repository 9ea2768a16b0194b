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


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int16, torch.int8, torch.bool])
@pytest.mark.parametrize("shape", [(), (3, 0), (5, 1027)])
def test_nop_copies_tensors_of_every_type(shape, dtype, opts):
    def run(_, x):
        made = x.expand(shape) if 0 in shape else x
        return poptorch.nop(made.to(dtype).mT if shape else made.to(dtype)).float() * 2

    check(run, torch.randn(1 if 0 in shape else shape) * 3, opts=opts, train=False)


def test_nop_is_a_border_of_fusion_forward_and_backward(opts):
    def steps(border):
        def run(w, x):
            return border(torch.tanh(w * 3)).exp() * x

        check(run, torch.ones(4, 6), opts=opts)
        model = Apply(run, train=True)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        executor = poptorch.trainingModel(model, opts, sgd)
        executor(torch.ones(4, 6))
        return [step["op"] for step in executor.getProgramSummary()["steps"]]

    assert steps(torch.clone) == ["fused"]
    nop = "custom tessera.Nop"
    assert steps(poptorch.nop) == ["fused", nop, "fused", nop, "fused"]


class Tuned(torch.nn.Module):
    """Every op with a proportion of its own, some of them found from later results."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.lookup = torch.nn.Embedding(5, 6)
        self.convs = torch.nn.ModuleList(torch.nn.Conv1d(2, 2, 3) for _ in range(2))

    def forward(self, x, i):
        x = poptorch.set_available_memory(self.linear(x), 0.1)  # an addition and a view behind
        x = poptorch.set_available_memory(torch.relu(x @ x.transpose(1, 2)) + 1, 0.2)
        e = poptorch.set_available_memory(self.lookup(i), 0.3)
        with poptorch.MultiConv().availableMemoryProportions([0.4, 0.5]):
            a, b = (conv(e) for conv in self.convs)
        return x.sum() + (a * b).sum()


def test_proportions_of_memory_stand_beside_their_ops(opts):
    model, args = Tuned(), (torch.randn(3, 2, 6), torch.tensor([[1, 4], [0, 2]]))
    executor = poptorch.inferenceModel(model, opts)
    torch.testing.assert_close(executor(*args), model(*args).detach())
    steps = executor.getProgramSummary()["steps"]
    found = {s["available_memory"]: s["op"] for s in steps if "available_memory" in s}
    assert sorted(found) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert "mm" in found[0.1] and "mm" in found[0.2]
    assert "convolution" in found[0.4] and "convolution" in found[0.5]


def test_a_proportion_without_an_op_to_tune_changes_nothing(opts):
    def far(w, x):
        return poptorch.set_available_memory(w.exp() + x, 0.3)

    check(far, torch.randn(4, 6), opts=opts, train=False)


@pytest.mark.parametrize("proportion", [0, -0.1, 1.5, "0.5", None, True])
def test_a_proportion_is_above_0_and_at_most_1(proportion):
    with pytest.raises(poptorch.Error, match="must be a number above 0 and at most 1"):
        poptorch.set_available_memory(torch.ones(2), proportion)


def test_multi_conv_on_the_cpu_checks_nothing():
    with poptorch.MultiConv(), poptorch.MultiConv().availableMemoryProportions(None):
        pass


def test_multi_conv_trains(opts):
    def both(w, x):
        with poptorch.MultiConv().availableMemoryProportions(0.3):
            a = torch.nn.functional.conv1d(x.reshape(1, 4, 6), w.reshape(2, 4, 3))
            b = torch.nn.functional.conv1d(x.reshape(1, 4, 6), w.reshape(2, 4, 3) + 1)
        return a * b

    check(both, torch.randn(4, 6), opts=opts)


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


@pytest.mark.parametrize("start", [0, 2, 4, 11, -2])
@pytest.mark.parametrize("step", [1, 2])
def test_dynamic_slice(opts, start, step):
    def cut(w, i):
        return poptorch.dynamic_slice(w, 1, i, 3, step)

    check(cut, torch.tensor([start], dtype=torch.int32), opts=opts)
    whole = torch.linspace(-1, 2, 24).reshape(4, 6)
    begin = start % 6
    wrapped = torch.cat([whole, whole], 1)[:, begin : begin + 3 : step]
    torch.testing.assert_close(cut(whole, torch.tensor(start)), wrapped)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64], ids=str)
def test_the_start_of_a_slice_follows_the_data(opts, dtype):
    """Of all types and as a scalar or with dimensions; by one program."""

    def cut(w, i):
        return poptorch.dynamic_slice(w.half(), 0, i, 2, 1), w.new_zeros(1)

    run = poptorch.inferenceModel(Apply(cut), opts)
    whole = torch.linspace(-1, 2, 24).reshape(4, 6).half()
    for start in (0, 1, 3):
        expected = torch.cat([whole, whole])[start : start + 2]
        assert torch.equal(run(torch.full((1, 1), start, dtype=dtype))[0], expected)


@pytest.mark.parametrize("start", [0, 3, 5, -1])
def test_dynamic_update(opts, start):
    def write(w, x, i):
        return poptorch.dynamic_update(w, w[:, :2] * x, 1, i, 2)

    x = torch.randn(4, 2)
    check(write, x, torch.tensor([start]), opts=opts)
    whole = torch.linspace(-1, 2, 24).reshape(4, 6)
    expected = whole.clone()
    expected[:, [start % 6, (start + 1) % 6]] = whole[:, :2] * x
    torch.testing.assert_close(write(whole, x, torch.tensor(start)), expected)
    assert torch.equal(whole, torch.linspace(-1, 2, 24).reshape(4, 6))  # not in place


def test_a_whole_update_of_integers(opts):
    def write(w, x, i):
        return poptorch.dynamic_update(x, x * 2, 0, i, 3)

    x = torch.tensor([1, 2, 3])
    actual = poptorch.inferenceModel(Apply(write), opts)(x, torch.tensor(1))
    assert actual.tolist() == [6, 2, 4]


def test_for_loop_feeds_results_back(opts):
    def loop(w, x):
        def body(a, b):
            a += 1  # stays inside
            return a * 2, b + a

        return poptorch.for_loop(5, body, [w, x])[1]

    x = torch.randn(4, 6)
    a, expected = torch.linspace(-1, 2, 24).reshape(4, 6), x
    for _ in range(5):
        a, expected = (a + 1) * 2, expected + a + 1
    torch.testing.assert_close(poptorch.inferenceModel(Apply(loop), opts)(x), expected)


@pytest.mark.parametrize("flag", [True, False])
def test_cond_picks_one_branch(opts, flag):
    def choose(w, x, condition):
        then = [w, x]
        return poptorch.cond(condition, torch.add, then, lambda: w.exp().reshape(6, 4), [])[0]

    x, condition = torch.randn(4, 6), torch.tensor([flag])
    expected = choose(torch.linspace(-1, 2, 24).reshape(4, 6), x, condition)
    actual = poptorch.inferenceModel(Apply(choose), opts)(x, condition)
    torch.testing.assert_close(actual, expected.reshape(6, 4))


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
@pytest.mark.parametrize("title", ["w", ""])
def test_the_gradient_is_printed_too(opts, capfd, gradient, title):
    def show(w, x):
        return poptorch.ipu_print_tensor(w, title, gradient, separator="; ", open_bracket="<") * x

    check(show, torch.ones(4, 6), opts=opts)
    printed = capfd.readouterr().err
    assert (f"{title}: <<-1." if title else "<<-1.") in printed and ";-0.8696;" in printed
    assert (f"{title}_gradient: <<" in printed) == gradient


def test_a_print_whose_result_is_not_used_is_removed(opts, capfd):
    def show(w, x):
        poptorch.ipu_print_tensor(x, "unused")
        return poptorch.ipu_print_tensor(x, "used") * w

    poptorch.inferenceModel(Apply(show), opts)(torch.ones(4, 6))
    printed = capfd.readouterr().err
    assert "used: " in printed and "unused" not in printed


def test_prints_in_a_loop(opts, capfd):
    def turn(x):
        return poptorch.ipu_print_tensor(x + 1, "turn")

    def loop(w, x):
        return poptorch.for_loop(4, turn, [x])[0]

    poptorch.inferenceModel(Apply(loop), opts)(torch.zeros(1))
    printed = capfd.readouterr().err.splitlines()
    assert printed == [f"turn: ({n}.)" for n in range(1, 5)]


class Stages(torch.nn.Module):
    def __init__(self, second):
        super().__init__()
        self.first, self.last = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        self.second = second

    def forward(self, x):
        with poptorch.Block(ipu_id=0):
            y = poptorch.ipu_print_tensor(self.first(x), "first")
        with poptorch.Block(ipu_id=self.second):
            y = poptorch.ipu_print_tensor(self.last(y), "last", print_gradient=False)
            return poptorch.identity_loss(y.square(), "sum")


@pytest.mark.parametrize("many", ["pipeline", "replicas"])
def test_prints_on_many_ipus(opts, capfd, many):
    """Once per micro-batch, forward and backward."""
    if many == "replicas":
        opts.replicationFactor(2).Training.gradientAccumulation(2)
    else:
        opts.Training.gradientAccumulation(4)
    model = Stages(0 if many == "replicas" else 1)
    run = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    run(torch.ones(4, 2))
    titles = [line.split(":")[0] for line in capfd.readouterr().err.splitlines() if ":" in line]
    assert sorted(titles) == ["first"] * 4 + ["first_gradient"] * 4 + ["last"] * 4


def test_a_print_is_one_write(opts, monkeypatch):
    """Stages print from several threads: a line in two writes could be cut by another one."""
    written = []

    class Stream:
        write, flush = written.append, staticmethod(lambda: None)

    monkeypatch.setattr("sys.stderr", Stream)
    show = Apply(lambda w, x: poptorch.ipu_print_tensor(x, "x") * w)
    poptorch.inferenceModel(show, opts)(torch.ones(1))
    assert written == ["x: (1.)\n"]


def test_forms_of_printed_tensors():
    show = poptorch.ops.ipu_print_tensor.__globals__["format_tensor"]
    x = torch.tensor([[1.0, 2.5], [-3.0, 1e-3]])
    assert show(x, style=1, digits=1) == "((1.0,2.5),\n (-3.0,0.0))"
    assert show(x[0], style=2, digits=1) == "(1.0e+00,2.5e+00)"
    assert show(x[0], style=3) == "(1.0,2.5)"
    assert show(x[1] / 3, style=1, digits=0) == "(-1.0,0.00033333336)"
    long = torch.arange(2000)
    assert show(long, edge_items=2) == "(   0,   1,...,1998,1999)"
    assert "..." not in show(long, threshold=0)
    assert show(long[:100], threshold=100).count(",") == 99
    assert show(long[:100], threshold=99).count(",") == 6
    assert "\n" not in show(long, threshold=0, width=0)
    assert max(map(len, show(long, threshold=0, width=30).splitlines())) <= 30
    assert show(torch.tensor([True, False])) == "( True,False)"
    assert show(torch.ones(1, dtype=torch.bfloat16)) == "(1.)"
    assert show(torch.tensor(2.5)) == "2.5"


def test_only_first_characters_of_separator_and_brackets_count():
    show = poptorch.ops.ipu_print_tensor.__globals__["format_tensor"]
    x = torch.tensor([[1, 2], [3, 4]])
    assert show(x, separator=" and ", opening="<<", closing=">>") == "<<1 2>\n <3 4>>"
    assert show(x[0], separator="[", opening="]", closing="[") == "]1[2["
    assert show(x[0], separator="", opening="", closing="") == "12"


# Checks -------------------------------------------------------------------------------------------

T, ONE = torch.ones(4, 6), torch.tensor([1])


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: poptorch.nop(1), poptorch.Error, r"nop: .* is not supported\."),
        (lambda: poptorch.ipu_print_tensor(1), poptorch.Error, r"is not supported\."),
        (lambda: poptorch.ipu_print_tensor(T, float_format="hex"), KeyError, "hex"),
        (lambda: poptorch.ipu_print_tensor(T, digits=-1), poptorch.Error, "digits must be an int"),
        (
            lambda: poptorch.ipu_print_tensor(T, edge_items=1.5),
            poptorch.Error,
            "edge_items must be an integer that is not negative",
        ),
        (lambda: poptorch.ipu_print_tensor(T, 3), poptorch.Error, "title must be a string"),
        (
            lambda: poptorch.ipu_print_tensor(T, separator=None),
            poptorch.Error,
            "separator must be a string",
        ),
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
        (lambda: poptorch.identity_loss(3, "sum"), TypeError, "the loss must be a tensor, not int"),
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
            lambda: poptorch.dynamic_slice(T, -1, ONE, 1, 1),
            poptorch.Error,
            "dimension -1 is none of the 2 of the tensor",
        ),
        (lambda: poptorch.dynamic_slice(T, 2, ONE, 1, 1), poptorch.Error, "dimension 2 is none of"),
        (
            lambda: poptorch.dynamic_slice(T[:0], 0, ONE, 1, 1),
            poptorch.Error,
            "dimension 0 of the tensor is empty",
        ),
        (
            lambda: poptorch.dynamic_slice(T, 0, torch.tensor([1, 2]), 1, 1),
            poptorch.Error,
            "start must have one element",
        ),
        (lambda: poptorch.dynamic_slice(1, 0, ONE, 1, 1), poptorch.Error, r"is not supported\."),
        (lambda: poptorch.dynamic_update(T, 1, 0, ONE, 1), poptorch.Error, r"is not supported\."),
        (
            lambda: poptorch.dynamic_update(T, T, 0, 1, 1),
            poptorch.Error,
            "Slice start argument to dynamic_update must be a torch.tensor",
        ),
        (
            lambda: poptorch.dynamic_update(T, T[:2], 0, ONE, 3),
            poptorch.Error,
            r"src must have the shape \[3, 6\], not \[2, 6\]",
        ),
        (lambda: poptorch.dynamic_update(T, T, 0, ONE, 5), poptorch.Error, "5 elements do not fit"),
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
        (
            lambda: poptorch.MultiConv().availableMemoryProportions([0.5, float("nan")]),
            AssertionError,
            "Invalid available memory proportion!",
        ),
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


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_identity_loss_outside_a_model(reduction):
    x = torch.randn(3)
    loss = poptorch.identity_loss(x, reduction)
    expected = {"sum": x.sum(), "mean": x.mean(), "none": x}[reduction]
    assert torch.equal(loss, expected) and loss is not x
    with pytest.raises(AssertionError, match="Unsupported reduction type!"):
        poptorch.identity_loss(x, "max")


def nested_multi_conv(w):
    with poptorch.MultiConv(), poptorch.MultiConv():
        return w


def uneven_multi_conv(w):
    with poptorch.MultiConv().enableConvDithering([True] * 3).partialsTypes([torch.half]):
        return torch.nn.functional.conv1d(w[None], w[:2, :, None][:, :2, :1], groups=2)


@pytest.mark.parametrize(
    "function, train, text",
    [
        (lambda w: poptorch.dynamic_slice(w, 1, ONE, 4, 1), False, "must be a factor of the slic"),
        (lambda w: poptorch.for_loop(True, torch.exp, [w])[0], True, "count must be an int"),
        (
            lambda w: poptorch.cond(w.sum(), torch.exp, [w], torch.sin, [w])[0],
            False,
            "must be a boolean tensor",
        ),
        (nested_multi_conv, False, "Nested poptorch.MultiConv is not supported."),
        (
            uneven_multi_conv,
            False,
            "enableConvDithering has 3 values, and there are 1 convolutions",
        ),
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
