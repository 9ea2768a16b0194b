# SPDX-License-Identifier: Apache-2.0
"""The weights of an executor on their way to the device and back."""

from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.capture.state import lock as capture_lock
from poptorch.options import Options
from poptorch.running.executable import Executable
from poptorch.running.executor.state import ExecutorState
from poptorch.running.host_calls import in_host_call
from poptorch.weights import doors, links
from poptorch.weights.state import TensorWatch, WeightSync, wrap_module


class ExecutorWeights(ExecutorState):
    """Which side has the newest weights, and copies between them."""

    def __init__(self, model: torch.nn.Module, options: Options | None, training: bool) -> None:
        super().__init__(model, options, training)
        self._sync = WeightSync(self._fetch_stale_weights)
        self._watch = TensorWatch(self._user_model, self._sync)
        self._links = links.Links()
        links.follow(self)

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Fetch the weights if the program has changed them; says whether it had."""
        if capture_lock.acquire(blocking=not in_host_call()):
            capture_lock.release()  # no model is captured: its tensors have values
        return self._sync.refresh()

    def copyWeightsToHost(self) -> None:
        """Fetch the weights from the device."""
        self._check_fault()
        with self._exclusive() as executable:
            executable.mover.download()
            self._sync.fetched()

    def _fetch_stale_weights(self) -> None:
        executable = self._executable
        if executable is None:
            return  # destroyed by another thread, which has fetched them
        # A function that a program calls has to do with what is there: others may wait for the end
        # of the run that it is a part of.
        if not capture_lock.acquire(blocking=not in_host_call()):
            return
        try:
            with executable.exclusive():
                if self._sync.stale and self._executable is executable:
                    self.copyWeightsToHost()
        finally:
            capture_lock.release()

    def copyWeightsToDevice(self) -> None:
        """Send the weights to the device; what was trained since the last fetch is lost."""
        self._compiled()
        self._links.refresh()
        with self._exclusive() as executable:
            self._upload_weights(executable)

    def copyWeightsToDeviceIfNeeded(self) -> bool:
        """Send the weights if the host has the newest ones, which the program may not have seen;
        says whether it did. Trained weights that were not fetched yet stay as they are."""
        if self._sync.stale:
            return False
        self.copyWeightsToDevice()
        return True

    def _upload_weights(self, executable: Executable) -> None:
        self._upload(executable)  # which may refuse: what was trained is still to be fetched then
        self._sync.fetched()

    def copyNamedBuffersToDevice(self) -> None:
        """Send the buffers listed in ``Options.updatableNamedBuffers`` to the device."""
        self._compiled()
        names = self._options._Popart.options.get("updatableNamedBuffers")
        if not names:
            raise createPoptorchError("No named buffers marked as updatable")
        with self._exclusive() as executable:
            executable.mover.upload(names)

    def load_state_dict(self, state_dict: dict[str, torch.Tensor], strict: bool = True) -> Any:
        """Load weights into the model, and send them to the device if it is attached."""
        with self._lock:
            result = self._user_model.load_state_dict(state_dict, strict)
            if self._is_attached:
                self.copyWeightsToDevice()
            return result

    def _wrap(self) -> None:
        doors.install()
        with capture_lock:
            self._watch.check()
            self._watch.start()
            wrap_module(self._user_model, self)
            self._sync.retired = False
            links.announce(self, self._user_model)

    def _upload(self, executable: Executable) -> None:
        """Send the weights; others are refreshed before the program is held, never inside."""
        seen = self._links.versions()
        if executable.mover.upload() and self._training:
            self._watch.start()  # of tensors that have taken the place of others
        # Last, or another thread would run before the weights are there.
        self._links.taken_over(seen)
