# SPDX-License-Identifier: Apache-2.0
"""``gc-reset``: resets devices. A program that is attached to one gets a poptorch.RecoverableError
with the action IPU_RESET from its next call, and goes on after a detach and an attach."""

import argparse

from tessera_tools import machine as _machine
from tessera_tools.machine import Machine


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser("gc-reset", description=__doc__)
    parser.add_argument("-d", "--device-id", metavar="ID", help="the device; else all IPUs")
    given = parser.parse_args()
    _machine.run(lambda: _reset(given, parser))


def _reset(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    machine = _machine.look()
    if given.device_id is not None:
        device = _machine.device_of(machine, given.device_id, parser)
        name = f"device {given.device_id}"
    else:
        device, name = (-1, 0, machine.ipus), f"partition {machine.name}"
    if device[2] > 0:
        _machine.core().reset_device(_machine.core().runtime_directory(), device)
    print(f"{name}: {device[2]} IPU(s) reset{_users(machine, device)}")


def _users(machine: Machine, device: tuple[int, int, int]) -> str:
    _, first, count = device
    pids = {one.pid for one in machine.attached if first <= one.ipu < first + count}
    return f", in use by process {', '.join(map(str, sorted(pids)))}" if pids else ""


if __name__ == "__main__":
    main()
