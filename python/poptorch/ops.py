# SPDX-License-Identifier: Apache-2.0
"""PopTorch's own ops. Those that only place or tune work on an IPU are identities; the others are
written with PyTorch's ops."""

from collections.abc import Callable
from typing import Any

import torch

from poptorch._blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    NameScope,
    pop_name_scope,
    push_name_scope,
    removeBlocks,
)
from poptorch._checks import check_tensor
from poptorch._cpu_ops import CPU
from poptorch._errors import createPoptorchError
from poptorch._geometry import fps, nearest
from poptorch._pending import raise_not_yet
from poptorch._print_tensor import ipu_print_tensor
from poptorch._suggest import no_member
from poptorch.capture import identity_loss, running_on_ipu, state, structure
from poptorch.enums import MatMulSerializationMode, MultiConvPlanType, OverlapMode

__all__ = [
    "CPU",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "LegacyBeginBlockFn",
    "MultiConv",
    "NameScope",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "identity_loss",
    "ipu_print_tensor",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "removeBlocks",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
]


# Hints: the values stay as they are ---------------------------------------------------------------


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, as an op of its own."""
    check_tensor("nop", tensor)
    return tensor.clone() if running_on_ipu() else tensor


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Keep these tensors for the backward pass; what lies between may be computed again.

    Args:
        tensors: tensors, or one list or tuple of them. The same is returned.
    """

    given = tensors[0] if len(tensors) == 1 else tensors
    values = list(given) if isinstance(given, (list, tuple)) else [given]
    if not all(isinstance(value, torch.Tensor) for value in values):
        raise ValueError("All inputs must be tensors")
    if not running_on_ipu():
        return given
    from poptorch.capture.library import Checkpoint

    marked = [v if v.dtype.is_complex else Checkpoint.apply(v) for v in values]
    if not isinstance(given, (list, tuple)):
        return marked[0]
    return type(given)(*marked) if hasattr(given, "_fields") else type(given)(marked)


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """How much tile memory the op that made ``tensor`` may use; no effect on virtual IPUs."""
    if not isinstance(tensor, torch.Tensor):
        raise createPoptorchError("You may only set available memory for torch.tensor values")
    return tensor


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """How far the transfer of inputs may overlap with computation; no effect on virtual IPUs."""
    return _overlapped(input_tensors, mode, "input")


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """How far the transfer of outputs may overlap with computation; no effect on virtual IPUs."""
    return _overlapped(output_tensors, mode, "output")


def _overlapped(tensors: Any, mode: OverlapMode, what: str) -> Any:
    assert isinstance(mode, OverlapMode), no_member(OverlapMode, mode)
    leaves = structure.tensors_of(tensors)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for _, leaf in leaves):
        raise createPoptorchError(f"You may only set overlap for torch.tensor {what}s")
    session = state.current()
    if session is None:
        return tensors
    mark = getattr(session.overlap, f"mark_{what}")
    marked = [mark(leaf, mode != OverlapMode.NoOverlap) for _, leaf in leaves]
    return structure.rebuild(tensors, iter(marked))


class MultiConv:
    """``with poptorch.MultiConv():`` - independent convolutions inside may run as one op.

    The values are those of separate convolutions; the settings have no effect on virtual IPUs.
    """

    _open = False

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def _set(self, key: str, value: Any) -> "MultiConv":
        self.settings[key] = value
        return self

    def availableMemoryProportions(self, value: float | list[float] | None) -> "MultiConv":
        """Share of tile memory, one for all convolutions or one each."""
        values = [] if value is None else value if isinstance(value, (list, tuple)) else [value]
        assert all(isinstance(v, float) for v in values), "Invalid available memory proportion!"
        return self._set("availableMemoryProportions", value)

    def partialsTypes(self, value: torch.dtype | list[torch.dtype]) -> "MultiConv":
        """Accumulation type, one for all convolutions or one each."""
        values = value if isinstance(value, (list, tuple)) else [value]
        if not all(v in (torch.float, torch.half) for v in values):
            raise ValueError("Invalid partials types. Expecting torch.float or torch.half")
        return self._set("partialsTypes", value)

    def enableConvDithering(self, value: bool | list[bool] | None) -> "MultiConv":
        """Layout hint, one for all convolutions or one each."""
        values = [] if value is None else value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(v, bool) for v in values):
            raise ValueError("value must be bool or list of bools")
        return self._set("enableConvDithering", value)

    def planType(self, value: MultiConvPlanType | None) -> "MultiConv":
        """How the convolutions are planned."""
        assert value is None or isinstance(value, MultiConvPlanType), "Invalid plan type!"
        return self._set("planType", value)

    def perConvReservedTiles(self, value: int) -> "MultiConv":
        """Tiles reserved for each convolution."""
        assert isinstance(value, int), f"Expected an int, got {value!r}"
        return self._set("perConvReservedTiles", value)

    def cycleBackOff(self, value: float) -> "MultiConv":
        """How much slower a plan may be for using fewer tiles."""
        assert isinstance(value, (int, float)), f"Expected a number, got {value!r}"
        return self._set("cycleBackOff", value)

    def __enter__(self) -> "MultiConv":
        if MultiConv._open:
            raise createPoptorchError("Nested poptorch.MultiConv is not supported.")
        MultiConv._open = True
        self._before = _convolutions()
        return self

    def __exit__(self, *exc: object) -> None:
        MultiConv._open = False
        if exc[0] is None and running_on_ipu() and _convolutions() == self._before:
            raise createPoptorchError(
                "Unexpected end_multi_conv, is the IR malformed? There is no convolution in this "
                "poptorch.MultiConv."
            )


