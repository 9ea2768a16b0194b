# SPDX-License-Identifier: Apache-2.0
"""Wrong programs and wrong data: the class and the text of each error, and life after it."""

import copy
import os
import signal
import threading

import poptorch
import pytest
import torch
from api_support import Regression


def test_error_classes_have_their_attributes():
    assert issubclass(poptorch.RecoverableError, poptorch.Error)
    assert issubclass(poptorch.UnrecoverableError, poptorch.Error)
    assert not issubclass(poptorch.Error, RuntimeError)
    assert poptorch.poptorch_core.Error is poptorch.Error
    error = poptorch.createPoptorchError("text")
    assert str(error) == "'poptorch_py_error': text"
    assert (error.message, error.type, error.location) == ("text", "poptorch_py_error", "")


def test_sample_errors():
    core = poptorch.poptorch_core
    kind = core.TestErrorType
    with pytest.raises(
        poptorch.RecoverableError, match="Recovery action required: FULL_RESET"
    ) as e:
        core._throwTestError(kind.PoplarRecoverableFullReset)
    assert e.value.recovery_action == "FULL_RESET"
    with pytest.raises(poptorch.UnrecoverableError):
        core._throwTestError(kind.PoplarUnrecoverable)
    for name in ("Poptorch", "Popart", "PopartInternal", "Poplibs", "PoplarUnknown"):
        with pytest.raises(poptorch.Error) as e:
            core._throwTestError(kind[name])
        assert e.value.type


# Wrapping ----------------------------------------------------------------------------------------


def test_options_of_another_type(regression):
    with pytest.raises(poptorch.Error, match="Invalid type: 'options' is of type"):
        poptorch.inferenceModel(regression, {"deviceIterations": 2})


def test_inference_with_gradient_accumulation(regression, opts):
    opts.Training.gradientAccumulation(2)
    text = r"You must set poptorch.Options\(\).Training.gradientAccumulation to 1.*deviceIterations"
    with pytest.raises(poptorch.Error, match=text):
        poptorch.inferenceModel(regression, opts)


def test_buffers_of_another_class(opts):
    class Mine(torch.Tensor):
        pass

    model = Regression()
    model.register_buffer("mine", torch.zeros(1).as_subclass(Mine))
    with pytest.raises(poptorch.Error, match="All buffers must be an instance of torch.Tensor"):
        poptorch.trainingModel(model, opts)


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda p: torch.optim.LBFGS(p), AssertionError, "Unsupported optimizer type"),
        (lambda p: torch.optim.SparseAdam(p), AssertionError, "Unsupported optimizer type"),
        (
            lambda p: poptorch.optim.SGD(p, lr=0.1, max_grad_norm=float("nan")),
            poptorch.Error,
            "Maximum norm of gradients cannot be NaN",
        ),
        (
            lambda p: poptorch.optim.SGD(p, lr=0.1, loss_scaling=0.0),
            poptorch.Error,
            "Loss scaling cannot be 0",
        ),
        (
            lambda p: poptorch.optim.SGD(p, lr=0.1, accum_type=torch.int32),
            AssertionError,
            "Accumulation types must be either torch.float32",
        ),
        (
            lambda p: poptorch.optim.SGD(p, lr=torch.tensor(0.1)),
            AssertionError,
            "Expected a number for lr",
        ),
        (
            lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1)),
            AssertionError,
            "Expected a number for lr",
        ),
        (
            lambda p: poptorch.optim.Adam(p, betas=[0.9, 0.9]),
            AssertionError,
            "betas must be a tuple",
        ),
    ],
)
def test_optimizers_that_are_refused(regression, opts, make, error, text):
    with pytest.raises(error, match=text):
        poptorch.trainingModel(regression, opts, make(regression.parameters()))
    assert type(regression) is Regression, "a refused wrap leaves the model as it was"
    poptorch.trainingModel(regression, opts).destroy()


def test_a_subclassed_optimizer_is_warned_about(regression, opts, log):
    class Mine(torch.optim.SGD):
        pass

    poptorch.trainingModel(regression, opts, Mine(regression.parameters(), lr=0.1))
    assert "unlikely to behave as intended" in log.text


