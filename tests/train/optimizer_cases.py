# SPDX-License-Identifier: Apache-2.0
"""Every optimizer with the same training in plain PyTorch: torch's own class where it has one with
that rule, else the rule written out."""

import copy

import torch
from poptorch import optim
from torch import nn


class Tiny(nn.Module):
    """Two layers and a loss: matrices and vectors, small enough for hundreds of compilations."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.outer = nn.Linear(4, 2)

    def forward(self, x, target):
        out = self.outer(torch.tanh(self.inner(x)))
        return out, nn.functional.mse_loss(out, target)


ROWS = 2  # of a micro-batch


def tiny():
    torch.manual_seed(4)
    return Tiny()


def data(updates, micro_batches):
    """The rows of `updates` weight updates of so many micro-batches each."""
    generator = torch.Generator().manual_seed(7)
    rows = updates * micro_batches * ROWS
    x = torch.randn(rows, 3, generator=generator)
    return x, torch.randn(rows, 2, generator=generator) + 1.0


def train_eager(make, updates, micro_batches, mean=True, model=None):
    """Plain PyTorch: gradients of the micro-batches accumulated before each step."""
    model = tiny() if model is None else copy.deepcopy(model)
    optimizer = make(model.parameters())
    x, target = data(updates, micro_batches)
    batches = zip(x.split(ROWS), target.split(ROWS), strict=True)
    for _ in range(updates):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            _, loss = model(*next(batches))
            (loss / micro_batches if mean else loss).backward()
        optimizer.step()
    return dict(model.state_dict())


class Written(torch.optim.Optimizer):
    """An optimizer whose rule is a function (weight, gradient, state, step) -> new weight."""

    def __init__(self, params, rule, max_grad_norm=None):
        super().__init__(params, {})
        self._rule, self._limit, self._steps = rule, max_grad_norm, 0

    @torch.no_grad()
    def step(self):
        self._steps += 1
        params = [p for group in self.param_groups for p in group["params"]]
        factor = 1.0
        if self._limit is not None:
            norm = torch.sqrt(sum(p.grad.square().sum() for p in params))
            factor = self._limit / max(self._limit, float(norm))
        for p in params:
            p.copy_(self._rule(p, p.grad * factor, self.state[p], self._steps))


def sgd_rule(lr, momentum=0.0, dampening=0.0, weight_decay=0.0):
    """Dampening counts from the first step on."""

    def rule(w, g, state, step):
        g = g + weight_decay * w
        state["v"] = momentum * state.get("v", 0.0) + (1 - dampening) * g
        return w - lr * state["v"]

    return rule


def adam_rule(lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, corrected=True, lamb=None):
    def rule(w, g, state, step):
        state["m"] = betas[0] * state.get("m", 0.0) + (1 - betas[0]) * g
        state["v"] = betas[1] * state.get("v", 0.0) + (1 - betas[1]) * g * g
        mean = state["m"] / (1 - betas[0] ** step) if corrected else state["m"]
        square = state["v"] / (1 - betas[1] ** step) if corrected else state["v"]
        change = mean / (square.sqrt() + eps) + weight_decay * w
        if lamb is not None:
            change = change * min(float(w.norm()), lamb) / change.norm()
        return w - lr * change

    return rule


def rmsprop_tf_rule(lr, alpha=0.99, eps=1e-8, momentum=0.0, centered=False, weight_decay=0.0):
    def rule(w, g, state, step):
        g = g + weight_decay * w
        state["s"] = alpha * state.get("s", torch.ones_like(w)) + (1 - alpha) * g * g
        inside = state["s"]
        if centered:
            state["g"] = alpha * state.get("g", 0.0) + (1 - alpha) * g
            inside = inside - state["g"] ** 2
        state["b"] = momentum * state.get("b", 0.0) + lr * g / (inside + eps).sqrt()
        return w - state["b"]

    return rule


def both(name, **values):
    """The class of that name of both packages, with the same values."""
    return lambda p: getattr(optim, name)(p, **values), lambda p: getattr(torch.optim, name)(
        p, **values
    )


def native(name, **values):
    """torch's class, which has no counterpart in this package."""
    make = getattr(torch.optim, name)
    return lambda p: make(p, **values), lambda p: make(p, **values)


def written(name, rule, **values):
    """Our class against a rule that is written out above."""
    return (
        lambda p: getattr(optim, name)(p, **values),
        lambda p: Written(p, rule, values.get("max_grad_norm")),
    )


_SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}

