# SPDX-License-Identifier: Apache-2.0
"""Words of errors and warnings: optimizers, their subclasses, their values and their state."""

import poptorch
import torch
from api_support import Regression
from words_support import WARNS, Row, X, Y, check, options, table, train

Error = poptorch.Error
ours, theirs = poptorch.optim, torch.optim
half = torch.float16


class MySGD(theirs.SGD):
    pass


class MyAdamW(ours.AdamW):
    pass


class Generation(MySGD):
    pass


class FromNothing(theirs.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})


def wrap(kind, opts=None, **values):
    """A model wrapped with an optimizer, and the optimizer."""
    model = Regression()
    values.setdefault("lr", 0.1)
    optimizer = kind(model.parameters(), **values)
    return poptorch.trainingModel(model, opts or options(), optimizer), optimizer


def ran(kind, opts=None, **values):
    executor, optimizer = wrap(kind, opts, **values)
    executor(X, Y)
    return executor, optimizer


def changed(kind, change, **values):
    """A value of the optimizer changes after compilation."""
    executor, optimizer = ran(kind, **values)
    change(optimizer)
    executor.setOptimizer(optimizer)
    return executor


def group(name, value):
    return lambda optimizer: optimizer.param_groups[0].__setitem__(name, value)


def attribute(name, value):
    return lambda optimizer: setattr(optimizer, name, value)


def replaced(old, new, old_values=None, new_values=None):
    """Another optimizer after compilation."""
    executor, _ = ran(old, **(old_values or {}))
    values = {"lr": 0.1, **(new_values or {})}
    executor.setOptimizer(new(executor.model.parameters(), **values))


def groups_of_rmsprop():
    one, two = Regression().parameters()
    ours.RMSprop([{"params": [one], "centered": True}, {"params": [two]}])


def centered():
    model = Regression()
    one, two = model.parameters()
    made = theirs.RMSprop([{"params": [one], "centered": True}, {"params": [two]}])
    poptorch.trainingModel(model, options(), made)


def params():
    return Regression().parameters()


UNSUPPORTED = "Unsupported optimizer type"
ACCUM = "Accumulation types must be either torch.float32"
SUBCLASS = "unlikely to behave as intended"
CONSTANT = "Values are constant but do not match."

CLASSES = [
    Row(UNSUPPORTED, AssertionError, lambda: wrap(theirs.LBFGS)),
    Row(UNSUPPORTED, AssertionError, lambda: train(optimizer=FromNothing)),
    Row(UNSUPPORTED, AssertionError,
        lambda: poptorch.trainingModel(Regression(), options(), "SGD")),
    Row(SUBCLASS, WARNS, lambda: wrap(MySGD)),
    Row(SUBCLASS, WARNS, lambda: wrap(MyAdamW)),
    Row(SUBCLASS, WARNS, lambda: wrap(Generation)),
    Row(SUBCLASS, WARNS, lambda: ran(MySGD)),
    Row(SUBCLASS, WARNS, lambda: changed(MyAdamW, group("lr", 0.2))),
    Row("All parameter groups must have the same value for the 'centered' attribute",
        AssertionError, centered),
]  # fmt: skip

VALUES = [
    Row("Expected a number for lr", AssertionError, lambda: ours.SGD(params(), lr=torch.ones(()))),
    Row("Expected a number for momentum", AssertionError,
        lambda: ours.SGD(params(), lr=0.1, momentum="0.9")),
    Row("Expected a number for eps", AssertionError, lambda: ours.AdamW(params(), eps="1e-8")),
    Row("Expected a number for loss_scaling", AssertionError,
        lambda: ours.AdamW(params(), loss_scaling="1")),
    Row("Expected a number for max_grad_norm", AssertionError,
        lambda: ours.AdamW(params(), max_grad_norm="1")),
    Row("Expected a number for velocity_scaling", AssertionError,
        lambda: ours.SGD(params(), lr=0.1, velocity_scaling="1", use_combined_accum=True)),
    Row("Expected a number for max_weight_norm", AssertionError,
        lambda: ours.LAMB(params(), max_weight_norm="1")),
    Row("Expected a number for lr", AssertionError,
        lambda: wrap(theirs.Adam, lr=torch.tensor(0.1))),
    Row("betas", AssertionError, lambda: ours.Adam(params(), betas=0.9)),
    Row("betas", AssertionError, lambda: ours.LAMB(params(), betas=(0.9, "0.9"))),
    Row(ACCUM, AssertionError, lambda: ours.SGD(params(), lr=0.1, accum_type=torch.bfloat16)),
    Row(ACCUM, AssertionError,
        lambda: ours.SGD(params(), lr=0.1, velocity_accum_type=torch.int32)),
    Row(ACCUM, AssertionError,
        lambda: ours.RMSprop(params(), second_order_momentum_accum_type="half")),
    Row("velocity_scaling", WARNS, lambda: ours.SGD(params(), lr=0.1, velocity_scaling=2.0)),
    Row("Maximum norm of gradients cannot be NaN", Error,
        lambda: ran(ours.AdamW, max_grad_norm=float("nan"))),
    Row("Loss scaling cannot be 0", Error, lambda: ran(ours.AdamW, loss_scaling=0.0)),
]  # fmt: skip


