# SPDX-License-Identifier: Apache-2.0
"""Tensors as memory: what has to hold before the core may be given a pointer to their values."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from poptorch.base.errors import createPoptorchError

_plain = torch._C.DisableTorchFunctionSubclass
_FILL = "Give it values; model.to_empty(device='cpu') makes memory for a whole model"


def check_memory(tensor: torch.Tensor, name: str) -> None:
    """Raise unless all values of ``tensor``, which messages call ``name``, lie in CPU memory."""
    problem = memory_problem(tensor)
    if problem is not None:
        raise createPoptorchError(f"{name} {problem}. {_FILL}")


def check_input(tensor: torch.Tensor, name: str) -> None:
    """Raise unless all values of the argument ``name`` lie in CPU memory."""
    problem = memory_problem(tensor)
    if problem is not None:
        raise createPoptorchError(f"Input tensors must be on the CPU but {name} {problem}.")


def memory_problem(tensor: torch.Tensor) -> str | None:
    """Why the values of a tensor can't be read where they lie; None if they can."""
    with _plain():
        return _problem(tensor)


def _problem(tensor: torch.Tensor) -> str | None:
    if tensor.layout != torch.strided:
        return f"is of layout {tensor.layout}: make it dense with to_dense()"
    if tensor.is_meta:
        return "is on the meta device and has no values"
    if not tensor.is_cpu:
        return f"is on {tensor.device}: move it to the CPU"
    if tensor.numel() == 0:
        return None
    has = _bytes_of_storage(tensor)
    if not has:
        return "has no memory: its storage was freed, or it was made without values"
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    needs = (tensor.storage_offset() + reach) * tensor.element_size()
    if has < needs:
        return f"needs {needs} bytes but its storage has {has}: the storage was resized"
    return None


def _bytes_of_storage(tensor: torch.Tensor) -> int:
    try:
        storage = tensor.untyped_storage()
        # Tensors of tracing modes have a storage that only looks like one.
        return storage.nbytes() if storage.device.type == "cpu" and storage.data_ptr() else 0
    except (NotImplementedError, RuntimeError):
        return 0


def address(tensor: torch.Tensor, name: str) -> int:
    """Where the values of a contiguous tensor begin; raises if they lie nowhere."""
    check_memory(tensor, name)
    return tensor.data_ptr()


@contextmanager
def host_defaults(training: bool) -> Iterator[None]:
    """New tensors lie in CPU memory, and autograd is possible if ``training``, whatever the caller
    has set: what is compiled must not depend on it."""
    with ExitStack() as stack:
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if training and torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        yield
