# SPDX-License-Identifier: Apache-2.0
"""Values that forward asks Python for and that are others each time: random numbers, the time.

While a model is captured, the functions that give them are replaced by ones that remember the line
of the caller. Draws that no function here sees are noticed by the state of the generators.
"""

import contextlib
import datetime
import functools
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from poptorch.base.logging import logger
from poptorch.capture import errors, state
from poptorch.capture.errors import Where
from poptorch.capture.watch.snapshots import in_library

_COUNTERS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
_CLOCKS = (*_COUNTERS, *(f"{name}_ns" for name in _COUNTERS), "localtime", "gmtime", "ctime")
_DATES = ("now", "utcnow", "today")
_IDENTITY = {
    "os": ("urandom",),
    "uuid": ("uuid1", "uuid4"),
    "secrets": ("token_bytes", "token_hex", "randbelow"),
}
# In this order: numpy holds numpy.random.
_MODULES = ("time", "datetime", "random", *_IDENTITY, "numpy.random", "numpy")
_NUMBER, _TIME = "a random number", "the time"
_NO_DRAWS = ("seed", "get_state", "set_state", "getstate", "setstate")


class HostReads:
    """The lines where forward reads random numbers or the time."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, Where], None] = {}  # (what was read, line); a set in order
        # id of a function, class or module -> (it, what forward has in its place)
        self._wrappers: dict[int, tuple[Any, Any]] = {
            id(f): (f, self._wrapper(f, what)) for f, what in _sources()
        }
        for kind in (datetime.datetime, datetime.date):
            self._wrappers[id(kind)] = (kind, self._dates(kind))
        for name in _MODULES:
            if name in sys.modules:
                module = sys.modules[name]
                self._wrappers[id(module)] = (module, self._standin(module))

    def _standin(self, module: types.ModuleType) -> types.ModuleType:
        """A module whose functions are noticed."""
        copy = types.ModuleType(module.__name__, module.__doc__)
        for name, value in vars(module).items():
            copy.__dict__[name] = self._wrappers.get(id(value), (None, value))[1]
        return copy

    def _note(self, what: str) -> None:
        frame = sys._getframe(2)
        code = frame.f_code
        if state.current() is None or errors.is_internal(frame):
            return
        # Libraries look at the clock for their logs, but draw numbers to compute with them.
        in_python = "site-packages" not in code.co_filename and in_library(code.co_filename)
        if in_python or (what == _TIME and in_library(code.co_filename)):
            return
        self.lines[(what, (code.co_filename, frame.f_lineno))] = None

    def _wrapper(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        seeded = getattr(function, "__name__", "") == "default_rng"

        def read(*args: Any, **kwargs: Any) -> Any:
            if not seeded or not any(a is not None for a in (*args, *kwargs.values())):
                self._note(what)
            return function(*args, **kwargs)

        return functools.wraps(function)(read)

    def _dates(self, kind: type) -> type:
        """A stand-in for a class of dates, whose objects are those of the class itself."""
        reads = self

        class Meta(type):
            def __instancecheck__(cls, value: Any) -> bool:
                return isinstance(value, kind)

            def __call__(cls, *args: Any, **kwargs: Any) -> Any:
                return kind(*args, **kwargs)

        def reader(name: str) -> Any:
            def read(*args: Any, **kwargs: Any) -> Any:
                reads._note(_TIME)
                return getattr(kind, name)(*args, **kwargs)

            return staticmethod(read)

        return Meta(kind.__name__, (kind,), {n: reader(n) for n in _DATES if hasattr(kind, n)})

    @contextlib.contextmanager
    def watched(self, namespaces: list[dict[str, Any]]) -> Iterator[None]:
        """While inside, what these namespaces read is noticed.

        The modules themselves stay as they are: others may import from them meanwhile.
        """
        saved = []
        before = _generator_states()
        for space in namespaces:
            for name, value in list(space.items()):
                found = self._wrappers.get(id(value))
                if found is not None:
                    saved.append((space, name, value))
                    space[name] = found[1]
        try:
            yield
        finally:
            for space, name, value in saved:
                space[name] = value
        if _generator_states() != before and not any(what == _NUMBER for what, _ in self.lines):
            self.lines[(_NUMBER, errors.NOWHERE)] = None

    def warn(self) -> None:
        """Says, once per line, that what was read is frozen."""
        for what, where in self.lines:
            at = f"\n  at {errors.describe(where)}" if where[0] else ""
            advice = (
                "Draw it with torch.rand and the like, which run on every call"
                if what == _NUMBER
                else "Read it outside of the model"
            )
            logger.warning(
                "forward reads %s from Python, which runs only once, while the model is captured: "
                "every call of the program uses the same value. %s, or pass it to the model as an "
                "input.%s",
                what,
                advice,
                at,
            )


def _sources() -> Iterator[tuple[Any, str]]:
    """The functions that give another value each time, and what that is."""
    for name in _CLOCKS:
        if hasattr(time, name):
            yield getattr(time, name), _TIME
    yield from _methods_of(random, random._inst)
    for module, names in _IDENTITY.items():
        for name in names if module in sys.modules else ():
            yield getattr(sys.modules[module], name), _NUMBER
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield from _methods_of(numpy, numpy.mtrand._rand)
        yield numpy.default_rng, _NUMBER


def _methods_of(module: types.ModuleType, generator: Any) -> Iterator[tuple[Any, str]]:
    for name, value in vars(module).items():
        if getattr(value, "__self__", None) is generator and name not in _NO_DRAWS:
            yield value, _NUMBER


def _generator_states() -> dict[str, Any]:
    """The states of the generators that Python and numpy share with everybody."""
    states: dict[str, Any] = {"random": random.getstate()}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        states["numpy"] = repr(numpy.mtrand._rand.get_state(legacy=False))
    return states
