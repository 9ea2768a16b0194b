# SPDX-License-Identifier: Apache-2.0
"""Captures a model, evaluates the text, and compares outputs, gradients and buffers with eager
torch."""

import copy

import ir_interpreter as interpreter
import torch
from poptorch.capture import capture, identity_loss, structure

ROWS = interpreter.rows()


class WithLoss(torch.nn.Module):
    """A loss that gives every element of every floating-point result its own gradient."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args, **kwargs):
        out = self.model(*args, **kwargs)
        total = 0.0
        for _, leaf in structure.tensors_of(out):
            if leaf.dtype.is_floating_point and leaf.requires_grad:
                weight = torch.arange(leaf.numel(), dtype=torch.float32).mul(0.7).cos()
                total = total + (leaf.float() * weight.reshape(leaf.shape)).sum()
        return out, identity_loss(total, reduction="none")


def captured(model, args, kwargs=None, training=True, **other):
    return capture(
        model, args, kwargs or {}, training=training, rows=ROWS, name="training", **other
    )


def state_of(c):
    return {s.name: s.tensor.detach().clone() for s in c.params + c.buffers}


def evaluate(c, args, kwargs=None):
    """(result structure, interpreter.Result) of a Capture on inputs."""
    leaves = [t.detach().clone() for _, t in structure.argument_leaves(args, kwargs or {})]
    result = interpreter.run(interpreter.parse(c.text), state_of(c), leaves, c.constants)
    return c.rebuild(result.outputs), result


def close(actual, expected, what, rtol=2e-4, atol=2e-5):
    torch.testing.assert_close(
        actual, expected, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )


def check(model, args, kwargs=None, training=True, host=(), rtol=2e-4, atol=2e-5):
    """Compares a captured model with eager; returns (Capture, parsed graph).

    `host` names the only ATen ops that may be host calls.
    """
    kwargs = kwargs or {}
    eager = copy.deepcopy(model)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    c = captured(model, args, kwargs, training)
    for name, value in model.state_dict().items():
        close(value, before[name], f"state {name} must not change by capturing", 0, 0)

    called = {target.partition("::")[2].partition(".")[0] for target, _ in c.host_ops}
    assert called <= set(host), f"host calls {sorted(called - set(host))}"

    result, raw = evaluate(c, args, kwargs)
    own_args = copy.deepcopy(args)
    own_kwargs = copy.deepcopy(kwargs)
    with torch.set_grad_enabled(training):
        expected = eager(*own_args, **own_kwargs)
    got, want = structure.tensors_of(result), structure.tensors_of(expected)
    assert [p for p, _ in got] == [p for p, _ in want], "results differ in structure"
    assert type(result) is type(expected)
    for (path, a), (_, b) in zip(got, want, strict=False):
        close(a, b.detach(), f"output {path}", rtol, atol)

    if training:
        loss = dict(want)[_loss_path(c, want)]
        loss.sum().backward()
        close(raw.loss, loss.detach(), "loss", rtol, atol)
        _compare_gradients(c, eager, raw, rtol, atol)
    _compare_updates(c, eager, raw, rtol, atol)
    _compare_writebacks(c, (args, kwargs), (own_args, own_kwargs), raw, rtol, atol)
    return c, interpreter.parse(c.text)


def _loss_path(c, leaves):
    values = [isinstance(leaf, int) and leaf == c.loss_index for leaf in c._leaves]
    return leaves[values.index(True)][0]


def _compare_gradients(c, eager, raw, rtol, atol):
    eager_params = dict(eager.named_parameters(remove_duplicate=False))
    seen = set()
    for p in c.params:
        seen.update(p.all_names)
        gradient = eager_params[p.name].grad
        if gradient is None:
            assert p.name not in raw.grads or raw.grads[p.name].abs().max() == 0, p.name
        else:
            assert p.name in raw.grads, f"{p.name} has no gradient"
            close(raw.grads[p.name], gradient, f"gradient of {p.name}", rtol, atol)
    for name, p in eager_params.items():
        if name not in seen:
            assert p.grad is None, f"{name} is missing from the text but has a gradient"


def _compare_updates(c, eager, raw, rtol, atol):
    after = eager.state_dict(keep_vars=True)
    for name, value in after.items():
        slot = next((s for s in c.params + c.buffers if name in s.all_names), None)
        new = raw.updates.get(slot.name) if slot else None
        if new is not None:
            assert slot.updated
            close(new, value.detach(), f"buffer {name}", rtol, atol)
        elif slot is not None:
            close(slot.tensor.detach(), value.detach(), f"{name} has no update", 0, 0)


def _compare_writebacks(c, before, after, raw, rtol, atol):
    changed = dict(c.input_writebacks)
    old, new = structure.argument_leaves(*before), structure.argument_leaves(*after)
    for i, ((path, a), (_, b)) in enumerate(zip(old, new, strict=False)):
        if i in changed:
            close(raw.outputs[changed[i]], b, f"input {path} after the call", rtol, atol)
        else:
            close(a, b, f"input {path} has no write-back", 0, 0)
