# SPDX-License-Identifier: Apache-2.0
"""Values that Python reads in forward: they are those of the first call and stay in the program."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from poptorch.base.logging import logger
from poptorch.capture import _torch_private as private
from poptorch.capture import errors, state
from poptorch.capture.calls.handler import Args, Kwargs
from poptorch.capture.errors import Where
from poptorch.capture.values.replay import Replay

aten = torch.ops.aten

FREEZE, CHECK, ERROR = MODES = ("freeze", "check", "error")
# Ops that give Python a value.
READS = {
    aten._local_scalar_dense.default,
    aten.item.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.allclose.default,
}
# More than this is data, not a decision.
MOST_ELEMENTS = 1024
_SHOWN_ELEMENTS = 8
_READ_BY = "`.item()`, `if tensor`, `float(tensor)` or `int(tensor)`"


class Check(NamedTuple):
    """A value that must be the same in each call.

    Attributes:
        differs: a boolean of the program, true if the value is another one.
        value: the value, as text.
        where: the user's line.
    """

    differs: torch.Tensor
    value: str
    where: Where


class Frozen:
    """The values that Python has read in one capture.

    Args:
        mode: one of MODES.
        sources: the real tensors of the graph's placeholders.
    """

    def __init__(self, mode: str, sources: list[torch.Tensor]) -> None:
        self.mode = mode
        self.checks: list[Check] = []
        self._replay = Replay(sources)
        self._warned: set[Where] = set()

    @property
    def checking(self) -> bool:
        """Whether later calls are checked."""
        return self.mode == CHECK

    @property
    def refuses(self) -> bool:
        """Whether reading is an error."""
        return self.mode == ERROR

    def call(self, func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, where: Where) -> Any:
        """The result of one of READS on captured tensors."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        rest = args[len(tensors) :]
        real, random = self._values(tensors, _READ_BY, where)
        value = private.without_modes(lambda: func(*real, *rest, **kwargs))
        fixed = random or (len(tensors) == 2 and tensors[0].shape != tensors[1].shape)
        if self.checking and not fixed:
            with torch._C.DisableTorchFunction():
                if func is aten.is_nonzero.default:
                    differs = (tensors[0] == 0).any() if value else (tensors[0] != 0).any()
                elif len(tensors) == 1:
                    differs = _differs(tensors[0], real[0])
                else:
                    close: Any = torch.isclose if func is aten.allclose.default else torch.eq
                    same = close(*tensors, *rest, **kwargs).all()
                    differs = same.logical_not() if value else same
            self.checks.append(Check(differs, repr(value), where))
        self._warn(repr(value), random, where)
        return value

    def read(self, tensor: torch.Tensor, what: str, where: Where) -> torch.Tensor:
        """The value of a captured tensor, all of it."""
        if tensor.numel() > MOST_ELEMENTS:
            raise errors.data_dependent("value", what, where)
        (real,), random = self._values([tensor], what, where)
        text = _text(real)
        if self.checking and not random:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                self.checks.append(Check(_differs(tensor.detach(), real), text, where))
        self._warn(text, random, where)
        return real

    def repeats(
        self, repeats: torch.Tensor, *, output_size: int | None = None, where: Where
    ) -> int:
        """The size of a repeat_interleave.

        If it is not given it is that of the first inputs, and the program refuses another sum.
        """
        if output_size is not None:
            return output_size
        found = self.call(aten._local_scalar_dense.default, (repeats.sum(),), {}, where)
        if found == 0:  # an empty result computes nothing that could refuse another number
            self.checks.append(Check(repeats.any(), "0", where))
        return found

    def nonzero(self, x: torch.Tensor, where: Where) -> torch.Tensor:
        """The indices where x is not zero: as many as in the first inputs, or the call fails."""
        with torch._C.DisableTorchFunction():
            repeats = (x != 0).reshape(-1).to(torch.int64)
            size = self.repeats(repeats, where=where)
            flat = aten.repeat_interleave.Tensor(repeats, output_size=size)
            found = []
            for length in reversed(x.shape):
                found.append(flat % length)
                flat = flat // length
            return torch.stack(found[::-1], 1)

    def _values(
        self, tensors: Sequence[torch.Tensor], what: str, where: Where
    ) -> tuple[list[torch.Tensor], bool]:
        """(the real values of tensors, whether they depend on random numbers)."""
        if self.refuses:
            raise errors.data_dependent("value", what, where)
        session = state.current()
        if session is not None and session.lifters:
            raise errors.make_error(
                f"{what} reads the value of a tensor in the body of poptorch.for_loop or "
                "poptorch.cond. The body is captured once, so it is the same in every turn: Python "
                "cannot follow values there. Read the value before the call, or keep it in a "
                "tensor: torch.where, or poptorch.cond in the body.",
                where,
            )
        fakes = [t for t in tensors if isinstance(t, private.FakeTensor)]
        try:
            found, random = self._replay.values_of(fakes)
        except Exception as error:
            raise errors.unknown_value(what, error, where) from error
        real = iter(found)
        return [next(real) if isinstance(t, private.FakeTensor) else t for t in tensors], random

    def _warn(self, value: str, random: bool, where: Where) -> None:
        """Says once per line what was read and what follows from it."""
        if where in self._warned:
            return
        self._warned.add(where)
        then = (
            "A call with another value is an error."
            if self.checking and not random
            else "Calls with other inputs or weights go on with it. "
            'Options.valuesReadInForward("check") checks each call, "error" forbids it.'
        )
        logger.warning(
            "Python reads the value of a tensor in forward: %s%s. The program is frozen to this "
            "value of the first inputs, and to what Python decides with it. %s\n  at %s",
            value,
            ", which depends on a random number that is drawn once, now" if random else "",
            then,
            errors.describe(where),
        )


def _text(real: torch.Tensor) -> str:
    if real.numel() <= _SHOWN_ELEMENTS:
        return repr(real.tolist())
    return f"{real.numel()} elements of shape {list(real.shape)}"


def _differs(tensor: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Whether a captured tensor has another value; floats are equal if they differ by rounding."""
    if not real.dtype.is_floating_point:
        return (tensor != _constant(real)).any()
    tolerance = 1e-2 if real.dtype in (torch.float16, torch.bfloat16) else 1e-4
    same = torch.isclose(tensor, _constant(real), rtol=tolerance, atol=1e-6, equal_nan=True)
    return same.logical_not().any()


def _constant(real: torch.Tensor) -> Any:
    return real.item() if real.dim() == 0 and not real.dtype.is_floating_point else real
