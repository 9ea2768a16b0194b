# SPDX-License-Identifier: Apache-2.0
"""Taking IPUs of the partition for a program, and waiting for them. The core keeps the locks."""

import gc
import os
import time
from collections import Counter

from poptorch import _core
from poptorch.base.device import number_of_ipus
from poptorch.base.errors import CPP_ERROR_TYPE, Error, raise_core_error
from poptorch.base.logging import logger

_POLL_SECONDS = 0.05


def acquire(count: int, device_id: int | None = None) -> _core.Lease:
    """Take a device with ``count`` IPUs, or the one with that id.

    Raises if there is none, and if none is free, unless POPTORCH_WAIT_FOR_IPU is set.
    """
    try:
        wanted = _wanted(count, device_id)
        directory = _core.runtime_directory()
        lease = _core.acquire(directory, wanted)
        if lease is None:
            # Executors that nobody uses hold theirs until they are collected.
            gc.collect()
            lease = _core.acquire(directory, wanted)
        if lease is None and not _waits():
            raise _error(
                f"Failed to acquire {_named(count, device_id)}: {_in_use(directory, wanted)}. "
                "Detach a model from its device (detachFromDevice() or destroy()), set the "
                "environment variable POPTORCH_WAIT_FOR_IPU=1 to wait, or TESSERA_IPUS to a larger "
                "number."
            )
        return lease or _wait(directory, wanted, _named(count, device_id))
    except _core.Error as error:
        raise_core_error(error)


def _wait(directory: str, wanted: list[tuple[int, int, int]], name: str) -> _core.Lease:
    logger.info("Waiting for %s: %s", name, _in_use(directory, wanted))
    while True:
        time.sleep(_POLL_SECONDS)
        lease = _core.acquire(directory, wanted)
        if lease is not None:
            return lease


def _wanted(count: int, device_id: int | None) -> list[tuple[int, int, int]]:
    """The devices that would do."""
    total = number_of_ipus()
    devices = _core.devices(total)
    if device_id is None:
        found = [device for device in devices if device[2] == count]
        if not found:
            raise _error(
                f"Failed to acquire {count} IPU(s): the partition has {total}. Set the "
                f"environment variable TESSERA_IPUS={count} to enlarge it."
            )
        return found
    if not 0 <= device_id < len(devices):
        raise _error(
            f"There is no device with the id {device_id}: a partition of {total} IPUs has the "
            f"devices 0 to {len(devices) - 1} (gc-info -l lists them)."
        )
    size = devices[device_id][2]
    if size < count:
        raise _error(
            f"Expected at least replication factor * used IPUs ({count}), but the device with the "
            f"id {device_id} has {size}. gc-info -l lists the devices and their IPUs."
        )
    if size > count:
        logger.warning(
            "Device %d has %d IPUs, and the model uses %d: the others are idle.",
            device_id,
            size,
            count,
        )
    return [devices[device_id]]


def _in_use(directory: str, wanted: list[tuple[int, int, int]]) -> str:
    """Who has the IPUs."""
    ipus = {ipu for _, first, count in wanted for ipu in range(first, first + count)}
    held = [holder for holder in _core.holders(directory) if holder[0] in ipus]
    names = {pid: command for _, pid, _, _, command in held}
    counts = Counter(pid for _, pid, _, _, _ in held)
    users = [
        f"{number} by this process"
        if pid == os.getpid()
        else f"{number} by process {pid} ({names[pid]})"
        for pid, number in counts.most_common()
    ]
    return f"of {len(ipus)} IPU(s) {len(held)} are attached: {', '.join(users)}"


def _waits() -> bool:
    return os.environ.get("POPTORCH_WAIT_FOR_IPU", "0") not in ("", "0")


def _named(count: int, device_id: int | None) -> str:
    return f"{count} IPU(s)" if device_id is None else f"the device with the id {device_id}"


def _error(text: str) -> Error:
    return Error(text, type=CPP_ERROR_TYPE)
