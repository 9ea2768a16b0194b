# SPDX-License-Identifier: Apache-2.0
"""What the commands show: the partition, its devices and who is attached, from the core."""

import argparse
import importlib.machinery
import importlib.util
import pathlib
import pwd
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

#: Virtual IPUs present themselves as those of an IPU-M2000: four in a box, numbered from the top.
IPUS_PER_BOX = 4
ARCHITECTURE = "ipu2"
CLOCK_MHZ = 1330
TARGET = "Virtual"
HOST = "127.0.0.1"
MISSING = "N/A"


@cache
def core() -> Any:
    """poptorch._core, without the import of poptorch, which takes seconds."""
    if "poptorch._core" in sys.modules:
        return sys.modules["poptorch._core"]
    package = importlib.util.find_spec("poptorch")
    folders = list(package.submodule_search_locations or []) if package else []
    spec = importlib.machinery.PathFinder.find_spec("_core", folders)
    if spec is None:
        sys.exit("poptorch._core is not built or not installed")
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Attached:
    """An IPU that a process holds."""

    ipu: int
    pid: int
    user: str
    seconds: int
    command: str


@dataclass(frozen=True)
class Machine:
    """The partition at one moment."""

    name: str
    ipus: int
    attached: list[Attached]
    version: str

    @property
    def devices(self) -> list[tuple[int, int, int]]:
        """(id, first IPU, number of IPUs) of what programs can attach to."""
        return core().devices(self.ipus)


def look() -> Machine:
    """The partition as it is now."""
    directory = core().runtime_directory()
    held = [
        Attached(ipu, pid, _user(user), round(seconds), command)
        for ipu, pid, user, seconds, command in core().holders(directory)
    ]
    # A process that was told of a larger machine than this one may hold IPUs beyond its end.
    ipus = max([core().number_of_ipus(), *(one.ipu + 1 for one in held)])
    owner = _user(pathlib.Path(directory).stat().st_uid)
    return Machine(f"{owner}-{ipus}-ipus", ipus, held, _version())


def number_in_box(ipu: int) -> int:
    """The number that an IPU has in its box."""
    return IPUS_PER_BOX - 1 - ipu % IPUS_PER_BOX


def _user(number: int) -> str:
    if number < 0:
        return MISSING
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _version() -> str:
    # Of the package, not of PopTorch, whose number poptorch.__version__ is.
    from importlib import metadata

    try:
        return metadata.version("tessera-poptorch")
    except metadata.PackageNotFoundError:
        return MISSING


def run(main: Any) -> None:
    """Call ``main``; the errors of the core are one line."""
    try:
        main()
    except core().Error as error:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # nor can Python say so at its end


def device_of(machine: Machine, given: str, parser: argparse.ArgumentParser) -> Any:
    """The device with an id that was given in the command line."""
    if not given.isdecimal() or int(given) >= len(machine.devices):
        parser.error(
            f"there is no device {given}: partition {machine.name} has the devices 0 to "
            f"{len(machine.devices) - 1}"
        )
    return machine.devices[int(given)]
