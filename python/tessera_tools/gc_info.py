# SPDX-License-Identifier: Apache-2.0
"""``gc-info``: the devices that programs can attach to."""

import argparse
import json
from datetime import datetime, timedelta

from tessera_tools import machine as _machine
from tessera_tools.machine import HOST, MISSING, TARGET, Machine, number_in_box


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser("gc-info", description=__doc__)
    parser.add_argument("-l", "--list-devices", action="store_true", help="all devices")
    parser.add_argument("-d", "--device-id", metavar="ID", help="the device to tell about")
    parser.add_argument("-i", "--device-info", action="store_true", help="all about the device")
    parser.add_argument("--json", action="store_true", help="as JSON")
    given = parser.parse_args()
    if not given.list_devices and given.device_id is None:
        parser.error("say what to show: -l, or -d ID --device-info")
    _machine.run(lambda: _show(given, parser))


def _show(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    machine = _machine.look()
    if given.list_devices:
        if given.json:
            keys = ("id", "first_ipu", "ipus")
            listed = [dict(zip(keys, device, strict=True)) for device in machine.devices]
            print(json.dumps(listed, indent=2))
        else:
            print("\n".join(device_lines(machine)))
    if given.device_id is not None:
        device = _machine.device_of(machine, given.device_id, parser)
        facts = device_info(machine, device)
        if given.json:
            print(json.dumps(facts, indent=2))
        else:
            print("Device Info:")
            print("\n".join(f"  {name}: {value}" for name, value in facts.items()))


def device_lines(machine: Machine) -> list[str]:
    """A line per device; those of several IPUs have a line per IPU below theirs."""
    lines = []
    for number, first, count in machine.devices:
        ipus = [f"IPU-M host: [{HOST}], IPU#: [{number_in_box(i)}]" for i in range(machine.ipus)]
        if count == 1:
            lines.append(f"-+- Id: [{number}], target: [{TARGET}], {ipus[first]}")
            continue
        lines.append(f"-+- Id: [{number}], target: [Multi IPU]")
        lines += [f" |--- Id: [{ipu}], {ipus[ipu]}" for ipu in range(first, first + count)]
    return lines


def device_info(machine: Machine, device: tuple[int, int, int]) -> dict[str, str]:
    """What is known of a device, by name."""
    number, first, count = device
    users = [one for one in machine.attached if first <= one.ipu < first + count]
    facts = {
        "board type": TARGET,
        "clock": f"{_machine.CLOCK_MHZ}MHz",
        "driver version": machine.version,
        "id": str(number),
        "ipu architecture": _machine.ARCHITECTURE,
        "ipu power": MISSING,
        "number of ipus": str(count),
        "target": TARGET if count == 1 else "Multi IPU",
    }
    if count == 1:
        facts["board ipu index"] = str(number_in_box(first))
    if users:
        begun = datetime.now() - timedelta(seconds=max(one.seconds for one in users))
        facts["attached since"] = begun.strftime("%Y-%m-%d %H:%M:%S")
        facts["user executable"] = _joined(one.command for one in users)
        facts["user name"] = _joined(one.user for one in users)
        facts["user process id"] = _joined(str(one.pid) for one in users)
    return dict(sorted(facts.items()))


def _joined(values: object) -> str:
    return ", ".join(dict.fromkeys(values))  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
