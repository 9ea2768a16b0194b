# SPDX-License-Identifier: Apache-2.0
"""Arguments of a call: bound to the signature of forward, made readable for a program, and cut into
micro-batches for capture."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.base.logging import logger
from poptorch.base.memory import check_input
from poptorch.base.suggest import did_you_mean
from poptorch.capture import structure
from poptorch.weights.state import Watched

_SUPPORTED_DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,  # PopTorch refuses it
        torch.float32,
        torch.float64,
    }
)


#: Tensors of a call, with the names that messages call them by.
Leaves = list[tuple[str, torch.Tensor]]


@dataclass
class Bound:
    """A call in one form: positional values, then keyword-only ones and the kwargs bag."""

    args: list[Any]
    kwargs: dict[str, Any]

    def tensors(self) -> list[torch.Tensor]:
        """All tensors, in the order of capture."""
        return [leaf for _, leaf in structure.argument_leaves(self.args, self.kwargs)]

    def replaced(self, tensors: Iterator[torch.Tensor]) -> "Bound":
        """The same call with other tensors."""
        args = [structure.rebuild(value, tensors) for value in self.args]
        return Bound(args, structure.rebuild(self.kwargs, tensors))


class Signature:
    """The parameters of a module's forward."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = list(inspect.signature(function).parameters.values())
        kinds = inspect.Parameter
        self._positional = [
            p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        ]
        self._keyword_only = [p for p in parameters if p.kind is kinds.KEYWORD_ONLY]
        self._variadic = next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), None)
        self._bag = next((p.name for p in parameters if p.kind is kinds.VAR_KEYWORD), None)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """The call with defaults filled in."""
        names = [p.name for p in self._positional]
        assert len(args) <= len(names) or self._variadic is not None, (
            f"Too many arguments provided: expected at most {len(names)} ({', '.join(names)}) "
            f"but got {len(args)}"
        )
        rest = dict(kwargs)
        for name in names[: len(args)]:
            assert name not in rest, f"{name} was passed more than once"
        values = list(args)
        for parameter in self._positional[len(args) :]:
            values.append(_take(parameter, rest))
        keywords = {p.name: _take(p, rest) for p in self._keyword_only}
        for name in rest:
            assert self._bag is not None, (
                f"{name} is not a valid parameter.{did_you_mean(name, [*names, *keywords])}"
            )
        return Bound(values, {**keywords, **rest})

    def as_called(self, bound: Bound, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """``bound``, a form of the call with these arguments, with keywords as the caller has them.

        Decorators of forward may look at what was passed by keyword. Defaults are left out, and the
        order of tensors stays.
        """

        def was_passed(name: str, value: Any) -> bool:
            return name in kwargs or bool(structure.argument_leaves([value], {}))

        # Those of *args have no parameter.
        rest = zip(self._positional[len(args) :], bound.args[len(args) :], strict=False)
        keywords = {p.name: value for p, value in rest} | bound.kwargs
        passed = {name: value for name, value in keywords.items() if was_passed(name, value)}
        return Bound(bound.args[: len(args)], passed)

    def leaves(self, bound: Bound) -> Leaves:
        """Names and tensors of a call, in the order of capture."""
        out: Leaves = []
        for position, value in enumerate(bound.args):
            structure.tensors_of(value, self.name_of(position), out)
        for name, value in bound.kwargs.items():
            structure.tensors_of(value, name, out)
        return out

    def name_of(self, position: int) -> str:
        """How messages call the positional value number ``position``."""
        if position < len(self._positional):
            return self._positional[position].name
        return f"*{self._variadic}[{position - len(self._positional)}]"


def _take(parameter: inspect.Parameter, values: dict[str, Any]) -> Any:
    if parameter.name in values and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
        return values.pop(parameter.name)
    if parameter.default is inspect.Parameter.empty:
        raise createPoptorchError(f"Mandatory parameter {parameter.name} missing")
    return parameter.default


# Preparing tensors --------------------------------------------------------------------------------


class Preparer:
    """Turns what the caller passes into tensors a program can read, warning once per reason."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def _warn(self, reason: str, text: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            logger.warning(text)

    def __call__(self, leaves: Leaves, *, compiling: bool = False) -> list[torch.Tensor]:
        """The tensors of a call as dense CPU tensors that carry no gradient.

        A program reads contiguous copies; capture sees the strides that the caller's tensors have.
        """
        return [self._prepare(name, tensor, compiling) for name, tensor in leaves]

    def _prepare(self, name: str, tensor: torch.Tensor, compiling: bool) -> torch.Tensor:
        if tensor.dtype not in _SUPPORTED_DTYPES:
            raise createPoptorchError(
                f"Unsupported tensor input type from pytorch: {tensor.dtype}. "
                "Convert the input to a supported type such as torch.float32 or torch.int32."
            )
        if tensor.layout is not torch.strided:
            raise createPoptorchError(
                f"Unsupported tensor input layout: {tensor.layout}. Pass a dense tensor."
            )
        if tensor.is_nested:
            raise createPoptorchError(
                f"Unsupported tensor input: {name} is a nested tensor. Pass a dense tensor."
            )
        if tensor._is_zerotensor():
            tensor = tensor.clone()
        check_input(tensor, name)
        if 0 in tensor.shape:
            raise createPoptorchError(
                f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)})"
            )
        if tensor.requires_grad:
            self._warn(
                "requires_grad",
                "Input tensor has requires_grad=True set: it is detached, because gradients are "
                "computed on the IPU for parameters only.",
            )
            tensor = tensor.detach()
        if isinstance(tensor, Watched):
            tensor = tensor.detach()  # which fetches its values
        tensor = tensor.resolve_neg()
        if not tensor.is_contiguous():
            self._warn(
                "contiguous",
                "At least one input tensor is not contiguous: it is copied on every call. Call "
                "contiguous() in the data pipeline to avoid this.",
            )
            tensor = tensor if compiling else tensor.contiguous()
        return tensor


def warn_of_dicts(bound: Bound) -> None:
    """What PopTorch says of dicts among the arguments."""
    if any(isinstance(value, dict) for value in bound.args):
        logger.warning(
            "Dicts as inputs only have partial support: all calls must have the same keys"
        )


def micro_batch(bound: Bound, batching: Any) -> Bound:
    """The first micro-batch of a call, for capture; checks that dimension 0 can be divided."""
    pieces = batching.input_multiplier
    return bound.replaced(iter([_first_slice(t, pieces, batching) for t in bound.tensors()]))


def _first_slice(tensor: torch.Tensor, pieces: int, batching: Any) -> torch.Tensor:
    if pieces == 1:
        return tensor
    rows = tensor.shape[0] if tensor.dim() else 1
    assert rows % pieces == 0 and tensor.dim(), (
        f"Invalid batch dimension: In the input {list(tensor.shape)}, the batch dimension ({rows}) "
        f"must be a multiple of {batching.describe()}"
    )
    return tensor[: rows // pieces]
