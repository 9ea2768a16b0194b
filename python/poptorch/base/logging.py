# SPDX-License-Identifier: Apache-2.0
"""The log: lines of ``poptorch::python``, and of the core as ``poptorch:cpp``, on stderr; their
level is set by ``POPTORCH_LOG_LEVEL``."""

import logging
import os
import sys

DEFAULT_LEVEL = "INFO"
LEVELS = {
    "TRACE_ALL": 1,
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "DEBUG_IR": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": logging.CRITICAL + 10,
}
for _name in ("TRACE_ALL", "TRACE"):
    logging.addLevelName(LEVELS[_name], _name)
_INTEGER_LEVELS = {0: "TRACE", 1: "DEBUG", 2: "INFO", 3: "WARN", 4: "ERR", 6: "OFF"}
_COLOURS = {"warning": "\033[1;33m", "error": "\033[1;31m", "critical": "\033[1;31m"}

logger = logging.getLogger("poptorch::python")
#: What is told of the core.
core_logger = logging.getLogger("poptorch:cpp")
DEBUG, TRACE = logging.DEBUG, LEVELS["TRACE"]
#: Whether the text of every compiled model is logged.
shows_ir = False


class _Formatter(logging.Formatter):
    def __init__(self, colour: bool) -> None:
        super().__init__(
            "[%(asctime)s.%(msecs)03d] [%(name)s] [%(levelname)s] %(message)s", "%H:%M:%S"
        )
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        name = record.levelname.lower()
        shown = f"{_COLOURS[name]}{name}\033[0m" if self._colour and name in _COLOURS else name
        # A copy, because other handlers see the same record.
        copied = logging.makeLogRecord(record.__dict__)
        copied.levelname = shown
        text = super().format(copied)
        # File names that are not UTF-8 can't be written otherwise.
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


#: Options.maxRepeatLogs.
DEFAULT_REPEATS = 4


class _RepeatLimit(logging.Filter):
    """Lets a line pass a limited number of times, and a warning once, unless the limit was set."""

    _REMEMBERED = 10_000  # different lines, so that a long run does not fill the memory

    def __init__(self) -> None:
        super().__init__()
        self.limit = DEFAULT_REPEATS
        self._seen: dict[tuple[int, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if len(self._seen) > self._REMEMBERED:
            self._seen.clear()
        key = (record.levelno, record.getMessage())
        count = self._seen[key] = self._seen.get(key, 0) + 1
        once = record.levelno == logging.WARNING and self.limit == DEFAULT_REPEATS
        return count <= (1 if once else self.limit)


_repeats = _RepeatLimit()


def limit_repeats(count: int) -> None:
    """Show one and the same line at most ``count`` times."""
    _repeats.limit = count


#: Options.logDir of the last model that had one; None if there was none.
directory: str | None = None
_file: logging.FileHandler | None = None


def write_to(place: str | None) -> None:
    """Write the lines from now on to ``poptorch.log`` in this directory as well; None stops it."""
    global directory, _file
    place = None if place is None else os.path.abspath(place)
    if place == directory:
        return
    made = None
    if place is not None:
        os.makedirs(place, exist_ok=True)
        made = logging.FileHandler(os.path.join(place, "poptorch.log"), encoding="utf-8")
        made.setFormatter(_Formatter(colour=False))
        made.addFilter(_RepeatsOfFile())
    for log in (logger, core_logger):
        if _file is not None:
            log.removeHandler(_file)
        if made is not None:
            log.addHandler(made)
    if _file is not None:
        _file.close()
    directory, _file = place, made


class _RepeatsOfFile(_RepeatLimit):
    """The same limit with a count of its own, or a line would count twice."""

    def filter(self, record: logging.LogRecord) -> bool:
        self.limit = _repeats.limit
        return super().filter(record)


def setLogLevel(level: str | int) -> None:
    """Set the level of the package's log.

    Args:
        level: ``TRACE_ALL``, ``TRACE``, ``DEBUG``, ``DEBUG_IR``, ``INFO``, ``WARN``, ``ERR`` or
            ``OFF``, or one of the older integers 0 (trace) to 4 (errors) and 6 (off).
    """
    if isinstance(level, int):
        if level not in _INTEGER_LEVELS:
            raise ValueError(f"Invalid log level integer {level}. Valid: {list(_INTEGER_LEVELS)}")
        level = _INTEGER_LEVELS[level]
    if not isinstance(level, str) or level not in LEVELS:
        raise ValueError(f"Unknown log level: {level}. Valid values are {', '.join(LEVELS)}")
    global shows_ir
    shows_ir = level in ("TRACE_ALL", "TRACE", "DEBUG_IR")
    logger.setLevel(LEVELS[level])
    core_logger.setLevel(LEVELS[level])


def _install() -> None:
    if not logger.handlers:
        handler = _destination(os.environ.get("POPTORCH_LOG_DEST", "stderr"))
        handler.setFormatter(_Formatter(sys.stdout.isatty() and sys.stderr.isatty()))
        handler.addFilter(_repeats)
        logger.addHandler(handler)
        core_logger.addHandler(handler)
    setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL", DEFAULT_LEVEL))


def _destination(name: str) -> logging.Handler:
    if name in ("stdout", "stderr"):
        return logging.StreamHandler(getattr(sys, name))
    try:
        return logging.FileHandler(name)
    except OSError as exc:
        sys.stderr.write(f"POPTORCH_LOG_DEST: cannot write {name}: {exc.strerror}; using stderr\n")
        return logging.StreamHandler(sys.stderr)


_install()
