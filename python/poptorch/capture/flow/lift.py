# SPDX-License-Identifier: Apache-2.0
"""What a body uses of the graph around it becomes an input of the body.

A stand-in takes the place of each tensor from outside in every call that the body makes, so that
autograd ends there as well: gradients pass through the op of the loop or branch, not around it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from poptorch.capture import _torch_private as private
from poptorch.capture.values import constants


class Lifted:
    """A tensor from outside of a body.

    Attributes:
        outer: the tensor.
        leaf: the input of the body that stands for it.
        given: what the calls of the body get; a copy of the leaf if it may be written to.
        graded: whether it has a gradient; that of the leaf is another matter once it is written.
        required: whether the tensor outside requires one.
    """

    def __init__(self, outer: Tensor, leaf: Tensor, graded: bool = False) -> None:
        self.outer = outer
        self.leaf = leaf
        self.graded = graded
        self.required = outer.requires_grad
        self.given = leaf


class Lifter(private.TorchFunctionMode):
    """Sees all calls of a body and puts stand-ins in.

    Args:
        fake_mode: makes the stand-ins.
        around: tracers of the graphs around the body.
        grad: whether the body is differentiated.
        unknown: tensors from outside that have another value in each turn.
        graded: tensors from outside that get a gradient although they had none so far.
    """

    def __init__(
        self,
        fake_mode: private.FakeTensorMode,
        around: list[private.Tracer],
        grad: bool,
        unknown: list[Tensor],
        graded: list[Tensor],
    ) -> None:
        super().__init__()
        self.around = around
        self.found: list[Lifted] = []
        self._fake_mode = fake_mode
        self._grad = grad
        self._unknown, self._graded = unknown, graded
        self._by_outer: dict[int, Lifted] = {}
        self._by_given: dict[int, Lifted] = {}

    def fresh(self, like: Tensor, grad: bool = False, dtype: torch.dtype | None = None) -> Tensor:
        """A new input of the body."""
        with self._fake_mode:
            made = torch.empty_strided(like.shape, like.stride(), dtype=dtype or like.dtype)
        return made.requires_grad_(grad)

    def dense(self, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A new input of the body, contiguous."""
        with self._fake_mode:
            return torch.empty(like.shape, dtype=dtype or like.dtype)

    def lift(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor in the body: another one if it is from outside."""
        known = self._by_outer.get(id(tensor))
        if known is not None:
            return known.given
        if not self._is_outside(tensor):
            return tensor
        # Or a body around this one would take what is read of the tensor here for a use in it.
        with torch._C.DisableTorchFunction():
            found = self._stand_in(tensor)
        self.found.append(found)
        self._by_outer[id(tensor)] = self._by_given[id(found.given)] = found
        return found.given

    def _stand_in(self, tensor: Tensor) -> Lifted:
        forced = any(t is tensor for t in self._graded)
        wanted = self._grad and (tensor.requires_grad or forced)
        made = private.without_modes(lambda: self.fresh(tensor, wanted))
        found = Lifted(tensor, made, wanted)
        if wanted and (forced or not tensor.is_leaf):
            with torch.enable_grad():
                found.given = made.clone()  # a leaf cannot be written to
        if not any(t is tensor for t in self._unknown):
            constants.copy_note(tensor, found.given)
        return found

    def _is_outside(self, tensor: Tensor) -> bool:
        return isinstance(tensor, private.FakeTensor) and any(
            tensor in tracer.tensor_tracker for tracer in self.around
        )

    def lift_all(self, tree: Any) -> Any:
        """Arguments of a call with stand-ins in place of tensors from outside."""
        if isinstance(tree, Tensor):
            return self.lift(tree)
        if isinstance(tree, (list, tuple)):
            items = [self.lift_all(x) for x in tree]
            if hasattr(tree, "_fields"):
                return type(tree)(*items)
            return type(tree)(items) if type(tree) in (list, tuple) else tree
        if type(tree) is dict:
            return {k: self.lift_all(v) for k, v in tree.items()}
        if isinstance(tree, slice):
            return slice(*[self.lift_all(x) for x in (tree.start, tree.stop, tree.step)])
        return tree

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*self.lift_all(args), **self.lift_all(kwargs or {}))
        # `self.buffer += 1` assigns what the call returns: the user's own tensor, not its stand-in.
        found = self._by_given.get(id(out))
        return out if found is None else found.outer

    @contextlib.contextmanager
    def functions(self) -> Iterator[None]:
        """Arguments of torch.autograd.Function are lifted too: no mode sees those calls."""
        base = torch.autograd.Function
        plain = base.__dict__["apply"]

        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            return plain.__func__(cls, *self.lift_all(args), **self.lift_all(kwargs))

        base.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            base.apply = plain  # type: ignore[method-assign]
