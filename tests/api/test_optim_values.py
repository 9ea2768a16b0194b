# SPDX-License-Identifier: Apache-2.0
"""Arguments of optimizers: signatures and defaults, what is constant and what may vary."""

import copy
import inspect
import math
import pathlib

import poptorch
import pytest
import torch
from api_support import eager_step
from poptorch import optim
from poptorch.optimizer.table import ALGORITHMS

HALF = torch.float16
_MOMENT_TYPES = "first_order_momentum_accum_type second_order_momentum_accum_type"
SIGNATURES = {
    optim.SGD: "params lr momentum dampening weight_decay nesterov maximize foreach differentiable "
    "loss_scaling velocity_scaling use_combined_accum accum_type velocity_accum_type max_grad_norm",
    optim.Adam: "params lr betas eps weight_decay amsgrad foreach maximize capturable "
    f"differentiable fused loss_scaling accum_type {_MOMENT_TYPES} max_grad_norm",
    optim.AdamW: "params lr betas eps weight_decay amsgrad maximize foreach capturable "
    f"differentiable fused loss_scaling bias_correction accum_type {_MOMENT_TYPES} max_grad_norm",
    optim.RMSprop: "params lr alpha eps weight_decay momentum centered foreach maximize "
    f"differentiable loss_scaling accum_type {_MOMENT_TYPES} use_tf_variant",
    optim.LAMB: "params lr betas eps weight_decay bias_correction loss_scaling max_weight_norm "
    f"accum_type {_MOMENT_TYPES}",
}
ALL = list(SIGNATURES)


def parameters():
    return [torch.nn.Parameter(torch.ones(2))]


def make(kind, params=None, **values):
    if kind is optim.SGD:
        values.setdefault("lr", 0.1)
    return kind(parameters() if params is None else params, **values)


# Constructors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_signatures(kind):
    found = inspect.signature(kind).parameters
    assert list(found) == SIGNATURES[kind].split()
    required = ["params", "lr"] if kind is optim.SGD else ["params"]
    assert [n for n, p in found.items() if p.default is inspect.Parameter.empty] == required
    assert all(p.default is None for n, p in found.items() if n not in required)
    assert issubclass(kind, optim.Optimizer) and issubclass(kind, torch.optim.Optimizer)


@pytest.mark.parametrize("kind", ALL)
def test_defaults(kind):
    optimizer = make(kind)
    extras = {
        "loss_scaling": 1.0,
        "accum_type": torch.float32,
        "use_combined_accum": False,
        "velocity_accum_type": torch.float32,
        "first_order_momentum_accum_type": torch.float32,
        "second_order_momentum_accum_type": torch.float32,
        "bias_correction": True,
        "max_grad_norm": math.inf,
        "use_tf_variant": False,
        "max_weight_norm": 65500.0,
    }
    for name in SIGNATURES[kind].split():
        if name in extras:
            assert getattr(optimizer, name) == extras[name], name
    if kind is optim.LAMB:
        theirs = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
    else:
        theirs = make(getattr(torch.optim, kind.__name__), lr=0.1).defaults
        optimizer = make(kind, lr=0.1)
    assert theirs.items() <= optimizer.defaults.items()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (optim.SGD, {"foreach": True, "differentiable": True}),
        (optim.Adam, {"foreach": True, "fused": True, "capturable": True, "differentiable": True}),
        (optim.AdamW, {"foreach": True, "fused": True, "capturable": True, "differentiable": True}),
        (optim.RMSprop, {"foreach": True, "differentiable": True}),
        (torch.optim.Adam, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.SGD, {"foreach": True}),
    ],
)
def test_arguments_about_torchs_kernels_change_nothing(regression, batch, opts, kind, values):
    twin = copy.deepcopy(regression)
    for model, extra in ((regression, values), (twin, {})):
        poptorch.trainingModel(model, opts, kind(model.parameters(), lr=0.1, **extra))(*batch)
    assert torch.equal(regression.linear.weight, twin.linear.weight)


def test_a_rate_is_required_for_sgd():
    with pytest.raises(TypeError):
        optim.SGD(parameters())


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16, torch.float64])
def test_types_of_accumulators_that_are_refused(kind, dtype):
    for name in (n for n in SIGNATURES[kind].split() if n.endswith("accum_type")):
        with pytest.raises(AssertionError, match="Accumulation types must be either torch.float32"):
            make(kind, **{name: dtype})


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (optim.SGD, {"lr": torch.tensor(0.1)}, "Expected a number for lr"),
        (optim.Adam, {"lr": torch.tensor(0.1)}, "Expected a number for lr"),
        (optim.SGD, {"momentum": "much"}, "Expected a number for momentum"),
        (optim.AdamW, {"eps": torch.tensor(1e-8)}, "Expected a number for eps"),
        (optim.Adam, {"betas": 0.9}, "betas must be a tuple of two numbers"),
        (optim.LAMB, {"betas": (0.9, 0.9, 0.9)}, "betas must be a tuple of two numbers"),
        (optim.AdamW, {"betas": (0.9, None)}, "betas must be a tuple of two numbers"),
    ],
)
def test_values_that_are_no_numbers(kind, values, text):
    with pytest.raises(AssertionError, match=text):
        make(kind, **values)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adafactor])