def _convolutions() -> int:
    """Convolutions captured so far."""
    session = state.current()
    return 0 if session is None else session.convolutions


# Products and slices ------------------------------------------------------------------------------


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """``lhs @ rhs``; PopTorch cuts it into pieces to save memory, here it is planned as a whole.

    Args:
        lhs: left operand.
        rhs: right operand.
        mode: the dimension to cut.
        factor: number of pieces; must divide that dimension.
        keep_precision: accumulate float16 in float32, which is always done here.
    """
    assert isinstance(lhs, torch.Tensor) and isinstance(rhs, torch.Tensor), "Expected tensors"
    assert isinstance(mode, MatMulSerializationMode), no_member(MatMulSerializationMode, mode)
    assert isinstance(factor, int), f"Expected an int as factor, got {factor!r}"
    assert isinstance(keep_precision, bool), f"Expected a bool, got {keep_precision!r}"
    size = {
        MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
        MatMulSerializationMode.ReducingDim: lhs.shape[-1],
        MatMulSerializationMode.OutputChannels: rhs.shape[-1],
    }.get(mode)
    if size is not None and factor and size % factor:
        raise createPoptorchError(
            f"serializedMatMul: the factor {factor} does not divide the dimension of size {size}"
        )
    return torch.matmul(lhs, rhs)


def dynamic_slice(
    tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int
) -> torch.Tensor:
    """The slice of ``size`` elements that begins at the value of ``start``.

    Args:
        tensor: what to slice.
        dim: the dimension, not negative.
        start: an integer tensor of one element. Behind the end the slice goes on at the beginning.
        size: number of elements covered.
        step: every step-th of them is taken.
    """
    check_tensor("dynamic_slice", tensor)
    _check_slice(dim, start, size, "dynamic_slice")
    if not isinstance(step, int):
        raise createPoptorchError("Step must be an integer.")
    if step < 1:
        raise createPoptorchError("Slicing step must be at least 1")
    length = tensor.shape[dim]
    if running_on_ipu() and length % size:
        raise createPoptorchError(
            f"The size {size} of a dynamic slice must be a factor of the slicing dimension "
            f"({length})"
        )
    return tensor.index_select(dim, _positions(start, size, step, length))


def dynamic_update(
    input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int
) -> torch.Tensor:
    """A copy of ``input`` with ``src`` written at the value of ``start`` along ``dim``."""
    check_tensor("dynamic_update", input)
    check_tensor("dynamic_update", src)
    _check_slice(dim, start, size, "dynamic_update")
    if input.dim() != src.dim():
        raise createPoptorchError("input and src must have same dimensionality.")
    if input.dtype != src.dtype:
        raise createPoptorchError("input and src must have same dtype.")
    return input.index_copy(dim, _positions(start, size, 1, input.shape[dim]), src)


def _check_slice(dim: Any, start: Any, size: Any, op: str) -> None:
    if not isinstance(dim, int):
        raise createPoptorchError("Dimension must be an integer.")
    if not isinstance(start, torch.Tensor):
        raise createPoptorchError(f"Slice start argument to {op} must be a torch.tensor")
    if start.dtype not in (torch.int16, torch.int32, torch.int64):
        raise createPoptorchError(f"Expected integer typed start tensor, got {start.dtype}")
    if not isinstance(size, int):
        raise createPoptorchError("Size must be an integer.")
    if size == 0:
        raise createPoptorchError("The start and end of a slice must be different.")
    if size < 0:
        raise createPoptorchError("Taking a slice with an end less than the start is not supported")


def _positions(start: torch.Tensor, size: int, step: int, length: int) -> torch.Tensor:
    return (start.reshape(()).long() + torch.arange(0, size, step)) % length


# Control flow -------------------------------------------------------------------------------------


def _inference_only(op: str) -> None:
    session = state.current()
    if session is not None and session.training:
        raise createPoptorchError(f"poptorch.{op}() is only supported in inference.")


