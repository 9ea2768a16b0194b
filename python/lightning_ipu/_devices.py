# SPDX-License-Identifier: Apache-2.0
"""How many IPUs a value of ``devices=`` means."""

import os
import re
import warnings
from typing import Any


def auto_device_count() -> int:
    """What ``devices="auto"`` means: 4, or ``TESSERA_AUTO_DEVICES``."""
    text = os.environ.get("TESSERA_AUTO_DEVICES", "4")
    try:
        return checked(int(text))
    except ValueError:
        raise ValueError(
            f"TESSERA_AUTO_DEVICES={text!r}: the number of IPUs must be a power of 2"
        ) from None


def checked(count: int) -> int:
    """``count`` itself, if there can be as many IPUs."""
    if count < 1 or count & (count - 1):
        raise ValueError(
            f"`devices={count}`: the number of IPUs must be a power of 2 (1, 2, 4, 8, 16, ...)."
        )
    return count


def parse(devices: Any) -> int:
    """The number of IPUs of an int, "auto", -1, a list of ids, or one of these as text."""
    if isinstance(devices, str):
        text = devices.strip()
        if text == "auto":
            return auto_device_count()
        if re.fullmatch(r"-?\d+", text):
            return parse(int(text))
        if re.fullmatch(r"(\d+,)+\d*", text):
            return parse([int(part) for part in text.split(",") if part])
        raise ValueError(
            f"`devices={devices!r}` is no number of IPUs: give a power of 2, or 'auto'."
        )
    if isinstance(devices, (list, tuple)):
        if len(set(devices)) != len(devices) or not all(type(d) is int for d in devices):
            raise ValueError(f"`devices={devices!r}`: the ids of IPUs must be different integers.")
        return checked(len(devices))
    if type(devices) is not int:
        raise TypeError(f"`devices` must be an int, a str or a list of ints, got {devices!r}")
    if devices == -1:
        count = auto_device_count()
        warnings.warn(
            f"`devices=-1` means all IPUs, but virtual ones are made as they are needed: {count} "
            "are used, as with `devices='auto'`.",
            stacklevel=2,
        )
        return count
    return checked(devices)
