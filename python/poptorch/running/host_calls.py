# SPDX-License-Identifier: Apache-2.0
"""Ops that the core has no row for: at their place in the program torch runs them on tensors that
alias the program's memory. Everything is bound once, so a call costs little more than the op."""

import ctypes
import hashlib
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import is_grad_enabled

from poptorch.base.dtypes import DTYPES
from poptorch.base.errors import Error, createPoptorchError
from poptorch.base.logging import logger
from poptorch.base.torch_calls import set_grad_enabled
from poptorch.capture.library.pure_forms import ORIGINALS
from poptorch.ops import cpu

_inside = threading.local()


def is_inside(program: Any) -> bool:
    """Whether this thread runs a host call of ``program``; threads of the core do so too."""
    return id(program) in getattr(_inside, "programs", ())


def in_host_call() -> bool:
    """Whether this thread runs a host call of any program."""
    return bool(getattr(_inside, "programs", ()))


def bind_host_calls(program: Any) -> list[Callable[[], None]]:
    """Give the program a function for each of its host calls; returns what is to be called after a
    run that has failed."""
    warned = set()
    after_failure: list[Callable[[], None]] = []
    for call in program.host_calls():
        run, name = _bind(call, after_failure)
        program.set_host_call(call["index"], _located(run, name, call, id(program)))
        target = name_of_target(call["target"])
        # Printing is what the user asked for.
        if target not in warned and not target.startswith("poptorch::"):
            warned.add(target)
            where = f" ({call['where']})" if call.get("where") else ""
            logger.warning(
                "%s%s has no kernel of its own: it is run by torch on the host, step by step.",
                target,
                where,
            )
    return after_failure


def name_of_target(target: str) -> str:
    """The name of an op as the user knows it."""
    return ORIGINALS.get(target, target)


def _located(
    run: Callable[[], None], name: str, call: dict[str, Any], program: int
) -> Callable[[], None]:
    """``run`` without autograd and with exceptions that say which op of the model failed.

    ``program`` is the ID of the program, not the program itself, which would keep itself alive.
    """
    where = call.get("where") or ""

    def located() -> None:
        outer = getattr(_inside, "programs", ())
        _inside.programs = (*outer, program)
        grad = is_grad_enabled()
        set_grad_enabled(False)
        try:
            run()
        except Exception as exc:
            text = f"{name} failed on the host: {type(exc).__name__}: {exc}"
            _drop_frames(exc)
            raise Error(text, type="host_call", location=where) from exc
        finally:
            set_grad_enabled(grad)
            _inside.programs = outer

    return located


def _drop_frames(exc: BaseException | None) -> None:
    """Tracebacks as text: their frames hold tensors over memory that they may outlive."""
    while exc is not None:
        if exc.__traceback__ is not None:
            exc.add_note("".join(traceback.format_tb(exc.__traceback__)))
            exc.__traceback__ = None
        exc = exc.__cause__ or exc.__context__


def tensor_at(address: int, dtype: str, shape: Any, strides: Any) -> torch.Tensor:
    """A tensor over memory that belongs to someone else, who must outlive it."""
    kind = DTYPES[dtype]
    shape, strides = tuple(shape), tuple(strides)
    if 0 in shape:
        return torch.empty(shape, dtype=kind, device="cpu")
    size = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (size * kind.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=kind).as_strided(shape, strides)


def _bind(
    call: dict[str, Any], after_failure: list[Callable[[], None]]
) -> tuple[Callable[[], None], str]:
    """What to do, and what to call it in an error."""
    target = call["target"]
    inputs = [tensor_at(*ref) for ref in call["inputs"]]
    outputs = [tensor_at(*ref) for ref in call["outputs"]]
    values = [_value(arg, inputs) for arg in call["args"]]
    if target in (cpu.TARGET, cpu.GRADIENT):
        function = cpu.call_of(values[-1])
        if target == cpu.TARGET:
            after_failure.append(function.forget)
            return partial(function.run, values[0], outputs), f"CPU op {function.name!r}"
        gradient = partial(function.run_gradient, values[0], values[1], outputs)
        return gradient, f"The gradient of CPU op {function.name!r}"
    op = _find(call["target"])
    args, kwargs = _split(op, values)
    run = _runner(op, args, kwargs, outputs)
    random = values[len(op._schema.arguments) :]
    return _seeded(run, *random) if random else run, name_of_target(target)