def test_optimizer_of_another_model(regression, batch, opts):
    optimizer = torch.optim.SGD(Regression().parameters(), lr=0.1)
    training = poptorch.trainingModel(regression, opts, optimizer)
    with pytest.raises(KeyError, match="does not belong to the model"):
        training(*batch)
    assert not training.isCompiled()


def test_optimizer_state_that_is_not_the_devices(regression):
    ours = poptorch.optim.SGD(regression.parameters(), lr=0.1)
    theirs = torch.optim.SGD(regression.parameters(), lr=0.1).state_dict()
    with pytest.raises(RuntimeError, match="Only IPU optimizer states can be loaded onto the IPU"):
        ours.load_state_dict(theirs)
    with pytest.raises(RuntimeError, match="because it is empty"):
        ours.set_state_dict({})


# Before compilation ------------------------------------------------------------------------------


def test_calls_that_need_a_compiled_model(regression, opts):
    inference = poptorch.inferenceModel(regression, opts)
    text = "Model has not been compiled or has been destroyed."
    for call in (
        inference.copyWeightsToHost,
        inference.copyWeightsToDevice,
        inference.detachFromDevice,
        inference.attachToDevice,
    ):
        with pytest.raises(poptorch.Error, match=text):
            call()
    with pytest.raises(poptorch.Error, match="Please compile the model before"):
        inference.compilationTime()
    inference(torch.ones(4, 3))
    assert inference.compilationTime().total_seconds() > 0, "without the bar as well"


def test_an_offline_target_is_never_run(regression, batch, opts):
    inference = poptorch.inferenceModel(regression, opts.useOfflineIpuTarget())
    with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
        inference(batch[0])
    inference.compile(batch[0])
    assert inference.isCompiled() and not inference.isAttachedToDevice()
    with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
        inference(batch[0])
    with pytest.raises(AssertionError, match="offline device"):
        inference.attachToDevice()


def test_a_reduction_strategy_that_does_not_exist_any_more(regression, batch, opts):
    opts.Training.setMeanAccumulationAndReplicationReductionStrategy(
        poptorch.MeanReductionStrategy.PostAndLoss
    )
    with pytest.raises(poptorch.Error, match="out of range"):
        poptorch.trainingModel(regression, opts)(*batch)


# Arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, kwargs, error, text",
    [
        (3, {}, AssertionError, "Too many arguments provided: expected"),
        (1, {"nothing": 1}, AssertionError, "nothing is not a valid parameter"),
        (1, {"x": 1}, AssertionError, "x was passed more than once"),
        (0, {}, poptorch.Error, "Mandatory parameter x missing"),
    ],
)
def test_arguments_that_do_not_fit_forward(regression, opts, args, kwargs, error, text):
    inference = poptorch.inferenceModel(regression, opts)
    x = torch.ones(4, 3)
    for _ in range(2):  # before and after compilation
        with pytest.raises(error, match=text):
            inference(*[x] * args, **kwargs)
        inference(x)


@pytest.mark.parametrize(
    "tensor, text",
    [
        (torch.ones(4, 3, dtype=torch.complex64), "Unsupported tensor input type from pytorch:"),
        (torch.ones(0, 3), r"Zero-sized tensors are unsupported \(Got shape \[0, 3"),
        (torch.ones(4, 3).to_sparse(), "Unsupported tensor input layout"),
        (torch.ones(4, 3, device="meta"), "must be on the CPU"),
    ],
)
def test_tensors_that_cannot_be_inputs(regression, opts, tensor, text):
    inference = poptorch.inferenceModel(regression, opts)
    with pytest.raises(poptorch.Error, match=text):
        inference(tensor)
    assert inference(torch.ones(4, 3)).shape == (4, 2)


class Any(torch.nn.Module):
    def forward(self, x, *rest, flag=None, **named):
        values = [v for v in (x if isinstance(x, (list, tuple)) else [x])]
        for value in (*rest, *named.values(), flag):
            if isinstance(value, dict):
                values += value.values()
            elif isinstance(value, torch.Tensor):
                values.append(value)
        return sum(values)


