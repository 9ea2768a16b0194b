# SPDX-License-Identifier: Apache-2.0
"""Types of what handles a call of torch.

A handler gets the mode that saw the call, the function and its arguments. It returns the result, or
NotImplemented to leave the call to ATen.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from poptorch.capture.session import Session

Function = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class TorchCall(NamedTuple):
    """A function of torch with the arguments that it was called with."""

    func: Function
    args: Args
    kwargs: Kwargs


class Mode(Protocol):
    """The mode that saw a call. It is off while a handler runs; `with mode:` turns it on again."""

    session: "Session"

    def __enter__(self) -> Any: ...

    def __exit__(self, *exc: Any) -> None: ...


Handler = Callable[[Mode, Function, Args, Kwargs], Any]


def by_name(names: tuple[str, ...], args: Args, kwargs: Kwargs) -> Kwargs:
    """The arguments of a call by name; positional ones that have no name here are left out."""
    return {**dict(zip(names, args, strict=False)), **kwargs}
