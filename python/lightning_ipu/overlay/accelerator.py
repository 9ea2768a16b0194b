# SPDX-License-Identifier: Apache-2.0
"""``IPUAccelerator``: the devices of ``Trainer(accelerator="ipu")``."""

import importlib.util
from typing import Any

import torch

from lightning_ipu import _devices

from .accelerator import Accelerator

_IPU_AVAILABLE = importlib.util.find_spec("poptorch") is not None


class IPUAccelerator(Accelerator):
    """Virtual IPUs; ``devices`` of them are replicas of one program in this process."""

    def setup_device(self, device: torch.device) -> None:
        """Load poptorch."""
        try:
            import poptorch  # noqa: F401
        except ImportError as exc:
            raise RuntimeError(f"accelerator='ipu' needs poptorch, which fails: {exc}") from exc

    def teardown(self) -> None:
        """Nothing to do."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """There are no counters."""
        return {}

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """The number of IPUs."""
        return _devices.parse(devices)

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """Names of the IPUs; no tensor lives on them as far as torch knows."""
        return [torch.device("ipu", i) for i in range(_devices.parse(devices))]

    @staticmethod
    def auto_device_count() -> int:
        """What ``devices="auto"`` means."""
        return _devices.auto_device_count()

    @staticmethod
    def is_available() -> bool:
        """Whether poptorch is installed."""
        return _IPU_AVAILABLE

    @staticmethod
    def name() -> str:
        """The value of ``accelerator=``."""
        return "ipu"

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        """Make the name known."""
        accelerator_registry.register(cls.name(), cls, description="Virtual IPUs")