T = torch.ones(2)


@pytest.mark.parametrize(
    "first, second, text",
    [
        (((T,), {}), ((torch.ones(3),), {}), "Shape mismatch for x: expected .*2.* but got .*3"),
        (((T,), {}), ((T.int(),), {}), "Data type mismatch for x: expected torch.float32 but got"),
        (((T,), {}), (([T],), {}), "Type mismatch for x: expected .*Tensor.* but got .*list"),
        (((T, T), {}), ((T,), {}), "Number of positional arguments mismatch: expected 2"),
        ((([T, T],), {}), (([T],), {}), "Length mismatch for x: expected 2 elements but got 1"),
        ((([T],), {}), (((T,),), {}), "Type mismatch for x: expected .*list.* but got .*tuple"),
        ((([T],), {}), (([T[:1]],), {}), r"Shape mismatch for x\[0\]"),
        (((T, T), {}), ((T, T[:1]), {}), r"Shape mismatch for \*rest\[0\]"),
        (((T,), {"flag": 1}), ((T,), {"flag": 2}), "Value mismatch for flag: expected 1 but got 2"),
        (
            ((T,), {"a": T}),
            ((T,), {"b": T}),
            "Keys mismatch for named arguments: Unexpected arguments: b Missing arguments: a",
        ),
        (
            ((T,), {"flag": {"k": T}}),
            ((T,), {"flag": {"k": T[:1]}}),
            r"Shape mismatch for flag\[k\]",
        ),
    ],
)
def test_a_changed_call_is_refused_and_the_executor_lives(opts, first, second, text):
    executor = poptorch.inferenceModel(Any(), opts)
    expected = executor(*first[0], **first[1])
    with pytest.raises(poptorch.Error, match=text) as caught:
        executor(*second[0], **second[1])
    assert "destroy()" in str(caught.value)
    assert torch.equal(executor(*first[0], **first[1]), expected)
    executor.destroy()
    executor(*second[0], **second[1])


def test_equal_constants_are_accepted(opts):
    executor = poptorch.inferenceModel(Any(), opts)
    first = executor(T, flag=float("nan"))
    program = executor._executable
    assert torch.equal(executor(T, flag=float("nan")), first)
    assert executor._executable is program  # not compiled again


# Batching ----------------------------------------------------------------------------------------


def test_batch_dimension_that_cannot_be_divided(regression, opts):
    opts.deviceIterations(3)
    inference = poptorch.inferenceModel(regression, opts)
    with pytest.raises(AssertionError, match="Invalid batch dimension: In the input"):
        inference(torch.ones(4, 3))
    with pytest.raises(AssertionError, match="Invalid batch dimension: In the input"):
        inference(torch.tensor(1.0))
    assert inference(torch.ones(6, 3)).shape == (6, 2)


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda o: o.deviceIterations(0), "'Batches per step' must be greater than zero"),
        (
            lambda o: o.deviceIterations(2).outputMode(poptorch.OutputMode.EveryN, 4),
            "Return period must be <= to the number of batches per step",
        ),
        (
            lambda o: o.deviceIterations(3).outputMode(poptorch.OutputMode.EveryN, 2),
            "Return period must be a factor of the number of batches per step",
        ),
    ],
)
def test_numbers_that_cannot_be_run(regression, opts, change, text):
    change(opts)
    inference = poptorch.inferenceModel(regression, opts)
    with pytest.raises(poptorch.Error, match=text):
        inference(torch.ones(12, 3))


# Capture -----------------------------------------------------------------------------------------


def test_a_model_without_a_loss(regression, batch, opts):
    training = poptorch.trainingModel(regression, opts)
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph!"):
        training(batch[0])
    training(*batch)


def test_an_exception_in_forward_passes_through(batch, opts):
    class Fails(Regression):
        broken = True

        def forward(self, x, target=None):
            if Fails.broken:
                raise ValueError("mine")
            return super().forward(x, target)

    model = Fails()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    training = poptorch.trainingModel(model, opts)
    with pytest.raises(ValueError, match="mine"):
        training(*batch)
    assert not training.isCompiled() and not poptorch.isRunningOnIpu()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    Fails.broken = False
    training(*batch)