def test_a_tensor_rate_of_a_torch_optimizer_is_refused(regression, opts, kind):
    optimizer = kind(regression.parameters(), lr=torch.tensor(0.1))
    with pytest.raises(AssertionError, match="Expected a number for lr"):
        poptorch.trainingModel(regression, opts, optimizer)


@pytest.mark.parametrize("kind", [torch.optim.RMSprop, optim.RMSprop])
def test_groups_must_agree_on_centered(regression, opts, kind):
    groups = [
        {"params": [regression.linear.weight], "centered": True},
        {"params": [regression.linear.bias], "centered": False},
    ]
    with pytest.raises(
        AssertionError,
        match="All parameter groups must have the same value for the 'centered' attribute",
    ):
        poptorch.trainingModel(regression, opts, kind(groups, lr=0.1))


def test_velocity_scaling_is_for_the_combined_variant(log):
    optimizer = make(optim.SGD, momentum=0.9, velocity_scaling=4.0)
    assert "velocity_scaling" in log.text
    assert optimizer.param_groups[0]["velocity_scaling"] == 1.0
    log.clear()
    combined = make(optim.SGD, momentum=0.9, velocity_scaling=4.0, use_combined_accum=True)
    assert combined.param_groups[0]["velocity_scaling"] == 4.0 and not log.text


@pytest.mark.parametrize("base", [torch.optim.SGD, optim.SGD, torch.optim.AdamW])
def test_a_subclass_is_warned_about(regression, opts, log, base):
    poptorch.trainingModel(regression, opts, base(regression.parameters(), lr=0.1)).destroy()
    assert "unlikely to behave as intended" not in log.text

    class Mine(base):
        pass

    poptorch.trainingModel(regression, opts, Mine(regression.parameters(), lr=0.1))
    assert "unlikely to behave as intended" in log.text


def test_the_page_names_every_class_and_state():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "optimizers.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for algorithm in ALGORITHMS:
        name = algorithm.classes[0].__name__
        row = next((line for line in rows if f"`{name}`" in line.split("|")[1]), None)
        assert row is not None, name
        shared = "as Adam" in row
        assert shared or all(f"`{p}`" in row for p in algorithm.states.values()), name


# Constants and variables --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_what_is_given_is_variable(kind):
    attrs = make(kind, lr=0.1, weight_decay=0.5, loss_scaling=2.0).variable_attrs
    assert not any(attrs.isConstant(n) for n in ("lr", "weight_decay", "loss_scaling"))
    attrs = make(kind).variable_attrs
    constant = ["weight_decay", "loss_scaling"] + ([] if kind is optim.SGD else ["lr", "eps"])
    assert all(attrs.isConstant(n) for n in constant)
    with pytest.raises(AssertionError, match="Unknown attribute .*, allowed values:"):
        attrs.markAsConstant("accum_type")
    for name in (*make(kind).defaults, "loss_scaling"):
        if name == "velocity_scaling":
            continue  # of the combined variant alone
        attrs.markAsVariable(name)
        assert not attrs.isConstant(name)


def test_velocity_scaling_is_an_attribute_of_the_combined_variant():
    with pytest.raises(AssertionError, match="Unknown attribute velocity_scaling"):
        make(optim.SGD).variable_attrs.markAsVariable("velocity_scaling")
    make(optim.SGD, use_combined_accum=True).variable_attrs.markAsVariable("velocity_scaling")


