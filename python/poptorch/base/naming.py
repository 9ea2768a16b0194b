# SPDX-License-Identifier: Apache-2.0
"""Names of classes and functions that are defined elsewhere than where users import them."""

from collections.abc import Callable
from typing import Any, TypeVar

_Defined = TypeVar("_Defined", bound=Callable[..., Any])


def found_in(module: str) -> Callable[[_Defined], _Defined]:
    """Gives a class or a function the module that users know: pickles and messages name it."""

    def name(defined: _Defined) -> _Defined:
        defined.__module__ = module
        return defined

    return name