def grouped(kind, **values):
    """An optimizer whose only group has these values too."""
    train(optimizer=lambda p: kind([{"params": list(p), "name": "all", **values}], lr=0.1))


CHANGES = [
    Row(CONSTANT, Error, lambda: changed(ours.SGD, group("momentum", 0.9)), "popart_exception"),
    Row(CONSTANT, Error, lambda: changed(ours.AdamW, attribute("loss_scaling", 2.0))),
    Row(CONSTANT, Error, lambda: changed(ours.AdamW, group("betas", (0.8, 0.9)))),
    Row(CONSTANT, Error, lambda: changed(theirs.SGD, group("momentum", 0.9))),
    Row(CONSTANT, Error, lambda: changed(theirs.AdamW, group("eps", 1e-6))),
    Row(CONSTANT, Error, lambda: changed(theirs.Adam, group("betas", (0.8, 0.9)))),
    Row("Can not replace a constant value with a non constant value.", Error,
        lambda: replaced(ours.SGD, ours.SGD, {}, {"momentum": 0.0}), "popart_exception"),
    Row("Can not replace optimizer of type", Error, lambda: replaced(ours.SGD, ours.Adam),
        "popart_exception"),
    Row("Clip norm settings", Error,
        lambda: replaced(ours.SGD, ours.SGD, {"max_grad_norm": 1.0}, {"max_grad_norm": 2.0})),
    Row("Clip norm settings", Error,
        lambda: replaced(ours.SGD, ours.SGD, {}, {"max_grad_norm": 2.0})),
    Row("Invalid optimizer: the new optimizer would require changing", ValueError,
        lambda: replaced(ours.SGD, ours.SGD, {}, {"accum_type": half})),
    Row("Unknown attribute nothing, allowed values:", AssertionError,
        lambda: ours.SGD(params(), lr=0.1).variable_attrs.markAsConstant("nothing")),
    Row("Unknown attribute accum_type, allowed values:", AssertionError,
        lambda: ours.SGD(params(), lr=0.1).variable_attrs.markAsVariable("accum_type")),
    Row("Ignoring unexpected group 0 attribute in SGD optimizer: ['initial_lr']", WARNS,
        lambda: changed(ours.SGD, group("initial_lr", 0.1))),
    Row("Ignoring unexpected group 0 attribute in SGD optimizer: ['loss_scaling']", WARNS,
        lambda: grouped(ours.SGD, loss_scaling=2.0)),
    Row("Ignoring unexpected group 0 attribute in AdamW optimizer: ['accum_type', 'max_grad_norm']",
        WARNS, lambda: grouped(ours.AdamW, accum_type=torch.float16, max_grad_norm=1.0)),
    Row("Ignoring unexpected optimizer attribute in SGD optimizer: ['note']", WARNS,
        lambda: changed(ours.SGD, attribute("note", 0.1))),
    Row("Ignoring unexpected default group variable in Adam optimizer: ['note']", WARNS,
        lambda: changed(theirs.Adam, lambda o: o.defaults.__setitem__("note", 1))),
    Row("out of range", Error, lambda: train(opts=post_and_loss())),
]  # fmt: skip


def post_and_loss():
    opts = options()
    strategy = poptorch.MeanReductionStrategy.PostAndLoss
    opts.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    return opts


def loaded(drop):
    """Half of a state_dict."""
    executor, optimizer = ran(ours.AdamW)
    state = optimizer.state_dict()
    del state[drop][next(iter(state[drop]))]
    optimizer.load_state_dict(state)
    executor(X, Y)


def from_torch():
    model = Regression()
    optimizer = theirs.SGD(model.parameters(), lr=0.1)
    ours.SGD(model.parameters(), lr=0.1).load_state_dict(optimizer.state_dict())


STATE = [
    Row("Only IPU optimizer states can be loaded onto the IPU.", RuntimeError, from_torch),
    Row("Cannot load optimizer state dictionary because it is empty.", RuntimeError,
        lambda: ours.SGD(params(), lr=0.1).set_state_dict({})),
    Row("writeOptimizerState: ignoring missing state", WARNS, lambda: loaded("ipu_state")),
    Row("writeOptimizerState: ignoring missing parameter", WARNS, lambda: loaded("ipu_param")),
]  # fmt: skip


@table(CLASSES + VALUES + CHANGES + STATE)
def test_words(row, caplog):
    check(row, caplog)


def test_classes_of_torch_and_of_ours_are_no_subclasses(caplog):
    for kind in (theirs.SGD, theirs.Adam, theirs.AdamW, theirs.RMSprop, theirs.NAdam, ours.SGD,
                 ours.Adam, ours.AdamW, ours.RMSprop, ours.LAMB):  # fmt: skip
        ran(kind)
    assert SUBCLASS not in caplog.text


def test_relaxed_checks_say_it_at_debug_level(caplog):
    executor, optimizer = ran(ours.SGD, options(relaxOptimizerAttributesChecks=True))
    optimizer.param_groups[0]["initial_lr"] = 1.0
    executor.setOptimizer(optimizer)
    assert not caplog.records
