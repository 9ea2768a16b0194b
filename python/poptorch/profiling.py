# SPDX-License-Identifier: Apache-2.0
"""Trace points of a program. With ``PVTI_OPTIONS`` set they are labels in torch's profiler,
otherwise they cost nothing."""

import functools
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class Channel:
    """A named series of trace points."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._active = bool(os.environ.get("PVTI_OPTIONS"))

    def instrument(self, obj: Any, *methods: str) -> Any:
        """Give each named method of ``obj`` a trace point; returns ``obj``."""
        if self._active:
            for name in methods:
                setattr(obj, name, self._traced(name, getattr(obj, name)))
        return obj

    def tracepoint(self, name: str) -> AbstractContextManager[Any]:
        """A context manager around a piece of work, which is shown as ``channel.name``."""
        if not self._active:
            return nullcontext()
        return torch.profiler.record_function(f"{self._name}.{name}")

    def _traced(self, name: str, method: Any) -> Any:
        @functools.wraps(method)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(name):
                return method(*args, **kwargs)

        return traced