def test_item_names_the_line(batch, opts):
    class Reads(Regression):
        def forward(self, x, target=None):
            scale = x.sum().item()  # the line
            return super().forward(x * scale, target)

    with pytest.raises(poptorch.Error, match="aten::item is only supported in eager mode") as error:
        poptorch.inferenceModel(Reads(), opts.valuesReadInForward("error"))(batch[0])
    assert "test_api_errors.py" in str(error.value) and "# the line" in str(error.value)


def test_a_failing_hook_leaves_the_executor_usable(regression, batch, opts):
    def fail():
        raise ValueError("hook")

    handle = poptorch.registerPreCompileHook(fail)
    inference = poptorch.inferenceModel(regression, opts)
    with pytest.raises(ValueError, match="hook"):
        inference(batch[0])
    handle.remove()
    assert inference(batch[0]).shape == (4, 2)


def test_backward_of_a_result(regression, batch, opts):
    _, loss = poptorch.trainingModel(regression, opts)(*batch)
    with pytest.raises(poptorch.Error, match="backward\\(\\) cannot be called explicitly"):
        loss.backward()


def test_weights_of_another_type_after_compilation(regression, batch, opts):
    inference = poptorch.inferenceModel(regression, opts)
    inference(batch[0])
    regression.half()
    with pytest.raises(poptorch.Error, match="was compiled as f32.*call destroy"):
        inference.copyWeightsToDevice()


# Running -----------------------------------------------------------------------------------------


class Slow(torch.nn.Module):
    """A product of matrices that takes milliseconds, and a count of how often it was made."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("matrix", torch.eye(512))

    def forward(self, x):
        self.steps.add_(1)
        return ((self.matrix * x) @ self.matrix).sum()


def test_ctrl_c_stops_a_long_call_and_the_executor_lives(opts):
    iterations = 800
    executor = poptorch.inferenceModel(Slow(), opts.deviceIterations(iterations))
    x = torch.ones(iterations)
    executor.compile(x)
    handler = signal.getsignal(signal.SIGINT)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        executor(x)
    assert signal.getsignal(signal.SIGINT) is handler
    executor.copyWeightsToHost()
    done = executor.steps.item()
    assert 0 < done < iterations
    assert torch.equal(executor(x), torch.full((iterations,), 512.0))
    executor.copyWeightsToHost()
    assert executor.steps.item() == done + iterations


class Lookup(torch.nn.Module):
    """Fails at run time for an index that is out of range."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 3)

    def forward(self, index, target):
        return torch.nn.functional.mse_loss(self.table(index), target)


def test_a_run_that_fails_half_way_leaves_no_gradients_behind(opts):
    opts.Training.gradientAccumulation(2)
    torch.manual_seed(0)
    model = Lookup()
    twin = copy.deepcopy(model)
    executors = [
        poptorch.trainingModel(m, opts, torch.optim.SGD(m.parameters(), lr=0.1))
        for m in (model, twin)
    ]
    index, target = torch.arange(4), torch.randn(4, 3)
    bad = torch.tensor([0, 1, 2, 11])  # the second of two micro-batches fails
    for executor in executors:
        executor(index, target)
    with pytest.raises(poptorch.Error, match="index"):
        executors[0](bad, 10 * target)
    for executor in executors:
        executor(index, target)
    assert torch.equal(model.table.weight, twin.table.weight)


class Huge(torch.nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        wide = x.expand(2**24, 2**24).exp()
        return (wide @ wide).sum() if self.inside else wide


@pytest.mark.parametrize("inside", [True, False], ids=["arena", "output"])
def test_out_of_memory_is_an_error_of_its_own_type(opts, inside):
    executor = poptorch.inferenceModel(Huge(inside), opts)
    with pytest.raises(poptorch.Error) as caught:
        executor(torch.ones(1, 1))
    assert caught.value.type == "memory"
    assert torch.equal(poptorch.inferenceModel(Any(), opts)(T), T)
