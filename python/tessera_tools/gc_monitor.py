# SPDX-License-Identifier: Apache-2.0
"""``gc-monitor``: the IPUs of the partition, and the processes that are attached to them."""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from tessera_tools import machine as _machine
from tessera_tools.machine import HOST, IPUS_PER_BOX, MISSING, Machine, number_in_box

# (heading, width) of the columns.
_CARDS = (
    ("IPU-M", 13),
    ("Serial", 20),
    ("IPU-M SW", 8),
    ("Server version", 14),
    ("ICU FW", 10),
    ("Type", 7),
    ("ID", 4),
    ("IPU#", 6),
    ("Routing", 7),
)
_PROCESS = (("PID", 8), ("Command", 82), ("Time", 8), ("User", 12))
_IPU = (("ID", 4), ("Clock", 10), ("Temp", 8))
_BOARD = (("Temp", 8), ("Power", 8))
_NAME_WIDTH = 15  # of the box with the command's name


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser("gc-monitor", description=__doc__)
    parser.add_argument("-j", "--json", action="store_true", help="as JSON")
    parser.add_argument(
        "-r",
        "--refresh",
        nargs="?",
        type=_period,
        const=2.0,
        metavar="SECONDS",
        help="show it again and again, every 2 seconds or so many",
    )
    parser.add_argument("--no-card-info", action="store_true", help="only the attached processes")
    given = parser.parse_args()
    _machine.run(lambda: _show(given))


def _show(given: argparse.Namespace) -> None:
    while True:
        machine = _machine.look()
        if given.json:
            text = json.dumps(as_json(machine), indent=None if given.refresh else 2)
        else:
            text = "\n".join(as_tables(machine, cards=not given.no_card_info))
        if given.refresh and not given.json and sys.stdout.isatty():
            print("\033[H\033[2J", end="")
        print(text, flush=True)
        if not given.refresh:
            return
        time.sleep(given.refresh)


def as_json(machine: Machine) -> dict[str, Any]:
    """What the tables say."""
    return {
        "partition": {"name": machine.name, "state": "active", "ipus": machine.ipus},
        "cards": [
            {
                "ipu_m": HOST,
                "server_version": machine.version,
                "type": _machine.TARGET,
                "id": ipu,
                "ipu": number_in_box(ipu),
            }
            for ipu in range(machine.ipus)
        ],
        "processes": [
            {
                "pid": one.pid,
                "command": one.command,
                "seconds": one.seconds,
                "user": one.user,
                "id": one.ipu,
                "clock_mhz": _machine.CLOCK_MHZ,
            }
            for one in machine.attached
        ],
    }


def as_tables(machine: Machine, cards: bool = True) -> list[str]:
    """The lines of the two tables."""
    lines = _card_table(machine) if cards else []
    lines += _process_table(machine)
    return lines


def _card_table(machine: Machine) -> list[str]:
    widths = [width for _, width in _CARDS]
    rest = sum(widths) + len(widths) - 2 - _NAME_WIDTH
    title = (
        f"Partition: {machine.name} [active] has {machine.ipus} reconfigurable "
        f"IPU{'' if machine.ipus == 1 else 's'}"
    )
    lines = [
        _rule([_NAME_WIDTH, rest]),
        _line(["gc-monitor", title], [_NAME_WIDTH, rest]),
        _rule(widths),
        _line([heading for heading, _ in _CARDS], widths),
        _rule(widths),
    ]
    for ipu in range(machine.ipus):
        cells = [HOST, MISSING, "", machine.version, MISSING, _machine.TARGET, str(ipu)]
        lines.append(_line([*cells, str(number_in_box(ipu)), MISSING], widths))
        if (ipu + 1) % IPUS_PER_BOX == 0 or ipu + 1 == machine.ipus:
            lines.append(_rule(widths))
    return lines


def _process_table(machine: Machine) -> list[str]:
    rows = [
        [
            str(one.pid),
            one.command,
            _duration(one.seconds),
            one.user,
            str(one.ipu),
            f"{_machine.CLOCK_MHZ}MHz",
            *[MISSING] * 3,
        ]
        for one in machine.attached
    ]
    groups = (_PROCESS, _IPU, _BOARD)
    columns = [column for group in groups for column in group]
    widths = [width for _, width in columns]
    group_widths = [sum(width for _, width in group) + len(group) - 1 for group in groups]
    if not rows:
        whole = sum(widths) + len(widths) - 1
        text = f"No processes are attached in partition {machine.name}"
        return [_rule([whole]), _line([text], [whole]), _rule([whole])]
    title = f"Attached processes in partition {machine.name}"
    return [
        _rule(group_widths),
        _line([title, "IPU", "Board"], group_widths),
        _rule(widths),
        _line([heading for heading, _ in columns], widths),
        _rule(widths),
        *(_line(row, widths) for row in rows),
        _rule(widths),
    ]


def _rule(widths: Iterable[int]) -> str:
    return "+" + "+".join("-" * width for width in widths) + "+"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "|" + "|".join(map(_cell, cells, widths)) + "|"


def _cell(text: str, width: int) -> str:
    """Text in the middle of a column; it gives way on the right."""
    text = text if len(text) <= width else text[: width - 1] + "~"
    left = (width - len(text)) // 2
    return " " * left + text + " " * (width - len(text) - left)


def _duration(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m{seconds % 60:02}s" if minutes else f"{seconds}s"


def _period(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("it has to be more than 0")
    return value


if __name__ == "__main__":
    main()
