# SPDX-License-Identifier: Apache-2.0
"""Arguments of a call: bound to the signature of forward, cut into micro-batches for capture, and
compared with those that the program was compiled for."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from poptorch._errors import createPoptorchError
from poptorch._logging import logger
from poptorch.capture import structure

_HINT = (
    "\nA compiled program keeps the shapes, types and values of its first call: create a new "
    "wrapper, or call destroy() on this one and it will be compiled again."
)

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
            assert self._bag is not None, f"{name} is not a valid parameter"
        return Bound(values, {**keywords, **rest})

    def as_called(self, bound: Bound, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """``bound``, a form of the call with these arguments, with keywords as the caller has them.

        Decorators of forward may look at what was passed by keyword. Defaults are left out, and the
        order of tensors stays.
        """

        def was_passed(name: str, value: Any) -> bool:
            return name in kwargs or bool(structure.argument_leaves([value], {}))

        behind = zip(self._positional[len(args) :], bound.args[len(args) :], strict=False)
        keywords = {p.name: value for p, value in behind} | bound.kwargs
        passed = {name: value for name, value in keywords.items() if was_passed(name, value)}
        return Bound(bound.args[: len(args)], passed)

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

    def __call__(self, bound: Bound, *, compiling: bool) -> Bound:
        """``bound`` with dense, contiguous CPU tensors that carry no gradient."""
        if compiling and any(isinstance(v, dict) for v in bound.args):
            logger.warning(
                "Dicts as inputs only have partial support: keys and their order must not change"
            )
        return bound.replaced(iter([self._prepare(t) for t in bound.tensors()]))

    def _prepare(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in _SUPPORTED_DTYPES:
            raise createPoptorchError(
                f"Unsupported tensor input type from pytorch: {tensor.dtype}. "
                "Convert the input to a supported type such as torch.float32 or torch.int32."
            )
        if tensor.layout is not torch.strided:
            raise createPoptorchError(
                f"Unsupported tensor input layout: {tensor.layout}. Pass a dense tensor."
            )
        if not tensor.is_cpu:
            raise createPoptorchError(
                f"Input tensors must be on the CPU but one is on {tensor.device}."
            )
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
        tensor = tensor.resolve_neg()
        if not tensor.is_contiguous():
            self._warn(
                "contiguous",
                "At least one input tensor is not contiguous: it is copied on every call. Call "
                "contiguous() in the data pipeline to avoid this.",
            )
            tensor = tensor.contiguous()
        return tensor


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


# Comparing with the compiled call -----------------------------------------------------------------


@dataclass(frozen=True)
class TensorTemplate:
    """What is kept of a tensor argument: no data."""

    kind: type
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class Opaque:
    """A structure of a custom type: its type and its tensors."""

    kind: type
    tensors: list[TensorTemplate]


def template_of(value: Any) -> Any:
    """``value`` with its tensors replaced by their templates."""
    if isinstance(value, torch.Tensor):
        return TensorTemplate(type(value), value.shape, value.dtype)
    parser = structure.parser_for(value)
    if parser is not None:
        return Opaque(type(value), [template_of(t) for t in parser.yieldTensors(value)])
    if structure.is_namedtuple(value):
        return type(value)(*[template_of(v) for v in value])
    if isinstance(value, (list, tuple)):
        return type(value)([template_of(v) for v in value])
    if isinstance(value, dict):
        return _DictTemplate(type(value), {k: template_of(v) for k, v in value.items()})
    return value


@dataclass(frozen=True)
class _DictTemplate:
    kind: type
    items: dict[Any, Any]


class Template:
    """The arguments that a program was compiled for."""

    def __init__(self, signature: Signature, bound: Bound) -> None:
        self._signature = signature
        self._args = [template_of(value) for value in bound.args]
        self._kwargs = template_of(bound.kwargs)

    def check(self, bound: Bound) -> None:
        """Raise unless a call with ``bound`` may run the same program."""
        if len(bound.args) != len(self._args):
            raise _mismatch(
                f"Number of positional arguments mismatch: expected {len(self._args)} arguments "
                f"but got {len(bound.args)}"
            )
        for position, (expected, value) in enumerate(zip(self._args, bound.args, strict=True)):
            _compare(self._signature.name_of(position), expected, value)
        _compare_dicts("named arguments", self._kwargs.items, bound.kwargs, str)


def _mismatch(text: str) -> Exception:
    return createPoptorchError(text + "." + _HINT)


def _compare(name: str, expected: Any, value: Any) -> None:
    if isinstance(expected, (TensorTemplate, Opaque, _DictTemplate)):
        kind = expected.kind
    else:
        kind = type(expected)
    if type(value) is not kind:
        raise _mismatch(f"Type mismatch for {name}: expected {kind} but got {type(value)}")
    if isinstance(expected, TensorTemplate):
        if value.dtype != expected.dtype:
            raise _mismatch(
                f"Data type mismatch for {name}: expected {expected.dtype} but got {value.dtype}"
            )
        if value.shape != expected.shape:
            raise _mismatch(
                f"Shape mismatch for {name}: expected {expected.shape} but got {value.shape}"
            )
    elif isinstance(expected, Opaque):
        tensors = list(structure.parser_for(value).yieldTensors(value))
        _compare_items(name, expected.tensors, tensors)
    elif isinstance(expected, (list, tuple)):
        _compare_items(name, expected, value)
    elif isinstance(expected, _DictTemplate):
        _compare_dicts(name, expected.items, value, lambda key: f"{name}[{key}]")
    elif not _equal(expected, value):
        raise _mismatch(f"Value mismatch for {name}: expected {expected} but got {value}")


def _compare_items(name: str, expected: Any, values: Any) -> None:
    if len(values) != len(expected):
        raise _mismatch(
            f"Length mismatch for {name}: expected {len(expected)} elements but got {len(values)}"
        )
    for index, (item, value) in enumerate(zip(expected, values, strict=True)):
        _compare(f"{name}[{index}]", item, value)


def _compare_dicts(
    name: str, expected: dict[Any, Any], values: dict[Any, Any], name_of: Callable[[Any], str]
) -> None:
    if values.keys() != expected.keys():
        extra = [str(key) for key in values if key not in expected]
        missing = [str(key) for key in expected if key not in values]
        text = f"Keys mismatch for {name}:"
        if extra:
            text += f" Unexpected arguments: {', '.join(extra)}"
        if missing:
            text += f" Missing arguments: {', '.join(missing)}"
        raise _mismatch(text)
    for key, item in expected.items():
        _compare(name_of(key), item, values[key])


def _equal(left: Any, right: Any) -> bool:
    if left is right:
        return True
    try:
        # NaN is the one constant that differs from itself.
        return bool(left == right) or (left != left and right != right)
    except Exception:  # a type without a usable ==: only the same object will do
        return False
