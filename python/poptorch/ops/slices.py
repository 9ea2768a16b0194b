# SPDX-License-Identifier: Apache-2.0
"""Products and slices that PopTorch cuts or moves while the program runs."""

from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.base.suggest import no_member
from poptorch.capture import running_on_ipu, state
from poptorch.enums import MatMulSerializationMode
from poptorch.ops.checks import check_tensor


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """``lhs @ rhs`` in pieces, so that less of it is in memory at a time.

    What follows the product row by row (activation, softmax, loss and their gradients) is done
    piece by piece with it; what is needed whole is put together from them. Gradients of ``rhs`` are
    summed over the pieces, those of ``lhs`` joined.

    Args:
        lhs: left operand.
        rhs: right operand.
        mode: the dimension to cut on an IPU; virtual IPUs cut rows of the result in every mode but
            ``Disabled``, because their products need no memory beside operands and result.
        factor: number of pieces; must divide that dimension. 0 or 1 is the product as a whole.
        keep_precision: accumulate float16 in float32, which is always done here.
    """
    assert isinstance(lhs, torch.Tensor) and isinstance(rhs, torch.Tensor), "Expected tensors"
    assert isinstance(mode, MatMulSerializationMode), no_member(MatMulSerializationMode, mode)
    assert isinstance(factor, int), f"Expected an int as factor, got {factor!r}"
    assert isinstance(keep_precision, bool), f"Expected a bool, got {keep_precision!r}"
    if not lhs.dim() or not rhs.dim():
        return torch.matmul(lhs, rhs)  # torch's error
    size = {
        MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
        MatMulSerializationMode.ReducingDim: lhs.shape[-1],
        MatMulSerializationMode.OutputChannels: rhs.shape[-1],
    }.get(mode)
    if factor < 0:
        raise createPoptorchError(
            f"serializedMatMul: the factor must not be negative, got {factor}"
        )
    if size is not None and factor and size % factor:
        raise createPoptorchError(
            f"serializedMatMul: the factor {factor} does not divide the dimension of size {size}"
        )
    session = state.current()
    if session is None or size is None or factor < 2:
        return torch.matmul(lhs, rhs)
    with session.serialized(factor):
        return torch.matmul(lhs, rhs)


def dynamic_slice(
    tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int
) -> torch.Tensor:
    """The slice of ``size`` elements that begins at the value of ``start``.

    Args:
        tensor: what to slice.
        dim: the dimension, not negative.
        start: an integer tensor of one element. Past the end the slice wraps around.
        size: number of elements covered; in a model it divides the length of the dimension.
        step: every step-th of them is taken.
    """
    check_tensor("dynamic_slice", tensor)
    _check_slice(tensor, dim, start, size, "dynamic_slice")
    if not _is_integer(step):
        raise createPoptorchError("Step must be an integer.")
    if step < 1:
        raise createPoptorchError(f"Slicing step must be at least 1, not {step}")
    length = tensor.shape[dim]
    if running_on_ipu() and length % size:
        raise createPoptorchError(
            f"The size {size} of a dynamic slice must be a factor of the slicing dimension "
            f"({length})"
        )
    return tensor.index_select(dim, _indices(start, size, step, length))


def dynamic_update(
    input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int
) -> torch.Tensor:
    """A copy of ``input`` with ``src`` written at the value of ``start`` along ``dim``.

    Args:
        input: what to copy.
        src: of the same type and shape, but ``size`` long along ``dim``.
        dim: the dimension, not negative.
        start: an integer tensor of one element. Past the end the rest is written to the beginning.
        size: number of elements written.
    """
    check_tensor("dynamic_update", input)
    check_tensor("dynamic_update", src)
    _check_slice(input, dim, start, size, "dynamic_update")
    if input.dim() != src.dim():
        raise createPoptorchError("input and src must have same dimensionality.")
    if input.dtype != src.dtype:
        raise createPoptorchError("input and src must have same dtype.")
    shape = list(input.shape)
    if size > shape[dim]:
        raise createPoptorchError(
            f"dynamic_update: {size} elements do not fit into a dimension of {shape[dim]}"
        )
    shape[dim] = size
    if list(src.shape) != shape:
        raise createPoptorchError(
            f"dynamic_update: src must have the shape {shape}, not {list(src.shape)}"
        )
    return input.index_copy(dim, _indices(start, size, 1, input.shape[dim]), src)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_slice(tensor: torch.Tensor, dim: Any, start: Any, size: Any, op: str) -> None:
    if not _is_integer(dim):
        raise createPoptorchError("Dimension must be an integer.")
    if not isinstance(start, torch.Tensor):
        raise createPoptorchError(f"Slice start argument to {op} must be a torch.tensor")
    if start.dtype not in (torch.int16, torch.int32, torch.int64):
        raise createPoptorchError(f"Expected integer typed start tensor, got {start.dtype}")
    if start.numel() != 1:
        raise createPoptorchError(
            f"{op}: start must have one element, not the shape {list(start.shape)}"
        )
    if not _is_integer(size):
        raise createPoptorchError("Size must be an integer.")
    if size == 0:
        raise createPoptorchError("The start and end of a slice must be different.")
    if size < 0:
        raise createPoptorchError("Taking a slice with an end less than the start is not supported")
    if not 0 <= dim < tensor.dim():
        raise createPoptorchError(
            f"{op}: dimension {dim} is none of the {tensor.dim()} of the tensor, which are counted "
            "from 0"
        )
    if tensor.shape[dim] == 0:
        raise createPoptorchError(f"{op}: dimension {dim} of the tensor is empty")


def _indices(start: torch.Tensor, size: int, step: int, length: int) -> torch.Tensor:
    return (start.reshape(()).long() + torch.arange(0, size, step)) % length
