# SPDX-License-Identifier: Apache-2.0
"""``IPUAccelerator``: the devices of ``Trainer(accelerator="ipu")``."""

from typing import Any

import torch

from lightning_ipu._devices import Devices

from .accelerator import Accelerator

_IPU_AVAILABLE = Devices.is_available()


class IPUAccelerator(Devices, Accelerator):
    """Virtual IPUs; ``devices`` of them are replicas of one program in this process."""

    def setup_device(self, device: torch.device) -> None:
        """Load poptorch."""
        try:
            import poptorch  # noqa: F401
        except ImportError as exc:
            raise RuntimeError(f"accelerator='ipu' needs poptorch, which fails: {exc}") from exc

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """There are no counters."""
        return {}

    @staticmethod
    def is_available() -> bool:
        """Whether poptorch is installed."""
        return _IPU_AVAILABLE
