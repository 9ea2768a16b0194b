# SPDX-License-Identifier: Apache-2.0
"""What capture knows of a row of the core."""

from collections.abc import Sequence
from typing import Protocol


class Row(Protocol):
    """A row as `_core.rows()` gives it: the columns of core/ops/*.def in words."""

    @property
    def name(self) -> str:
        """In the text form; mostly the base name of an ATen op."""

    @property
    def kind(self) -> str:
        """pointwise, view or structured."""

    @property
    def arity(self) -> int:
        """Operands of a pointwise row."""

    @property
    def rule(self) -> str:
        """How a pointwise row types its result."""

    @property
    def signature(self) -> str:
        """Arguments of the other rows, in the letters of ops.def."""

    @property
    def facts(self) -> Sequence[str]:
        """What else there is to know, see op.h."""
