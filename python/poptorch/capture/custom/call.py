# SPDX-License-Identifier: Apache-2.0
"""A call of an op of a user's library under the trace.

An op that computes is a node of the graph; a composition is evaluated with ATen ops, so that it is
differentiated and fused like anything else. Gradient ops of the library take the place of both.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from poptorch import _core
from poptorch.base.dtypes import DTYPE_NAMES, DTYPES
from poptorch.base.errors import createPoptorchError
from poptorch.base.logging import logger
from poptorch.capture import state
from poptorch.capture.custom import composition, registry
from poptorch.capture.library import _lib, ops

_lib.define(
    "custom(Tensor[] inputs, str domain, str name, int version, str attributes) -> Tensor[]"
)

_IN, _OUT = 0, 1  # sources of a gradient op's inputs; else the gradient of an output


# What becomes of an input that has a new value; else only the gradient ops see it.
_EVERY_MICRO_BATCH, _EVERY_STEP = 0, 1


class Site(NamedTuple):
    """An op and the attributes of a call, which are [name, value]."""

    op: _core.CustomOp
    attributes: list[list[Any]]

    def label(self) -> str:
        return f"{self.op.domain}.{self.op.name}:{self.op.version}"

    def question(self, inputs: Sequence[Tensor]) -> tuple[Any, ...]:
        """The arguments of the core's questions about a call."""
        return (*self.op_id(), [_type_of(t) for t in inputs], self.attributes)

    def ask(self, question: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
        """What the core says of a call; an error of the library is one of the program."""
        try:
            return question(*self.question(inputs))
        except _core.Error as e:
            raise createPoptorchError(str(e)) from None

    def op_id(self) -> tuple[str, str, int]:
        return self.op.domain, self.op.name, self.op.version


@torch.library.register_fake("tessera::custom", lib=_lib)
def _custom_fake(
    inputs: list[Tensor], domain: str, name: str, version: int, attributes: str
) -> list[Tensor]:
    types = _core.custom_setup(
        domain, name, version, [_type_of(t) for t in inputs], json.loads(attributes)
    )
    return [torch.empty(shape, dtype=DTYPES[dtype]) for dtype, shape in types]


def _custom_cpu(
    inputs: list[Tensor], domain: str, name: str, version: int, attributes: str
) -> list[Tensor]:
    """The op as a program of its own: for values that are needed while a model is captured."""
    from poptorch.capture.text.format import argument_text

    given = [t.contiguous() for t in inputs]
    types = [_type_of(t) for t in given]
    values = json.loads(attributes)
    stated = _core.custom_setup(domain, name, version, types, values)
    operands = ", ".join(f"%{i}" for i in range(len(given)))
    results = ", ".join(f"%{len(given) + i}" for i in range(len(stated)))
    call = ", ".join(argument_text(a) for a in (domain, name, version))
    program = _core.compile(
        "\n".join(
            [
                'tessera 1 graph "custom" {',
                *[f'input %{i} "{i}" : {_text_of(t)}' for i, t in enumerate(types)],
                f"{results} = custom({call}, [{operands}], {argument_text(values)}) : "
                + ", ".join(map(_text_of, stated)),
                f"output {results}",
                "}",
            ]
        ),
        {},
        {},
    )
    out = [torch.empty(shape, dtype=DTYPES[dtype]) for dtype, shape in stated]
    program.run([t.data_ptr() for t in given], [t.data_ptr() for t in out])
    return out


_lib.impl("custom", _custom_cpu, "CPU")


def run(
    op: _core.CustomOp,
    inputs: Sequence[Tensor],
    attributes: Mapping[str, Any],
    examples: Sequence[Tensor],
) -> list[Tensor]:
    """The results of a call; the library decides on their shapes."""
    site = Site(op, [[k, list(v) if isinstance(v, tuple) else v] for k, v in attributes.items()])
    found = _call(site, inputs)
    if len(found) != len(examples):
        raise createPoptorchError(
            f"{site.label()} has {len(found)} outputs, but example_outputs has {len(examples)}. "
            f"Give one example for each output ({op.library})."
        )
    # An op knows no 64-bit integers; the program may.
    return [
        t.to(e.dtype) if (t.dtype, e.dtype) == (torch.int32, torch.int64) else t
        for t, e in zip(found, examples, strict=True)
    ]


def _call(site: Site, inputs: Sequence[Tensor]) -> list[Tensor]:
    given = [t.to(torch.int32) if t.dtype is torch.int64 else t for t in inputs]
    if site.op.composes and site.ask(_core.custom_wants_seed, given):
        given.append(_seed())
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    if not learns or (site.op.composes and not site.op.has_gradients):
        return _results(site, given)[0]
    if not site.op.has_gradients:
        logger.warning(
            "%s has no gradient: training treats what it computes as a constant (%s)",
            site.label(),
            site.op.library,
        )
        return _results(site, [t.detach() for t in given])[0]
    return list(_WithGradients.apply(site, *given))


def _results(site: Site, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """What a call gives, and its inputs as its gradient ops see them."""
    if not site.op.composes:
        site.ask(_core.custom_setup, inputs)
        found = list(ops.custom(list(inputs), *site.op_id(), json.dumps(site.attributes)))
        return found, list(inputs)
    nodes, outputs, updates = site.ask(_core.custom_compose, inputs)
    context = composition.Context(site.label(), _nested)
    found = composition.evaluate(context, nodes, outputs, inputs)
    seen = list(inputs)
    count = len(found) - len(updates)
    for (index, kind), value in zip(updates, found[count:], strict=True):
        if kind in (_EVERY_MICRO_BATCH, _EVERY_STEP):
            _update(site, inputs[index], value.detach(), kind)
        else:
            seen[index] = value
    return found[:count], seen


def _update(site: Site, old: Tensor, new: Tensor, kind: int) -> None:
    """Gives a parameter or a buffer a new value."""
    session = state.current()
    assert session is not None
    slot = session.swap.slot_of(old)
    if slot is None or session.lifters:
        raise createPoptorchError(
            f"{site.label()} gives an input a new value, which must be a parameter or a buffer as "
            f"a whole, outside of loops ({site.op.library})."
        )
    if kind == _EVERY_STEP:
        session.once.append((slot, new))
    else:
        with torch.no_grad():
            old.detach().copy_(new)


def _nested(
    domain: str,
    name: str,
    version: int,
    inputs: list[Tensor],
    attributes: list[list[Any]],
    examples: Sequence[Tensor],
) -> list[Tensor]:
    """A custom op in a composition or as a gradient op; ops that PopART ships ask for examples."""
    if (domain, name) == ("tessera", "Seed"):
        return [_seed()]
    op = registry.find(name, domain, version)
    if op is None:
        from poptorch.capture.custom import lookup

        found = lookup.find(name, domain, version)
        return found(inputs, dict(attributes), examples)
    return _call(Site(op, attributes), inputs)


def _seed() -> Tensor:
    """64 bits from the random state of the program."""
    high, low = torch.randint(0, 2**24, (2,)), torch.randint(0, 2**8, (2,))
    return (high * 2**8 + low - 2**31).to(torch.int32)


class _WithGradients(torch.autograd.Function):
    """An op whose library names the ops that compute its gradients."""

    @staticmethod
    def forward(ctx: Any, site: Site, *inputs: Tensor) -> tuple[Tensor, ...]:
        found, seen = _results(site, inputs)
        results = tuple(found)
        # A result that is an input itself would be taken for a change of it.
        results = tuple(r.clone() if any(r is t for t in inputs) else r for r in results)
        ctx.site = site
        ctx.count = len(inputs)
        ctx.save_for_backward(*seen, *results)
        ctx.mark_non_differentiable(*[r for r in results if not r.is_floating_point()])
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors[: ctx.count]
        results = ctx.saved_tensors[ctx.count :]
        sums: list[Tensor | None] = [None] * ctx.count
        site: Site = ctx.site
        for domain, name, version, attributes, sources, targets in site.ask(
            _core.custom_gradients, inputs
        ):
            given = [
                (inputs if kind == _IN else results if kind == _OUT else grads)[index]
                for kind, index in sources
            ]
            examples = [inputs[target] if target >= 0 else grads[0] for target in targets]
            found = _nested(domain, name, version, given, attributes, examples)
            if len(found) < len(targets):
                raise createPoptorchError(
                    f"The gradient op {domain}.{name} of {site.label()} has {len(found)} outputs, "
                    f"but its map names {len(targets)} ({site.op.library})."
                )
            for grad, target in zip(found, targets, strict=False):
                if target < 0 or not inputs[target].is_floating_point():
                    continue
                before = sums[target]
                one = _gradient(site, f"{domain}.{name}", grad, inputs[target], target)
                sums[target] = one if before is None else before + one
        return None, *sums


def _gradient(site: Site, name: str, grad: Tensor, like: Tensor, index: int) -> Tensor:
    """A gradient in the type of its input, whose shape it must have."""
    if grad.shape != like.shape:
        raise createPoptorchError(
            f"The gradient op {name} of {site.label()} gives {tuple(grad.shape)} for input "
            f"{index}, which has shape {tuple(like.shape)} ({site.op.library})."
        )
    return grad.to(like.dtype)


def _type_of(t: Tensor) -> tuple[str, list[int]]:
    return DTYPE_NAMES[t.dtype], list(t.shape)


def _text_of(t: tuple[str, list[int]]) -> str:
    return f"{t[0]}[{','.join(map(str, t[1]))}]"