@pytest.mark.parametrize(
    ("kind", "values", "name"),
    [
        (optim.SGD, {"lr": 0.1}, "momentum"),
        (optim.SGD, {"lr": 0.1, "momentum": 0.9}, "dampening"),
        (optim.Adam, {}, "lr"),
        (optim.AdamW, {"lr": 0.1}, "weight_decay"),
        (optim.RMSprop, {"lr": 0.1}, "alpha"),
        (optim.LAMB, {"lr": 0.1}, "max_weight_norm"),
        (torch.optim.SGD, {"lr": 0.1}, "momentum"),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, "dampening"),
        (torch.optim.SGD, {"lr": 0.1}, "weight_decay"),
        (torch.optim.Adam, {"lr": 0.1}, "eps"),
        (torch.optim.AdamW, {"lr": 0.1}, "weight_decay"),
        (torch.optim.RMSprop, {"lr": 0.1, "alpha": 0.9}, "alpha"),
        (torch.optim.Adagrad, {"lr": 0.1}, "lr_decay"),
    ],
)
def test_a_constant_may_not_change(start, batch, kind, values, name):
    optimizer, executor = start(kind, **values)
    executor(*batch)
    before = optimizer.param_groups[0][name]
    optimizer.param_groups[0][name] = 0.25
    with pytest.raises(poptorch.Error, match="Values are constant but do not match.") as caught:
        executor.setOptimizer(optimizer)
    assert caught.value.type == "popart_exception"
    optimizer.param_groups[0][name] = before
    executor.setOptimizer(optimizer)
    executor(*batch)


