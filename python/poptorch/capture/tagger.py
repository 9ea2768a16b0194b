# SPDX-License-Identifier: Apache-2.0
"""The mode that sees every ATen op while it is recorded."""

import sys
from typing import Any

import torch

from poptorch.capture import _torch_private as private
from poptorch.capture import errors
from poptorch.capture.calls.checks import CHECKS, check_device
from poptorch.capture.library.pure_forms import pure_form
from poptorch.capture.session import Session
from poptorch.capture.values import constants, frozen

_NONZERO = torch.ops.aten.nonzero.default


_REPEAT = torch.ops.aten.repeat_interleave.Tensor


def _does_something(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether an op computes a tensor from another one; views and copies do not."""
    return (
        not any(r.alias_info for r in func._schema.returns)
        and func.overloadpacket not in (torch.ops.aten.clone, torch.ops.aten._to_copy)
        and any(isinstance(a, torch.Tensor) for a in args)
    )


def _call(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = func(*args, **kwargs)
    constants.remember(func, args, kwargs, out)
    return out


_NO_FAKE = (
    "{0} says nothing about the shapes of its results: register a function that makes empty "
    "tensors like them with torch.library.register_fake, or call the op by poptorch.CPU."
)


def _lacks_fake(func: torch._ops.OpOverload, error: Exception) -> bool:
    unsupported = isinstance(error, private.UnsupportedOperatorException)
    return func.namespace != "aten" and (unsupported or "no fake impl" in str(error))


class Tagger(private.TorchDispatchMode):
    """Tags every ATen op and turns torch's errors about unknown values into ours."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        session = self.session
        if session.in_backward:
            tag = session.backward_tag()
        else:
            tag = session.forward_tag(sys._getframe(1))
            if tag.block and tag.block not in session.blocks and _does_something(func, args):
                session.blocks[tag.block] = tag
            if func is torch.ops.aten.convolution.default:
                session.convolutions += 1
                if session.conv_memory is not None:
                    tag = tag._replace(memory=session.conv_memory())
            session.note_write(func, args)
        private.set_node_tag({"tag": tag})
        kwargs = kwargs or {}
        check = CHECKS.get(func)
        if check is not None:
            check(*args, **kwargs)
        if kwargs.get("device") is not None:
            check_device(kwargs["device"])
        try:
            if func in constants.MAYBE_STATIC:
                out = constants.static_form(func, args, kwargs)
                if out is not None:
                    if constants.draws(func, args):
                        session.warn_of_draw(tag.where)
                    return out
            if func in frozen.READS:
                return session.frozen.call(func, args, kwargs, tag.where)
            if func is _NONZERO and args[0].dim() and not session.frozen.refuses:
                return session.frozen.nonzero(args[0], tag.where)
            if func is _REPEAT and not session.frozen.refuses:
                kwargs = {"output_size": session.frozen.repeats(*args, **kwargs, where=tag.where)}
            pure = pure_form(func)
            return pure.call(_call, args, kwargs) if pure else _call(func, args, kwargs)
        except private.DynamicOutputShapeException:
            what = errors.describe_dynamic_op(func)
            raise errors.data_dependent("shape", what, tag.where) from None
        except private.DataDependentOutputException:
            raise errors.data_dependent("value", str(func), tag.where) from None
        except (private.UnsupportedOperatorException, RuntimeError) as error:
            if _lacks_fake(func, error):
                raise errors.make_error(_NO_FAKE.format(func.name()), tag.where) from error
            raise
