# SPDX-License-Identifier: Apache-2.0
"""The optimizer of an executor: its values and its state on the device."""

from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.capture.state import lock as capture_lock
from poptorch.enums import MeanReductionStrategy
from poptorch.optim import SGD
from poptorch.optim import Optimizer as PoptorchOptimizer
from poptorch.optimizer.program import AttributeWatch
from poptorch.optimizer.table import Settings, needs_running_mean, settings_of, warn_of_subclass
from poptorch.options import Options
from poptorch.running.executor.weights import ExecutorWeights


class ExecutorOptimizer(ExecutorWeights):
    """Values and state of the optimizer, sent and fetched."""

    def __init__(
        self, model: torch.nn.Module, options: Options | None, training: bool, optimizer: Any
    ) -> None:
        super().__init__(model, options, training)
        self._optimizer: Any = None
        self._attribute_watch = AttributeWatch()
        if training:
            self._adopt_optimizer(_default_optimizer(model) if optimizer is None else optimizer)
            self._wrap()

    def setOptimizer(self, optimizer: Any) -> None:
        """Use the values of ``optimizer`` from the next call on; nothing is compiled again."""
        if not self._training:
            raise createPoptorchError("setOptimizer is only for training models")
        with self._lock:
            self._set_optimizer(optimizer)

    def _set_optimizer(self, optimizer: Any) -> None:
        settings = self._settings(optimizer)
        if self._device_optimizer is not None:
            self._check_strategy(optimizer)
            self._device_optimizer.check(optimizer, settings)
        if optimizer is not self._optimizer:
            self._read_optim_state_dict_if_needed()
            if isinstance(self._optimizer, PoptorchOptimizer):
                self._optimizer._fetch_state = None
            self._adopt_optimizer(optimizer)
        self._attribute_watch(optimizer, self._options._relax_optimizer_checks)
        if self._device_optimizer is not None and self._is_attached:
            self._links.refresh()
            with self._exclusive():
                self._send(settings)
                self._write_optim_state_dict_if_needed()

    def _send(self, settings: Settings) -> None:
        assert self._device_optimizer is not None
        self._device_optimizer.send(settings)
        self._reminders.sent(self._optimizer)

    def _settings(self, optimizer: Any = None) -> Settings:
        return settings_of(
            self._optimizer if optimizer is None else optimizer,
            bool(self._options._Popart.options.get("automaticLossScalingSettings.enabled")),
        )

    def _check_strategy(self, optimizer: Any) -> None:
        strategy = self._options.Training.meanAccumulationAndReplicationReductionStrategy
        if needs_running_mean(optimizer) and strategy != MeanReductionStrategy.Running:
            raise ValueError(
                "Invalid optimizer: the new optimizer would require changing "
                "meanAccumulationAndReplicationReductionStrategy from "
                f"{strategy} to {MeanReductionStrategy.Running}, but the model has been compiled."
            )

    def _adopt_optimizer(self, optimizer: Any) -> None:
        self._settings(optimizer)
        if self._executable is None and needs_running_mean(optimizer):
            # The options are this executor's own: nobody else sees the change.
            values = self._options.Training._values
            values["meanAccumulationAndReplicationReductionStrategy"] = (
                MeanReductionStrategy.Running
            )
        self._attribute_watch(optimizer, self._options._relax_optimizer_checks)
        warn_of_subclass(optimizer)
        self._optimizer = optimizer
        if isinstance(optimizer, PoptorchOptimizer):
            optimizer._fetch_state = self._read_optim_state_dict_if_needed

    def _read_optim_state_dict_if_needed(self) -> None:
        optimizer = self._optimizer
        if self._device_optimizer is None or not isinstance(optimizer, PoptorchOptimizer):
            return
        if optimizer.ipu_state_is_dirty:
            with self._exclusive():
                optimizer.set_state_dict(self._device_optimizer.read())
                optimizer.host_state_is_dirty = False

    def _write_optim_state_dict_if_needed(self) -> None:
        optimizer = self._optimizer
        if self._device_optimizer is None or not isinstance(optimizer, PoptorchOptimizer):
            return
        if optimizer.host_state_is_dirty:
            settings = self._settings()
            self._device_optimizer.check(optimizer, settings)
            # State and weights belong together: what the host has of both goes to the device.
            with self._exclusive() as executable:
                self._sync.refresh()
                self._upload_weights(executable)
                self._device_optimizer.write(optimizer.get_state_dict())
                self._send(settings)
                optimizer.host_state_is_dirty = False

    def copyOptimizerStateToHost(self, updates: int) -> None:
        """Fetch the state of an optimizer of torch's, in torch's form; of ours, in its own.

        Args:
            updates: weight updates so far, for classes of torch that count them.
        """
        self._check_fault()
        if self._device_optimizer is None or isinstance(self._optimizer, PoptorchOptimizer):
            self._read_optim_state_dict_if_needed()
        else:
            with self._exclusive():
                self._device_optimizer.read_torch(self._optimizer, updates)

    def copyOptimizerStateToDevice(self) -> None:
        """Send the state that the optimizer has on the host, of torch's or ours."""
        if self._device_optimizer is None or isinstance(self._optimizer, PoptorchOptimizer):
            self._links.refresh()
            with capture_lock:
                self._write_optim_state_dict_if_needed()
        else:
            with self._exclusive():
                self._device_optimizer.write_torch(self._optimizer)


def _default_optimizer(model: torch.nn.Module) -> SGD:
    try:
        return SGD(model.parameters(), lr=0.01)
    except ValueError as error:
        error.add_note(
            f"{type(model).__name__} has no parameters to train. Layers in a Python list or dict "
            "are not part of a model: use torch.nn.ModuleList or torch.nn.ModuleDict."
        )
        raise
