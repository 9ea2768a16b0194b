# SPDX-License-Identifier: Apache-2.0
"""``poptorch.Attribute``: attributes of ops of the backend."""

from typing import Any

from poptorch.base.naming import found_in


@found_in("poptorch.options")
class Attribute:
    """Sets backend attributes on the ops captured inside; recorded, no effect on virtual IPUs."""

    _active: dict[str, dict[str, Any]] = {}

    def __init__(self, **kwargs: dict[str, Any]) -> None:
        self._attributes = kwargs
        self._saved: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> "Attribute":
        self._saved = Attribute._active
        Attribute._active = {**self._saved, **self._attributes}
        return self

    def __exit__(self, *exc: object) -> None:
        Attribute._active = self._saved