#: Trained for every number of accumulation steps, replicas and device iterations.
MATRIX = {
    "sgd": both("SGD", lr=0.05),
    "sgd momentum": both("SGD", **_SGD),
    "sgd combined": (
        lambda p: optim.SGD(p, use_combined_accum=True, velocity_scaling=4.0, **_SGD),
        lambda p: torch.optim.SGD(p, **_SGD),
    ),
    "adam": both("Adam", lr=0.02, weight_decay=0.05),
    "adamw": both("AdamW", lr=0.02, weight_decay=0.05),
    "rmsprop": both("RMSprop", lr=0.01, momentum=0.5, centered=True),
    "rmsprop tf": written(
        "RMSprop",
        rmsprop_tf_rule(0.01, momentum=0.5),
        lr=0.01,
        momentum=0.5,
        use_tf_variant=True,
    ),
    "lamb": written("LAMB", adam_rule(0.01, weight_decay=0.01, lamb=65500.0), lr=0.01),
    "clipped": written("SGD", sgd_rule(0.1, 0.9), lr=0.1, momentum=0.9, max_grad_norm=0.3),
    "adagrad": native("Adagrad", lr=0.05, lr_decay=0.01, initial_accumulator_value=0.1),
    "adadelta": native("Adadelta", lr=1.0, weight_decay=0.01),
    "adamax": native("Adamax", lr=0.02, weight_decay=0.01),
    "nadam": native("NAdam", lr=0.02, weight_decay=0.01),
    "radam": native("RAdam", lr=0.02, weight_decay=0.01),
    "rprop": native("Rprop", lr=0.01),
    "asgd": native("ASGD", lr=0.05, weight_decay=0.01, t0=5, lambd=0.01),
    "adafactor": native("Adafactor", lr=0.05, weight_decay=0.01),
}

#: Further variants, each trained alone and accumulated.
VARIANTS = {
    "torch sgd": native("SGD", lr=0.05, momentum=0.9),
    "torch sgd dampening": native("SGD", lr=0.1, momentum=0.9, dampening=0.5),
    "torch adam": native("Adam", lr=0.02),
    "torch adam amsgrad": native("Adam", lr=0.02, amsgrad=True),
    "torch adam decoupled": native("Adam", lr=0.02, weight_decay=0.1, decoupled_weight_decay=True),
    "torch adamw": native("AdamW", lr=0.02),
    "torch adamw maximize": native("AdamW", lr=0.02, maximize=True),
    "torch rmsprop": native("RMSprop", lr=0.01),
    "sgd dampening": written("SGD", sgd_rule(0.1, 0.9, 0.5), lr=0.1, momentum=0.9, dampening=0.5),
    "sgd combined dampening": written(
        "SGD",
        sgd_rule(0.1, 0.9, 0.5, 0.1),
        lr=0.1,
        momentum=0.9,
        dampening=0.5,
        weight_decay=0.1,
        use_combined_accum=True,
    ),
    "sgd combined maximize": (
        lambda p: optim.SGD(p, lr=0.01, momentum=0.5, maximize=True, use_combined_accum=True),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.5, maximize=True),
    ),
    "sgd combined nesterov": (
        lambda p: optim.SGD(
            p, nesterov=True, use_combined_accum=True, velocity_scaling=8.0, **_SGD
        ),
        lambda p: torch.optim.SGD(p, nesterov=True, **_SGD),
    ),
    "sgd combined clipped": written(
        "SGD",
        sgd_rule(0.1, 0.9),
        lr=0.1,
        momentum=0.9,
        max_grad_norm=0.3,
        use_combined_accum=True,
    ),
    "sgd nesterov": both("SGD", nesterov=True, **_SGD),
    "sgd maximize": both("SGD", lr=0.01, maximize=True),
    "sgd loss scaling": (
        lambda p: optim.SGD(p, loss_scaling=1000.0, **_SGD),
        lambda p: torch.optim.SGD(p, **_SGD),
    ),
    "sgd combined loss scaling": (
        lambda p: optim.SGD(p, loss_scaling=1000.0, use_combined_accum=True, **_SGD),
        lambda p: torch.optim.SGD(p, **_SGD),
    ),
    "adam amsgrad": both("Adam", lr=0.02, amsgrad=True, betas=(0.8, 0.9)),
    "adam clipped and scaled": written(
        "Adam", adam_rule(0.02), lr=0.02, max_grad_norm=0.1, loss_scaling=128.0
    ),
    "adamw amsgrad": both("AdamW", lr=0.02, amsgrad=True, betas=(0.8, 0.9)),
    "adamw uncorrected": written(
        "AdamW", adam_rule(0.02, weight_decay=0.01, corrected=False), lr=0.02, bias_correction=False
    ),
    "adamw clipped": written(
        "AdamW", adam_rule(0.02, weight_decay=0.01), lr=0.02, max_grad_norm=0.1
    ),
    "rmsprop decay": both("RMSprop", lr=0.01, weight_decay=0.1, alpha=0.9),
    "rmsprop tf centered": written(
        "RMSprop",
        rmsprop_tf_rule(0.01, 0.9, 1e-3, centered=True, weight_decay=0.1),
        lr=0.01,
        alpha=0.9,
        eps=1e-3,
        centered=True,
        weight_decay=0.1,
        use_tf_variant=True,
    ),
    "lamb limited": written(
        "LAMB",
        adam_rule(0.05, weight_decay=0.0, corrected=False, lamb=0.5),
        lr=0.05,
        weight_decay=0.0,
        max_weight_norm=0.5,
        bias_correction=False,
    ),
    "adagrad plain": native("Adagrad", lr=0.05, weight_decay=0.1),
    "nadam decoupled": native("NAdam", lr=0.02, weight_decay=0.1, decoupled_weight_decay=True),
    "radam decoupled": native("RAdam", betas=(0.9, 0.9), weight_decay=0.1, lr=0.02),
    "asgd default": native("ASGD", lr=0.05),
    "adafactor loose": native("Adafactor", lr=0.05, eps=(1e-3, 1e-2), d=1.5, maximize=True),
}
