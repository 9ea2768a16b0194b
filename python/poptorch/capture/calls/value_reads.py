# SPDX-License-Identifier: Apache-2.0
"""Calls by which Python reads the value of a tensor, or sets it."""

from typing import Any

import torch

from poptorch.capture import _torch_private as private
from poptorch.capture.calls.handler import Args, Function, Handler, Kwargs, Mode
from poptorch.capture.errors import make_error, user_frame
from poptorch.capture.values import constants

_VALUE_READS: dict[Function, str] = {
    torch.Tensor.tolist: ".tolist()",
    torch.Tensor.numpy: ".numpy()",
    torch.Tensor.__array__: "Conversion to a NumPy array",
    torch.Tensor.__reduce_ex__: "Pickling (`torch.save`, `pickle`, `multiprocessing`)",
}


def _value_read(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    tensor = args[0]
    if isinstance(tensor, private.FakeTensor):
        known = constants.value_of(tensor)
        if known is None:
            known = mode.session.frozen.read(tensor, _VALUE_READS[func], user_frame())
        return private.without_modes(lambda: func(known, *args[1:], **kwargs))
    return NotImplemented


def _text(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Text of a tensor. Without a value yet it is torch's own, or a word if a format is given."""
    tensor, spec = args[0], args[1] if len(args) > 1 else ""
    if not isinstance(tensor, private.FakeTensor):
        return NotImplemented
    known = constants.value_of(tensor)
    if known is not None:
        return private.without_modes(lambda: func(known, *args[1:]))
    mode.session.warn_of_text()
    return "<unavailable>" if spec and tensor.dim() == 0 else NotImplemented


def _decision(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """int(t) and bool(t): only their result must be the same in each call, not the value of t."""
    if not mode.session.frozen.checking or args[0].numel() != 1:
        return NotImplemented
    return func(args[0].long() if func is torch.Tensor.__int__ else args[0] != 0)


def _tensor_split(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """ATen reads sections given as a tensor from memory that a captured tensor does not have."""

    def run(
        input: torch.Tensor, tensor_indices_or_sections: torch.Tensor, dim: int = 0, **other: Any
    ) -> Any:
        known = constants.value_of(tensor_indices_or_sections)
        if known is None:
            where, values = user_frame(), mode.session.frozen
            known = values.read(tensor_indices_or_sections, "tensor_split by a tensor", where)
        return func(input, private.without_modes(known.tolist), dim, **other)

    split = args[1] if len(args) > 1 else kwargs.get("tensor_indices_or_sections")
    return run(*args, **kwargs) if isinstance(split, torch.Tensor) else NotImplemented


def _set_data(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    """`tensor.data = value` writes the tensor, past autograd; its shape and type are fixed."""
    tensor, value = args
    if not isinstance(tensor, private.FakeTensor):
        return NotImplemented
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        raise make_error(
            f"`.data` of a tensor of {tensor.dtype} and shape {list(tensor.shape)} is set to one "
            f"of {value.dtype} and shape {list(value.shape)} in forward: a program can't change "
            "the shape or the type of a tensor",
            user_frame(),
        )
    with torch.no_grad():
        tensor.data.copy_(value)
    return None


_DATA: Any = torch.Tensor.data  # of the class: a descriptor

HANDLERS: dict[Function, Handler] = {
    **dict.fromkeys(_VALUE_READS, _value_read),
    **dict.fromkeys((torch.Tensor.__format__, torch.Tensor.__repr__), _text),
    **dict.fromkeys((torch.Tensor.__int__, torch.Tensor.__bool__), _decision),
    **dict.fromkeys((torch.tensor_split, torch.Tensor.tensor_split), _tensor_split),
    _DATA.__set__: _set_data,
}
