# SPDX-License-Identifier: Apache-2.0
"""Names of the API that exist but raise a "not yet" error: one table, from which the stubs and the
page ``docs/pending.md`` are made."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from poptorch.base.errors import not_yet


@dataclass(frozen=True)
class Pending:
    """A row: a public name, its parameters and what is missing."""

    name: str
    parameters: str
    missing: str


PENDING: tuple[Pending, ...] = (
    Pending(
        "poptorch.PoplarExecutor.compileAndExport",
        "self, filename, *args, export_model=True, **kwargs",
        "programs are not written to files",
    ),
    Pending(
        "poptorch.PoplarExecutor.save",
        "self, filename, export_model=True, save_rng_state=True",
        "programs are not written to files",
    ),
    Pending(
        "poptorch.PoplarExecutor.loadExecutable",
        "self, filename",
        "programs are not read from files",
    ),
    Pending("poptorch.load", "filename, edit_opts_fn=None", "programs are not read from files"),
)
_ROWS = {row.name: row for row in PENDING}


def raise_not_yet(name: str) -> NoReturn:
    """Raise the error of the row ``name``."""
    row = _ROWS[name]
    raise not_yet(f"{name}()", row.missing)


def pending_function(name: str) -> Callable[..., Any]:
    """A function that only raises, with the parameters of its row."""
    row = _ROWS[name]

    def function(*args: Any, **kwargs: Any) -> Any:
        raise_not_yet(name)

    function.__name__ = name.rpartition(".")[2]
    function.__qualname__ = name.partition(".")[2]
    function.__doc__ = f"Not available yet: {row.missing}."
    function.__signature__ = inspect.signature(  # type: ignore[attr-defined]
        eval(f"lambda {row.parameters}: None")
    )
    function.is_pending = True  # type: ignore[attr-defined]
    return function


def add_pending_methods(cls: type) -> type:
    """Give ``cls`` those of its rows that it does not define."""
    prefix = f"poptorch.{cls.__name__}."
    for row in PENDING:
        name = row.name.removeprefix(prefix)
        if name != row.name and not hasattr(cls, name):
            setattr(cls, name, pending_function(row.name))
    return cls
