# SPDX-License-Identifier: Apache-2.0
"""``Options._Popart``: options of the backend, and the sub-objects that keep values there."""

import copy
from enum import IntEnum
from typing import Any

from poptorch.base.logging import logger
from poptorch.base.naming import found_in
from poptorch.options.storage import OptionsDict, option_setter
from poptorch.options.table import OPTIONS


@found_in("poptorch.options")
class _PopartOptions:
    """Options of the backend, kept by name and not checked."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {
            row.key: row.default for row in OPTIONS if row.backend and row.default is False
        }
        self._is_frozen = False

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Raise unless the object may still be modified."""
        if self._is_frozen:
            raise AttributeError("Can't modify frozen Options")

    def _freeze(self) -> None:
        self._is_frozen = True

    @option_setter
    def set(self, key: str, value: Any) -> "_PopartOptions":
        """Keep ``value`` under ``key``."""
        self.checkIsFrozen(key)
        assert isinstance(key, str), f"Expected the name of an option, got {key!r}"
        if key == "logDir":
            logger.warning("_Popart.set('logDir', ...) is ignored: use Options.logDir instead")
            return self
        # Members of PopART's enumerations are numbers: the stored form has no need of their module.
        self.options[key] = int(value) if isinstance(value, IntEnum) else value
        return self

    @option_setter
    def setEngineOptions(self, engine_options: dict[str, str]) -> "_PopartOptions":
        """Replace the engine options."""
        assert isinstance(engine_options, dict), (
            f"Expected a dict of engine options, got {engine_options!r}"
        )
        return self.set("engineOptions", engine_options)

    @option_setter
    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> "_PopartOptions":
        """Keep which rewrite patterns are switched on or off."""
        assert isinstance(patterns, dict), f"Expected a dict of patterns, got {patterns!r}"
        assert isinstance(level, int), f"Expected an int as level, got {level!r}"
        self.set("patterns", patterns)
        return self.set("patterns_level", level)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_PopartOptions":
        result = _PopartOptions()
        memo[id(self)] = result
        result.options = copy.deepcopy(self.options, memo)
        return result

    def __repr__(self) -> str:
        return repr(self.options)


class BackendOptions(OptionsDict):
    """A sub-object whose values are partly kept among the backend options."""

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__()
        object.__setattr__(self, "_backend", popart_options)

    def _merge_convolution_option(self, key: str, value: str) -> None:
        self.checkIsFrozen(key)
        current = self._backend.options.get("convolutionOptions", {})
        self._backend.set("convolutionOptions", {**current, key: value})
