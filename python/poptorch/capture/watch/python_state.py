# SPDX-License-Identifier: Apache-2.0
"""Python values that forward counts with: attributes, globals, variables of closures.

Forward runs once, while it is captured, so such a value is the same in every call of the program.
Values are compared before and after that run; of those that differ, only the ones whose code
computes them from their former value are reported, because libraries keep caches and modules set
attributes when they are first called.
"""

from collections.abc import Iterable

import torch

from poptorch.base.logging import logger
from poptorch.capture import errors
from poptorch.capture.watch.reach import Reach
from poptorch.capture.watch.self_updates import Key, Update, functions_in, self_updates
from poptorch.capture.watch.snapshots import ANY, TENSOR, Change, changes


class PythonState:
    """What Python's values are before forward runs, to be compared with what they are then."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        reach = Reach(model)
        self.namespaces = list(reach.namespaces.values())
        self._before = {value.key: value.snapshot for value in reach.values()}

    def warn_of_counters(self) -> None:
        """Says what forward counts with although it runs only once; once per line."""
        reach = Reach(self._model)
        changed = [
            change
            for value in reach.values()
            for change in changes(
                self._before.get(value.key, ANY), value.snapshot, value.path, value.name
            )
        ]
        if not changed:
            return
        codes = [inner for code in reach.functions for inner in functions_in(code)]
        updates = self_updates(codes)
        by_line: dict[Update | str, list[Change]] = {}
        for change in changed:
            where = _line_of(change, updates)
            if where is not None:
                by_line.setdefault(where, []).append(change)
        for where, group in by_line.items():
            _warn(group, where)


def _line_of(change: Change, updates: dict[Key, Update]) -> Update | str | None:
    """Where a value is counted; None if the change is not that of a counter."""
    if change.kind == "draw":
        return change.path
    keys: list[Key] = [("name", change.name), ("item", change.name)]
    return next((updates[key] for key in keys if key in updates), None)


def _warn(group: Iterable[Change], where: Update | str) -> None:
    first, *others = group
    steps = ""
    if first.kind != "draw" and first.before is not None and first.after is not TENSOR:
        steps = f" (from {first.before!r} to {first.after!r})"
    more = f" and {len(others)} more like it" if others else ""
    at = f"\n  at {errors.describe(where)}" if isinstance(where, Update) else ""
    logger.warning(
        "%s%s%s changes in forward, but Python runs only once, while the model is captured: every "
        "call of the program uses the value it had then. Keep it in a tensor, with register_buffer "
        "and a change in place such as add_(1), or pass it to the model as an input.%s",
        first.path,
        more,
        steps,
        at,
    )
