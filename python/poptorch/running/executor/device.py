# SPDX-License-Identifier: Apache-2.0
"""The program of an executor on its device: attaching, detaching, failures, random numbers."""

import os
import weakref

from poptorch.base.errors import Error, UnrecoverableError, createPoptorchError
from poptorch.base.logging import logger
from poptorch.base.partition import acquire
from poptorch.capture.state import lock as capture_lock
from poptorch.enums import ConnectionType
from poptorch.optim import Optimizer as PoptorchOptimizer
from poptorch.options.check import uses_ipu_model
from poptorch.running.executable import Executable
from poptorch.running.executor.optimizer import ExecutorOptimizer
from poptorch.weights.rng_state import read_rng, seed_rng, write_rng


class ExecutorDevice(ExecutorOptimizer):
    """Whether the program is on a device, and which."""

    def _take_device(self) -> None:
        """Hold a device, if the program needs one and has none yet."""
        if self._ipus and self._lease is None:
            options = self._options
            wanted = options.ipu_id if options.exists("ipu_id") else None
            self._lease = acquire(self._ipus, wanted)
            self._log_device("Attached to")
            _attached.add(self)

    def _release_device(self) -> None:
        if self._lease is not None:
            self._log_device("Detached from")
            self._lease.release()
            self._lease = None
        _attached.discard(self)

    def _log_device(self, what: str) -> None:
        lease = self._lease
        if lease is not None:
            last = lease.first + lease.count - 1
            logger.debug("%s device %d: IPUs %d to %d", what, lease.id, lease.first, last)

    def _reserve(self, ipus: int) -> None:
        """Remember what the program needs, and take it already if it is to be there meanwhile."""
        self._ipus = 0 if uses_ipu_model(self._options) else ipus
        if self._options.connection_type == ConnectionType.Always:
            self._take_device()

    def _leave_to_parent(self) -> None:
        """In a forked child: the device is the parent's, and the next call takes another one."""
        if self._is_attached and self._executable is not None:
            self._executable.ready = self._is_attached = False
            self._inherited = True
        self._lease = None

    def isAttachedToDevice(self) -> bool:
        """Whether the program is on a device, be it one that has failed."""
        return self._is_attached or self._failed

    def attachToDevice(self) -> None:
        """Put the program, its weights and its state on a device again."""
        assert self._options.connection_type != ConnectionType.Never, (
            "Trying to attach to an offline device"
        )
        with self._lock:
            self._compiled()
            if self.isAttachedToDevice():
                raise createPoptorchError("Device is already attached")
            if isinstance(self._fault, UnrecoverableError):
                self._check_fault()
            if self._inherited:
                self._fetch_state()
                self._inherited = False
            self._links.refresh()
            # Before the locks: another thread may have to run before there is a device.
            self._take_device()
            try:
                with self._exclusive() as executable:
                    self._on_device_attach(executable)
            except BaseException:
                self._release_device()
                raise

    def detachFromDevice(self) -> None:
        """Take the program off its device, with weights and state back on the host."""
        with self._lock:
            self._compiled()
            if self._failed:
                self._failed = False  # what it held is lost, there is nothing to fetch
                self._release_device()
                return
            if not self._is_attached:
                raise createPoptorchError("Device is not attached")
            with self._exclusive() as executable:
                self._fetch_state()
                executable.ready = False
                self._is_attached = False
                self._release_device()

    def _device_failed(self, executable: Executable, fault: Error) -> None:
        """Everything on the device is lost: the newest weights are those that the host has."""
        with self._lock, capture_lock, executable.exclusive():
            if self._executable is not executable:
                return
            if self._training:
                logger.warning(
                    "The device has failed: what the model has learnt since its weights were last "
                    "copied to the host is lost. After detachFromDevice() and attachToDevice() it "
                    "goes on from the host's weights."
                )
            executable.ready = False
            self._fault, self._failed, self._is_attached = fault, True, False
            self._sync.stale = False
            if isinstance(self._optimizer, PoptorchOptimizer):
                self._optimizer.ipu_state_is_dirty = False

    def _on_device_attach(self, executable: Executable) -> None:
        if self._fault is not None:
            self._start_again(executable)
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
        executable.program.attach(self._lease)
        # Last: from now on other threads may run it.
        executable.ready = True
        self._is_attached = True

    def _start_again(self, executable: Executable) -> None:
        """Set what the host has no copy of to what it was before the first step."""
        if self._device_optimizer is not None:
            self._device_optimizer.restart(self._optimizer)
        if self._seed is not None and self._rng_words is None:
            seed_rng(executable.program, self._seed)
        self._fault = None

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


#: Executors that hold devices.
_attached: "weakref.WeakSet[ExecutorDevice]" = weakref.WeakSet()


def _forget_devices() -> None:
    for executor in list(_attached):
        executor._leave_to_parent()
    _attached.clear()


os.register_at_fork(after_in_child=_forget_devices)
