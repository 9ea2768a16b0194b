# SPDX-License-Identifier: Apache-2.0
"""The mode that sees calls of torch before autograd does; what its table lacks is left to ATen."""

from typing import Any

import torch

from poptorch.capture import _torch_private as private
from poptorch.capture.calls import (
    attention,
    losses,
    mixed_types,
    recurrent,
    rewrites,
    statistics,
    value_reads,
)
from poptorch.capture.calls.handler import Args, Function, Handler, Kwargs, Mode, TorchCall
from poptorch.capture.calls.least_squares import lstsq
from poptorch.capture.errors import make_error, user_frame
from poptorch.capture.session import Session
from poptorch.capture.values import dynamic_index, follow, ragged


def _backward(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    raise make_error(
        "backward() is called in forward. The backward pass and the weight update are part of each "
        "call of a training model: return the loss, or mark it with poptorch.identity_loss.",
        user_frame(),
    )


def _lstsq(mode: Mode, func: Function, args: Args, kwargs: Kwargs) -> Any:
    return lstsq(*args, **kwargs)


HANDLERS: dict[Function, Handler] = {
    **losses.HANDLERS,
    **attention.HANDLERS,
    **recurrent.HANDLERS,
    **rewrites.HANDLERS,
    **statistics.HANDLERS,
    **mixed_types.HANDLERS,
    **value_reads.HANDLERS,
    **dynamic_index.HANDLERS,
    **follow.HANDLERS,
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), ragged.masked_select),
    torch.linalg.lstsq: _lstsq,
    torch.Tensor.backward: _backward,
}


# Whether these return a view or a copy depends on the strides of their tensor.
_VIEW_OR_COPY = frozenset(
    getattr(space, name)
    for space in (torch, torch.Tensor)
    for name in ("reshape", "flatten", "ravel", "contiguous", "reshape_as", "to")
    if hasattr(space, name)
)


class Interceptor(private.TorchFunctionMode):
    """Sends the listed functions to their handlers and marks the results of loss functions."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._loss_depth = 0

    def __torch_function__(
        self, func: Function, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        loss = func in losses.LOSSES
        self._loss_depth += loss
        try:
            if self.session.ragged.exist:
                self.session.ragged.check(func, args, kwargs)
            out = self._call(func, args, kwargs)
        except Exception as error:
            self.session.failed = error, TorchCall(func, args, kwargs)
            raise
        finally:
            self._loss_depth -= loss
        if self.session.views.exist:
            self.session.views.sync()
        if self.session.ragged.exist:
            self.session.ragged.pass_on(func, args, out)
        if loss and self._loss_depth == 0:
            return losses.mark_loss(self.session, out)
        return out

    def _call(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        if kwargs.get("generator") is not None:
            raise make_error(
                "A torch.Generator cannot be used in a captured model: its random numbers come "
                "from the device's own state. Seed that with poptorch.Options().randomSeed().",
                user_frame(),
            )
        casting = self.session.casting
        if casting is not None and self.session.in_forward:
            args, kwargs = casting.arguments(func, args, kwargs)
        if func in _VIEW_OR_COPY:
            return self._view_or_copy(func, args, kwargs)
        handler = HANDLERS.get(func)
        if handler is None:  # weights/doors.py may have wrapped it
            handler = HANDLERS.get(getattr(func, "__wrapped__", func))
        if handler is not None:
            out = handler(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        body = private.functional_body(func)
        if body is None:
            return func(*args, **kwargs)
        with self:
            return body(*args, **kwargs)

    def _view_or_copy(self, func: Function, args: Args, kwargs: Kwargs) -> Any:
        out = func(*args, **kwargs)
        for tensor in (out, *args[:1]):
            if isinstance(tensor, private.FakeTensor):
                self.session.views_or_copies.add(private.storage_id(tensor))
        return out
