# SPDX-License-Identifier: Apache-2.0
"""The directory of compiled programs from a shell.

tessera-cache list|verify|prune [directory]; the directory is that of POPTORCH_CACHE_DIR if none is
given."""

import argparse
import datetime
import os
import sys
from typing import Any

from poptorch import _core

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _size(text: str) -> int:
    """``500M`` in bytes."""
    number, unit = text, ""
    if text[-1:].upper() in _UNITS:
        number, unit = text[:-1], text[-1:].upper()
    try:
        value = float(number) * _UNITS[unit]
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 500M or 2G")
    return int(value)


def _line(entry: Any) -> str:
    if entry.problem:
        return str(entry.problem)
    used = datetime.datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M:%S")
    return f"{entry.key}  {entry.bytes:>12}  {used}  {entry.name}"


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code: 1 if there are bad entries, 2 for wrong arguments."""
    parser = argparse.ArgumentParser("tessera-cache", description="Programs that are kept.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("list", "what is there, the last used first: key, bytes, last use, name"),
        ("verify", "say which entries are not good"),
        ("prune", "remove entries that are not good, and those not used for longest"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("directory", nargs="?", default=os.environ.get("POPTORCH_CACHE_DIR"))
        if name == "prune":
            command.add_argument("--max-size", type=_size, required=True, help="such as 500M or 2G")
    chosen = parser.parse_args(arguments)
    if not chosen.directory:
        parser.error("no directory is given, and POPTORCH_CACHE_DIR is not set")
    directory = os.fsencode(chosen.directory)
    try:
        if chosen.command == "prune":
            for entry in _core.prune_cache(directory, chosen.max_size):
                print("removed", entry.path)
            return 0
        entries = _core.cache_entries(directory)
    except _core.Error as error:
        print(f"tessera-cache: {error}", file=sys.stderr)
        return 2
    bad = [entry for entry in entries if entry.problem]
    for entry in entries if chosen.command == "list" else bad:
        print(_line(entry))
    if chosen.command == "verify":
        print(f"{len(entries)} programs, {len(bad)} of them not good")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
