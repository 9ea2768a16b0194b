# SPDX-License-Identifier: Apache-2.0
"""Tensors as memory: what has to hold before the core may be given a pointer to their values."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from poptorch._errors import createPoptorchError

_plain = torch._C.DisableTorchFunctionSubclass
_FILL = "Give it values; model.to_empty(device='cpu') makes memory for a whole model"


def check_memory(tensor: torch.Tensor, name: str) -> None:
    """Raise unless all values of ``tensor``, which messages call ``name``, lie in CPU memory."""
    with _plain():
        problem = _problem(tensor)
    if problem is not None:
        raise createPoptorchError(f"{name} {problem}")


def _problem(tensor: torch.Tensor) -> str | None:
    if tensor.layout != torch.strided:
        return f"is of layout {tensor.layout}: make it dense with to_dense()"
    if tensor.is_meta:
        return f"is on the meta device and has no values. {_FILL}"
    if not tensor.is_cpu:
        return f"is on {tensor.device}: move the model to the CPU before it is wrapped"
    if tensor.numel() == 0:
        return None
    # Tensors of tracing modes have a storage that only looks like one.
    traced = isinstance(tensor, torch._subclasses.FakeTensor)
    has = 0 if traced or not tensor.data_ptr() else tensor.untyped_storage().nbytes()
    if not has:
        return f"has no memory: its storage was freed, or it was made without values. {_FILL}"
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    needs = (tensor.storage_offset() + reach) * tensor.element_size()
    if has < needs:
        return f"needs {needs} bytes but its storage has {has}: the storage was resized. {_FILL}"
    return None


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
