# SPDX-License-Identifier: Apache-2.0
"""What both kinds of ``IPUAccelerator`` say of devices: how many IPUs ``devices=`` means, and what
they are called."""

import importlib.util
import os
import re
import warnings
from typing import Any

import torch


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


class Devices:
    """The part of an accelerator that Lightning asks before there is one."""

    def teardown(self) -> None:
        """Nothing to do."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """The number of IPUs."""
        return parse(devices)

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """Names of the IPUs; no tensor lives on them as far as torch knows."""
        return [torch.device("ipu", i) for i in range(parse(devices))]

    @staticmethod
    def auto_device_count() -> int:
        """What ``devices="auto"`` means."""
        return auto_device_count()

    @staticmethod
    def is_available() -> bool:
        """Whether poptorch is installed."""
        return importlib.util.find_spec("poptorch") is not None

    @staticmethod
    def name() -> str:
        """The value of ``accelerator=``."""
        return "ipu"

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        """Make the name known."""
        accelerator_registry.register(cls.name(), cls, description="Virtual IPUs")
