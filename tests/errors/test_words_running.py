# SPDX-License-Identifier: Apache-2.0
"""Words of errors and warnings: wrapping a model, compiling and calling it."""

import collections

import poptorch
import torch
from api_support import Regression
from torch import nn
from words_support import (
    PYTHON_WARNS,
    WARNS,
    Function,
    Row,
    WithLoss,
    X,
    Y,
    check,
    infer,
    options,
    table,
    train,
)

Error = poptorch.Error
Mode = poptorch.OutputMode
NOT_COMPILED = "Model has not been compiled or has been destroyed."


def wrapped(opts=None):
    return poptorch.inferenceModel(Regression(), opts or options())


def compiled():
    executor = wrapped()
    executor(X)
    return executor


def again(first, second, forward=None):
    """Two calls with different arguments."""
    model = Function(forward or (lambda *args: X + 1))
    executor = poptorch.inferenceModel(model, options())
    executor(*first)
    executor(*second)


def twice(do):
    do()
    do()


class Named(nn.Module):
    def forward(self, x, scale=1.0, **others):
        return x * scale + sum(others.values())


class Variadic(nn.Module):
    def forward(self, *args):
        return args[0] + args[1]


def keywords(*calls):
    executor = poptorch.inferenceModel(Named(), options())
    for kwargs in calls:
        executor(**kwargs)


def refused(model):
    poptorch.trainingModel(model, options())


def with_odd_buffer():
    model = Regression()
    model.register_buffer("odd", nn.Parameter(torch.ones(1)))
    return model


def wrapping_twice():
    model = Regression()
    first = poptorch.trainingModel(model, options())  # noqa: F841
    poptorch.trainingModel(model, options())


def wrapping_an_executor_twice():
    poptorch.trainingModel(poptorch.trainingModel(Regression(), options()), options())


WRAPPING = [
    Row("Invalid type: 'options' is of type", Error, lambda: poptorch.inferenceModel(nn.ReLU(), 1)),
    Row("Invalid type: 'options' is of type", Error, lambda: poptorch.trainingModel(nn.ReLU(), {})),
    Row("You must set poptorch.Options().Training.gradientAccumulation to 1", Error,
        lambda: wrapped(options(poptorch.ShardedExecution(), training=2))),
    Row("deviceIterations", Error, lambda: wrapped(options(training=2))),
    Row("Model has already been wrapped in 'poptorch.trainingModel'", RuntimeError, wrapping_twice),
    Row("Model has already been wrapped in 'poptorch.trainingModel'", RuntimeError,
        wrapping_an_executor_twice),
    Row("All buffers must be an instance of torch.Tensor", Error,
        lambda: refused(with_odd_buffer())),
]  # fmt: skip


