# SPDX-License-Identifier: Apache-2.0
"""Questions about devices. Virtual IPUs are always there and present themselves as Mk2."""

import os

from poptorch.base.errors import raise_core_error

_VIRTUAL_IPU_VERSION = 2


def model_requested() -> bool:
    """Whether the environment asks for the IPU Model."""
    names = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")
    return any(os.environ.get(name, "0") not in ("", "0") for name in names)


def number_of_ipus() -> int:
    """How many virtual IPUs the machine has."""
    from poptorch import _core  # poptorch_core says it if it is missing

    try:
        return _core.number_of_ipus()
    except _core.Error as error:
        raise_core_error(error)


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether a device with ``num_ipus`` IPUs exists; False if the IPU Model is asked for."""
    return not model_requested() and 0 < num_ipus <= number_of_ipus()


def ipuHardwareVersion() -> int:
    """The architecture that virtual IPUs present themselves as: 2."""
    assert ipuHardwareIsAvailable(), "No IPU hardware available on this system"
    return _VIRTUAL_IPU_VERSION