def _as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def for_loop(
    count: int, body: Callable[..., Any], inputs: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Run ``body`` ``count`` times, each time on the results of the time before.

    Args:
        count: a number that is known when the model is captured; the loop is unrolled.
        body: takes as many tensors as it returns, of the same shapes and types.
        inputs: what the first run gets; copies, so that changes in place stay inside.
    """
    if not isinstance(inputs, list):
        raise ValueError("for_loop: Object is not list")
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"for_loop: Object of type {type(value)} is not torch.tensor")
    _inference_only("for_loop")
    values = [value.clone() for value in inputs]
    expected = [(value.shape, value.dtype) for value in values]
    for _ in range(count):
        values = _as_list(body(*values))
        if [(value.shape, value.dtype) for value in values] != expected:
            raise createPoptorchError(
                "for_loop: the body must return as many tensors as it takes, of the same shapes "
                "and types"
            )
    return values


def cond(
    condition: torch.Tensor,
    then_body: Callable[..., Any],
    then_inps: list[torch.Tensor],
    else_body: Callable[..., Any],
    else_inps: list[torch.Tensor],
) -> list[torch.Tensor]:
    """The results of ``then_body`` if the boolean tensor ``condition`` is true, else of
    ``else_body``. In a captured model both are computed and one is picked."""
    if not isinstance(then_inps, list) or not isinstance(else_inps, list):
        raise ValueError("poptorch.cond expects then_inps and else_inps tensors in lists")
    if not running_on_ipu():
        return _as_list(then_body(*then_inps) if bool(condition) else else_body(*else_inps))
    _inference_only("cond")
    if condition.dtype != torch.bool or condition.numel() != 1:
        raise createPoptorchError("poptorch.cond: the condition must be a boolean tensor")
    # Copies, so that changes in place inside a body stay there.
    chosen = _as_list(then_body(*[value.clone() for value in then_inps]))
    other = _as_list(else_body(*[value.clone() for value in else_inps]))
    if len(chosen) != len(other):
        raise createPoptorchError("poptorch.cond: both bodies must return as many outputs")
    flag = condition.reshape(())
    return [torch.where(flag, a.reshape(b.shape), b) for a, b in zip(chosen, other, strict=True)]


# Decoding -----------------------------------------------------------------------------------------


def ctc_beam_search_decoder(
    probs: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The likeliest label sequences; outside a captured model zeros of the right shapes.

    Args:
        probs: log-probabilities, [time, batch, classes].
        lengths: lengths of the sequences, [batch].
        blank: the class that stands for no label.
        beam_width: sequences that are followed at a time.
        top_paths: sequences that are returned.
    """
    check_tensor("ctc_beam_search_decoder", probs)
    check_tensor("ctc_beam_search_decoder", lengths)
    if probs.dim() != 3:
        raise createPoptorchError("ctc_beam_search_decoder: probs must be rank-3")
    if running_on_ipu():
        beams = (int(blank), int(beam_width), int(top_paths))
        return torch.ops.tessera.ctc_beam_search(probs.detach(), lengths, *beams)
    time, batch, _ = probs.shape
    shape = (batch, top_paths)
    lengths_out = torch.zeros(shape, dtype=lengths.dtype)
    return torch.zeros(shape), lengths_out, torch.zeros((*shape, time), dtype=lengths.dtype)


# Pending in captured models -----------------------------------------------------------------------


def custom_op(
    inputs: list[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: list[torch.Tensor],
    attributes: dict[str, Any] | None = None,
) -> list[torch.Tensor]:
    """An op of the user's, registered with the backend; outside a captured model zeros.

    Args:
        inputs: its tensors.
        name: its name.
        domain: its domain.
        domain_version: version of the domain.
        example_outputs: tensors with the shapes and types of the results.
        attributes: numbers, strings, or lists of them.
    """
    _check_attributes({} if attributes is None else attributes)
    if running_on_ipu():
        raise_not_yet("poptorch.custom_op")
    return [torch.zeros_like(output) for output in example_outputs]


def _check_attributes(attributes: dict[str, Any]) -> None:
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError("All attribute keys must be strings.")
        values = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(v, (float, int, str)) for v in values):
            raise ValueError(
                "Attribute values must be floats, ints, strings or lists of them, "
                f"not {value!r} ({key})"
            )
        if len({type(v) for v in values}) > 1:
            raise ValueError(f"The types of the values of {key} must all be the same")
        for text in (key, *(v for v in values if isinstance(v, str))):
            if not text.isascii():
                raise ValueError(f"{text!r} contains non-ASCII characters")


# Under torch.ops.poptorch -------------------------------------------------------------------------


def _internal_cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """The tensor as ``FLOAT`` or ``FLOAT16``."""
    return tensor.to({"FLOAT": torch.float32, "FLOAT16": torch.float16}[dtype])


# Some programs use these by the names that PopTorch registers with torch.
torch.ops.poptorch.push_name_scope = push_name_scope
torch.ops.poptorch.pop_name_scope = pop_name_scope
torch.ops.poptorch.internal_cast = _internal_cast
