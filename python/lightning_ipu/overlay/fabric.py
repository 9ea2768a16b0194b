# SPDX-License-Identifier: Apache-2.0
"""Fabric on IPUs: models run as inference programs. A training loop that calls ``backward`` and
``step`` itself cannot be one program, and is refused."""

from typing import Any, NoReturn

import torch

from lightning_ipu._devices import Devices
from lightning_ipu._options import generated_options

from ..accelerators.accelerator import Accelerator
from .single_device import SingleDeviceStrategy

PRECISIONS = ("32-true", "16-true")
_REFUSAL = (
    "Fabric(accelerator='ipu') runs models for inference only: a loop that calls backward() and "
    "optimizer.step() cannot be one compiled program. Train with "
    "Trainer(accelerator='ipu') or poptorch.trainingModel()."
)


class IPUAccelerator(Devices, Accelerator):
    """Virtual IPUs."""

    def setup_device(self, device: torch.device) -> None:
        """Nothing to do."""


class _Compiled(torch.nn.Module):
    """A module whose calls run its program, one per shape of arguments and mode."""

    def __init__(self, module: torch.nn.Module, replicas: int) -> None:
        super().__init__()
        self.module = module
        self._replicas = replicas
        self._executors: dict[Any, Any] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        import poptorch

        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        kinds = [(x.shape, x.dtype) if isinstance(x, torch.Tensor) else x for x in leaves]
        key = (str(kinds), tuple(kwargs), self.module.training)
        executor = self._executors.get(key)
        if executor is None:
            options = generated_options(self._replicas, 1, 1)
            executor = self._executors[key] = poptorch.inferenceModel(self.module, options)
        elif executor.isCompiled():
            executor.copyWeightsToDevice()  # the loop may have loaded others
        if not executor.isAttachedToDevice():
            # Together they may need more IPUs than there are.
            for other in self._executors.values():
                if other.isCompiled() and other.isAttachedToDevice():
                    other.detachFromDevice()
        with torch.inference_mode(False):
            return executor(*args, **kwargs)


class IPUStrategy(SingleDeviceStrategy):
    """Replicas on IPUs, in one process.

    Args:
        replicas: parts that every batch is cut into.
    """

    def __init__(self, replicas: int = 1) -> None:
        super().__init__(device="cpu")
        self._replicas = replicas

    def setup_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module as a program."""
        return _Compiled(module, self._replicas)

    def setup_module_and_optimizers(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        raise NotImplementedError(_REFUSAL)

    def setup_optimizer(self, optimizer: Any) -> NoReturn:
        """Refused."""
        raise NotImplementedError(_REFUSAL)

    def backward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        raise NotImplementedError(_REFUSAL)
