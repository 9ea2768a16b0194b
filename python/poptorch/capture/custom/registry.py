# SPDX-License-Identifier: Apache-2.0
"""The ops of the libraries that the program has loaded."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from poptorch import _core

#: Runs an op under the trace: (inputs, attributes, example outputs) -> results.
Run = Callable[[Sequence[Tensor], Mapping[str, Any], Sequence[Tensor]], list[Tensor]]


def registered(name: str, domain: str, version: int) -> Run | None:
    """The op of a library: the largest version that is at most the one asked for."""
    from poptorch.capture.custom import call

    op = find(name, domain, version)
    return None if op is None else functools.partial(call.run, op)


def find(name: str, domain: str, version: int) -> _core.CustomOp | None:
    """The row of the registry for an op."""
    same = [op for op in _core.custom_ops() if (op.domain, op.name) == (domain, name)]
    older = [op for op in same if op.version <= version]
    return max(older, key=lambda op: op.version, default=None)


def registered_names() -> list[tuple[str, str]]:
    """(domain, name) of the ops of libraries that programs may call; gradient ops that PopART's
    headers register for a call have a quote in their names."""
    ops = [op for op in _core.custom_ops() if op.domain != "tessera" and "'" not in op.name]
    return [(op.domain, op.name) for op in ops]


def libraries() -> list[str]:
    """The files that registered ops, beside our own."""
    return sorted({op.library for op in _core.custom_ops() if op.domain != "tessera"})


def refused() -> list[str]:
    """Ops of libraries that are not used, and why."""
    return _core.custom_refused()
