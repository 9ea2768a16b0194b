# SPDX-License-Identifier: Apache-2.0
"""The program of an executor on its device: attaching, detaching, random numbers."""

from poptorch.base.errors import createPoptorchError
from poptorch.enums import ConnectionType
from poptorch.optim import Optimizer as PoptorchOptimizer
from poptorch.running.executable import Executable
from poptorch.running.executor.optimizer import ExecutorOptimizer
from poptorch.weights.rng_state import read_rng, seed_rng, write_rng


class ExecutorDevice(ExecutorOptimizer):
    """Whether the program is on a device."""

    def isAttachedToDevice(self) -> bool:
        """Whether the program is on a device."""
        return self._is_attached

    def attachToDevice(self) -> None:
        """Put the program, its weights and its state on a device again."""
        assert self._options.connection_type != ConnectionType.Never, (
            "Trying to attach to an offline device"
        )
        with self._lock:
            self._compiled()
            if self._is_attached:
                raise createPoptorchError("Device is already attached")
            self._links.refresh()
            with self._exclusive() as executable:
                self._on_device_attach(executable)

    def detachFromDevice(self) -> None:
        """Take the program off its device, with weights and state back on the host."""
        with self._lock:
            self._compiled()
            if not self._is_attached:
                raise createPoptorchError("Device is not attached")
            with self._exclusive() as executable:
                self._fetch_state()
                executable.ready = False
                self._is_attached = False

    def _on_device_attach(self, executable: Executable) -> None:
        self._upload_weights(executable)
        if self._device_optimizer is not None:
            settings = self._settings()
            self._device_optimizer.check(self._optimizer, settings)
            self._device_optimizer.forget()
            self._send(settings)
            optimizer = self._optimizer
            if isinstance(optimizer, PoptorchOptimizer) and optimizer.has_state():
                optimizer.host_state_is_dirty = True
            self._write_optim_state_dict_if_needed()
        if self._rng_words is not None:
            self._rng_to_device(self._rng_words)
        # Last: from now on other threads may run it.
        executable.ready = True
        self._is_attached = True

    def _fetch_state(self) -> None:
        """Bring what the program has changed back to the host."""
        if self._training:
            self._sync.refresh()
            self._read_optim_state_dict_if_needed()
        self._rng_words = self._rng_from_device()

    # Random numbers ------------------------------------------------------------------------------

    def _rng_from_device(self) -> list[int] | None:
        if self._executable is None or self._seed is None:
            return None
        with self._exclusive() as executable:
            return [self._seed, *read_rng(executable.program)]

    def _rng_to_device(self, words: list[int]) -> None:
        with self._exclusive() as executable:
            self._seed = words[0]
            if len(words) == 1:
                seed_rng(executable.program, words[0])
            else:
                write_rng(executable.program, words[1:])

    @property
    def rng_state(self) -> list[int] | None:
        """The random state of the device: the seed, then 32-bit words."""
        self._compiled()
        return self._rng_from_device() if self._is_attached else self._rng_words

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._rng_words = list(state)
        if self._executable is not None and self._is_attached:
            self._rng_to_device(self._rng_words)