def _seeded(run: Callable[[], None], key: torch.Tensor, stream: int) -> Callable[[], None]:
    """``run`` with torch's generator seeded from the random state of the program (seed and call
    counter) and the number of the op; the host's own state is left as it was."""

    def seeded() -> None:
        generator = torch.default_generator
        before = generator.get_state()
        seed, call = key.tolist()
        words = f"{seed} {call} {stream}".encode()
        generator.manual_seed(int.from_bytes(hashlib.blake2b(words, digest_size=8).digest()))
        try:
            run()
        finally:
            generator.set_state(before)

    return seeded


def _runner(
    op: Any, args: list[Any], kwargs: dict[str, Any], outputs: list[torch.Tensor]
) -> Callable[[], None]:
    def functional() -> None:
        result = op(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else (result,)
        results = [r for r in results if r is not None]  # those a mask did not ask for
        for target, value in zip(outputs, results, strict=True):
            target.copy_(value)

    out_op, out_names = _out_variant(op, len(outputs))
    if out_op is None:
        return functional
    targets = dict(zip(out_names, outputs, strict=True))
    accepted = {argument.name for argument in out_op._schema.arguments}
    out_kwargs = {key: value for key, value in kwargs.items() if key in accepted}

    def in_place() -> None:
        out_op(*args, **out_kwargs, **targets)

    return _first_usable(in_place, functional, outputs)


def _first_usable(
    in_place: Callable[[], None], functional: Callable[[], None], outputs: list[torch.Tensor]
) -> Callable[[], None]:
    """Decides in the first run, when there is real data, whether ``in_place`` can be used.

    Some ops refuse their ``out`` argument, replace its memory, or give it the order of
    dimensions that their input has.
    """
    before = [(t.data_ptr(), t.shape, t.stride()) for t in outputs]
    chosen: Callable[[], None] | None = None

    def run() -> None:
        nonlocal chosen
        if chosen is not None:
            chosen()
            return
        try:
            in_place()
            if before == [(t.data_ptr(), t.shape, t.stride()) for t in outputs]:
                chosen = in_place
                return
        except RuntimeError:
            pass
        for tensor, (address, shape, strides) in zip(outputs, before, strict=True):
            if tensor.data_ptr() != address:
                raise createPoptorchError("torch replaced the memory of a host call's result")
            tensor.as_strided_(shape, strides)
        functional()
        chosen = functional

    return run


def _find(target: str) -> Any:
    namespace, _, rest = target.partition("::")
    name, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except AttributeError:
        raise createPoptorchError(f"torch has no op {target}") from None


def _value(arg: Any, inputs: list[torch.Tensor]) -> Any:
    """An argument with references to inputs and names of dtypes replaced by what they stand for."""
    if isinstance(arg, tuple) and len(arg) == 2 and arg[0] == "in":
        return inputs[arg[1]]
    if isinstance(arg, tuple) and len(arg) == 2 and arg[0] == "dtype":
        return DTYPES[arg[1]]
    if isinstance(arg, (list, tuple)):
        return [_value(item, inputs) for item in arg]
    return arg


def _split(op: Any, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = [], {}
    for argument, value in zip(op._schema.arguments, values, strict=False):
        if str(argument.type) == "Device" or str(argument.real_type) == "Optional[Device]":
            value = None
        if isinstance(value, str) and "str" not in str(argument.type):
            value = complex(value)  # the text form has no complex literals
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


# What the tensor to write to says already.
_IN_THE_OUTPUT = {"dtype", "layout", "device", "pin_memory", "memory_format"}


def _out_variant(op: Any, outputs: int) -> tuple[Any, list[str]]:
    """The overload that writes its results to given tensors, and the names of those arguments."""
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments if not a.kwarg_only]
    needed = {a.name for a in op._schema.arguments if a.kwarg_only} - _IN_THE_OUTPUT
    packet = op.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        schema = candidate._schema
        outs = [a.name for a in schema.arguments if a.is_out]
        plain = [(a.name, str(a.type)) for a in schema.arguments if not a.kwarg_only]
        named = {a.name for a in schema.arguments if a.kwarg_only}
        if len(outs) == outputs and outs and plain == wanted and needed <= named:
            return candidate, outs
    return None, []