class Reassigns(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.weight = nn.Parameter(torch.ones(1))
        self.what = what

    def forward(self, x):
        if self.what == "buffer":
            self.count = self.count + 1
        elif self.what == "parameter":
            self.weight = nn.Parameter(self.weight * 2)
        else:
            del self.count
        return x * self.weight


COMPILING = [
    Row("Call to compile() ignored", WARNS, lambda: compiled().compile(X)),
    Row("Buffer count is reassigned within the model when calling the forward method", Error,
        lambda: infer(Reassigns("buffer"))),
    Row("Parameter weight is reassigned within the model when calling the forward method", Error,
        lambda: infer(Reassigns("parameter"))),
    Row("Buffer count is removed from the model when calling the forward method", Error,
        lambda: infer(Reassigns("nothing"))),
    Row("Please compile the model before obtaining compilation time", Error,
        lambda: wrapped().compilationTime()),
    Row("Zero-sized tensors are unsupported (Got shape [", Error,
        lambda: infer(torch.neg, torch.zeros(0, 3))),
    Row("Output expected to be on the IPU but is on cpu", PYTHON_WARNS,
        lambda: infer(lambda x: (x + 1, Y))),
    Row("PopTorch does not support broadcasting buffers", Error,
        lambda: infer(Counting(), opts=options(replicationFactor=2))),
]  # fmt: skip


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count


Pair = collections.namedtuple("Pair", "a b")

ARGUMENTS = [
    Row("Too many arguments provided: expected", AssertionError,
        lambda: infer(nn.ReLU(), X, X)),
    Row("is not a valid parameter", AssertionError,
        lambda: poptorch.inferenceModel(nn.ReLU(), options())(X, other=X)),
    Row("was passed more than once", AssertionError,
        lambda: poptorch.inferenceModel(nn.ReLU(), options())(X, input=X)),
    Row("Mandatory parameter x missing", Error, lambda: poptorch.inferenceModel(Named())()),
    Row("Invalid batch dimension: In the input", AssertionError,
        lambda: infer(torch.neg, torch.ones(7, 3), opts=options(deviceIterations=2))),
    Row("Invalid batch dimension: In the input", AssertionError,
        lambda: infer(torch.neg, torch.tensor(1.0), opts=options(deviceIterations=2))),
    Row("Dicts as inputs only have partial support", WARNS,
        lambda: infer(lambda d: d["x"] + 1, {"x": X})),
    Row("Input tensor has requires_grad=True set", WARNS,
        lambda: infer(torch.neg, X.clone().requires_grad_())),
    Row("Input tensor has requires_grad=True set", WARNS,
        lambda: again((X,), (X.clone().requires_grad_(),))),
    Row("Input tensor has requires_grad=True set", WARNS,
        lambda: again((X.clone().requires_grad_(),), (X.clone().requires_grad_(),))),
    Row("not contiguous", WARNS, lambda: infer(torch.neg, X.t())),
    Row("Unsupported tensor input type from pytorch:", Error,
        lambda: infer(torch.neg, X.to(torch.complex64))),
    Row("Number of positional arguments mismatch: expected 1 arguments but got 2", Error,
        lambda: again((X,), (X, X))),
    Row("Type mismatch for x: expected <class 'torch.Tensor'> but got <class 'int'>", Error,
        lambda: keywords({"x": X}, {"x": 1})),
    Row("Type mismatch for *args[0]: expected <class 'list'> but got <class 'tuple'>", Error,
        lambda: again(([X],), ((X,),))),
    Row("Length mismatch for *args[0]: expected 1 elements but got 2", Error,
        lambda: again(([X],), ([X, X],))),
    Row("Keys mismatch for *args[0]:", Error, lambda: again(({"a": X},), ({"b": X},))),
    Row("Unexpected arguments: b", Error, lambda: again(({"a": X},), ({"a": X, "b": X},))),
    Row("Missing arguments: a", Error, lambda: again(({"a": X, "b": X},), ({"b": X},))),
    Row("Keys mismatch for named arguments:", Error,
        lambda: keywords({"x": X, "a": X}, {"x": X, "b": X})),
    Row("Data type mismatch for x: expected torch.float32 but got torch.float16", Error,
        lambda: keywords({"x": X}, {"x": X.half()})),
    Row("Shape mismatch for *args[0][a]: expected torch.Size([8, 3]) but got torch.Size([8, 2])",
        Error, lambda: again(({"a": X},), ({"a": Y},))),
    Row("Shape mismatch for *args[0][1]:", Error,
        lambda: again((Pair(X, X),), (Pair(X, Y),))),
    Row("Value mismatch for scale: expected 2.0 but got 3.0", Error,
        lambda: keywords({"x": X, "scale": 2.0}, {"x": X, "scale": 3.0})),
    Row("destroy()", Error, lambda: again((X,), (Y,))),
    Row("arg_parser must inherit from ICustomArgParser", Error,
        lambda: poptorch.registerCustomArgParser(Pair, object())),
]  # fmt: skip


def losses(x):
    return nn.functional.mse_loss(x * 2, x), nn.functional.l1_loss(x * 3, x)


class TwoLosses(nn.Module):
    def __init__(self, returned=slice(None)):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.returned = returned

    def forward(self, x):
        return losses(x * self.weight)[self.returned]


RESULTS = [
    Row("backward() cannot be called explicitly on outputs of a PopTorch model", Error,
        lambda: compiled()(X).backward()),
    Row("backward() cannot be called explicitly on outputs of a PopTorch model", Error,
        lambda: train()(X, Y)[1].backward()),
    Row("backward() cannot be called explicitly on outputs of a PopTorch model", Error,
        lambda: infer(lambda x: {"a": [x + 1]})["a"][0].backward(retain_graph=True)),
    Row("Couldn't find a loss in graph!", Error, lambda: train(nn.Linear(3, 3), X)),
    Row("Multiple independent losses found in graph. Graph must have one final loss. Wrap final "
        "graph loss in poptorch.identity_loss.", Error, lambda: train(TwoLosses(), X)),
    Row("Unsupported reduction type!", AssertionError,
        lambda: infer(lambda x: poptorch.identity_loss(x, "max"))),
    Row("Unsupported reduction type!", AssertionError, lambda: poptorch.identity_loss(X, "max")),
]  # fmt: skip


def offline():
    opts = options(connectionType=poptorch.ConnectionType.Never)
    executor = poptorch.inferenceModel(Regression(), opts)
    executor.compile(X)
    return executor


def detached():
    executor = compiled()
    executor.detachFromDevice()
    return executor


LIFE = [
    Row(NOT_COMPILED, Error, lambda: wrapped().copyWeightsToHost()),
    Row(NOT_COMPILED, Error, lambda: wrapped().copyWeightsToDevice()),
    Row(NOT_COMPILED, Error, lambda: wrapped().detachFromDevice()),
    Row(NOT_COMPILED, Error, lambda: wrapped().rng_state),
    Row("No named buffers marked as updatable", Error,
        lambda: compiled().copyNamedBuffersToDevice()),
    Row("Model must be compiled before calling getTensorNames", AssertionError,
        lambda: wrapped().getTensorNames()),
    Row("No tensor with name a found.", AssertionError, lambda: compiled().getAnchoredTensor("a")),
    Row("Cycle count logging is disabled", Error, lambda: compiled().cycleCount()),
    Row("Please run the model at least once before obtaining cycle count.", Error,
        lambda: never_run().cycleCount()),
    Row("Device is not attached", Error, lambda: detached().detachFromDevice()),
    Row("Device is already attached", Error, lambda: compiled().attachToDevice()),
    Row("", AssertionError, lambda: offline().attachToDevice()),
    Row("Trying to run a model on an offline device", AssertionError, lambda: offline()(X)),
]  # fmt: skip


def never_run():
    executor = poptorch.inferenceModel(Regression(), options(logCycleCount=True))
    executor.compile(X)
    return executor


def grouped(value, shards=1, name="weight", replicas=2):
    model = WithLoss(nn.Identity())
    model.register_parameter("weight", nn.Parameter(value))
    model.inner = Uses(model)
    executor = poptorch.inferenceModel(model, options(replicationFactor=replicas))
    getattr(executor, name).replicaGrouping(
        poptorch.CommGroupType.Consecutive, shards, poptorch.VariableRetrievalMode.OnePerGroup
    )
    executor(X)


class Uses(nn.Module):
    """Multiplies with a parameter of its parent."""

    def __init__(self, parent):
        super().__init__()
        self.parent = [parent]

    def forward(self, x):
        return x * self.parent[0].weight


GROUPS = [
    Row("Scalars cannot be passed as per-replica weight tensor values", Error,
        lambda: grouped(torch.tensor(1.0))),
    Row("Return mismatch with possibly appended outer dimension", Error,
        lambda: grouped(torch.ones(3, 3))),
]  # fmt: skip


@table(WRAPPING + COMPILING + ARGUMENTS + RESULTS + LIFE + GROUPS)
def test_words(row, caplog):
    check(row, caplog)