@pytest.mark.parametrize(
    ("kind", "values", "changed"),
    [
        (torch.optim.SGD, {"lr": 0.1}, {"lr": 0.2}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, {"momentum": 0.5}),
        (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}, {"weight_decay": 0.0}),
        (torch.optim.Adam, {"eps": 1e-7, "lr": 0.1}, {"eps": 1e-3}),
        (torch.optim.AdamW, {"weight_decay": 0.1, "lr": 0.1}, {"weight_decay": 0.3, "lr": 0.2}),
        (torch.optim.NAdam, {"momentum_decay": 0.1, "lr": 0.1}, {"momentum_decay": 0.5}),
        (optim.Adam, {"betas": (0.9, 0.99), "lr": 0.1}, {"betas": (0.5, 0.9)}),
        (optim.RMSprop, {"alpha": 0.9, "lr": 0.1}, {"alpha": 0.5}),
    ],
)
def test_a_variable_may_change(regression, batch, opts, kind, values, changed):
    twin = copy.deepcopy(regression)
    optimizer = kind(regression.parameters(), **values)
    reference = getattr(torch.optim, kind.__name__)(twin.parameters(), **values)
    executor = poptorch.trainingModel(regression, opts, optimizer)
    for step in range(4):
        if step == 2:
            optimizer.param_groups[0].update(changed)
            reference.param_groups[0].update(changed)
            executor.setOptimizer(optimizer)
        executor(*batch)
        eager_step(twin, reference, *batch)
    torch.testing.assert_close(
        dict(regression.state_dict()), dict(twin.state_dict()), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("combined", [True, False])
def test_velocity_scaling_may_change_and_changes_nothing_in_exact_arithmetic(
    regression, batch, opts, combined
):
    twin = copy.deepcopy(regression)
    eager = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    values = {"lr": 0.1, "momentum": 0.9, "use_combined_accum": combined}
    optimizer = optim.SGD(regression.parameters(), velocity_scaling=2.0, **values)
    executor = poptorch.trainingModel(regression, opts, optimizer)
    for step in range(6):
        if step == 2:
            optimizer.param_groups[0]["velocity_scaling"] = 16.0
        if step == 4:  # another object, as programs make them
            state = optimizer.state_dict()
            optimizer = optim.SGD(regression.parameters(), velocity_scaling=4.0, **values)
            optimizer.load_state_dict(state)
            optimizer.param_groups[0]["velocity_scaling"] = 4.0
        executor.setOptimizer(optimizer)
        executor(*batch)
        eager_step(twin, eager, *batch)
    torch.testing.assert_close(dict(regression.state_dict()), dict(twin.state_dict()))


def test_a_velocity_scaling_of_zero_is_refused(regression, opts):
    optimizer = optim.SGD(regression.parameters(), lr=0.1, momentum=0.9, use_combined_accum=True)
    optimizer.param_groups[0]["velocity_scaling"] = 0.0
    with pytest.raises(poptorch.Error, match="Velocity scaling cannot be 0"):
        poptorch.trainingModel(regression, opts, optimizer)


@pytest.mark.parametrize("dampening", [0.0, 0.5])
@pytest.mark.parametrize("ours_first", [True, False])
def test_optimizers_of_torch_and_of_poptorch_replace_each_other(
    regression, batch, opts, ours_first, dampening
):
    """They are one algorithm, unless torch's first step without dampening sets them apart."""
    kinds = [optim.SGD, torch.optim.SGD] if ours_first else [torch.optim.SGD, optim.SGD]
    values = {"lr": 0.1, "momentum": 0.9, "dampening": dampening}
    twin = copy.deepcopy(regression)
    eager = torch.optim.SGD(twin.parameters(), **values)
    executor = poptorch.trainingModel(regression, opts, kinds[0](regression.parameters(), **values))
    executor(*batch)
    other = kinds[1](regression.parameters(), **values)
    if dampening:
        with pytest.raises(poptorch.Error, match="fixed at compilation|non constant"):
            executor.setOptimizer(other)
        return
    if not ours_first:  # what is given to ours is variable, a default of torch's is constant
        other.variable_attrs.markAsConstant("dampening")
    executor.setOptimizer(other)
    executor(*batch)
    for _ in range(2):
        eager_step(twin, eager, *batch)
    torch.testing.assert_close(dict(regression.state_dict()), dict(twin.state_dict()))


def test_constants_stay_constants(start, batch, regression):
    _, executor = start(optim.SGD, lr=0.1)
    executor(*batch)
    variable = optim.SGD(regression.parameters(), lr=0.1, weight_decay=0.0)
    with pytest.raises(
        poptorch.Error, match="Can not replace a constant value with a non constant value"
    ) as caught:
        executor.setOptimizer(variable)
    assert caught.value.type == "popart_exception"


@pytest.mark.parametrize("mark", ["markAsConstant", "markAsVariable"])
def test_marks_decide_before_compilation(start, batch, mark):
    values = {"weight_decay": 0.1} if mark == "markAsConstant" else {}
    optimizer, executor = start(optim.SGD, lr=0.1, **values)
    getattr(optimizer.variable_attrs, mark)("weight_decay")
    executor(*batch)
    optimizer.param_groups[0]["weight_decay"] = 0.5
    if mark == "markAsVariable":
        executor.setOptimizer(optimizer)
        return
    with pytest.raises(poptorch.Error, match="Values are constant but do not match"):
        executor.setOptimizer(optimizer)


@pytest.mark.parametrize("kind", [torch.optim.Adam, optim.Adam])
def test_what_is_marked_of_any_optimizer_may_change(regression, batch, opts, kind):
    twin = copy.deepcopy(regression)
    optimizer = kind(regression.parameters(), lr=0.1)
    reference = torch.optim.Adam(twin.parameters(), lr=0.1)
    optim.markAsVariable(optimizer, "betas", "weight_decay")
    executor = poptorch.trainingModel(regression, opts, optimizer)
    for betas in ((0.9, 0.999), (0.5, 0.9)):
        optimizer.param_groups[0]["betas"] = reference.param_groups[0]["betas"] = betas
        executor.setOptimizer(optimizer)
        executor(*batch)
        eager_step(twin, reference, *batch)
    torch.testing.assert_close(regression.linear.weight.data, twin.linear.weight.data)
    optimizer.param_groups[0]["eps"] = 0.5
    with pytest.raises(poptorch.Error, match="Values are constant but do not match"):
        executor.setOptimizer(optimizer)


def test_constant_loss_scaling(start, batch):
    optimizer, executor = start(optim.SGD, lr=0.1)
    executor(*batch)
    optimizer.loss_scaling = 2.0
    with pytest.raises(poptorch.Error, match="Values are constant but do not match. loss_scaling"):
        executor.setOptimizer(optimizer)


def test_automatic_loss_scaling_makes_it_variable(regression, batch, opts):
    opts.Training.setAutomaticLossScaling(True)
    twin = copy.deepcopy(regression)
    eager = torch.optim.SGD(twin.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(regression.parameters(), lr=0.1)
    executor = poptorch.trainingModel(regression, opts, optimizer)
    executor(*batch)
    optimizer.loss_scaling = 2.0
    executor.setOptimizer(optimizer)
    executor(*batch)
    for _ in range(2):
        eager_step(twin, eager, *batch)
    torch.testing.assert_close(regression.linear.weight.detach(), twin.linear.weight.detach())


@pytest.mark.parametrize(
    ("kind", "values", "changed"),
    [
        (optim.SGD, {"momentum": 0.9}, {"momentum": 0.9, "velocity_accum_type": HALF}),
        (optim.SGD, {"momentum": 0.9}, {"momentum": 0.9, "use_combined_accum": True}),
        (optim.SGD, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}),
        (optim.Adam, {}, {"amsgrad": True}),
        (optim.AdamW, {}, {"bias_correction": False}),
        (optim.AdamW, {}, {"first_order_momentum_accum_type": HALF}),
        (optim.RMSprop, {}, {"use_tf_variant": True}),
        (optim.RMSprop, {}, {"centered": True}),
    ],
)
def test_what_is_fixed_at_compilation(start, regression, batch, kind, values, changed):
    _, executor = start(kind, lr=0.1, **values)
    executor(*batch)
    with pytest.raises(poptorch.Error, match="fixed at compilation"):
        executor.setOptimizer(kind(regression.parameters(), lr=0.1, **changed))
    executor(*batch)
