# SPDX-License-Identifier: Apache-2.0
"""The consumer's side of a worker process: starts it, waits for it, notices its death, ends it."""

import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import threading
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext
from typing import Any

from poptorch.base.errors import createPoptorchError
from poptorch.data.elements import Form
from poptorch.data.payload import Payload
from poptorch.data.ring import PUBLISHED, STOP, Bell, Ring
from poptorch.data.worker import Plan, Surroundings, main
from poptorch.enums import SharingStrategy

#: Seconds that each way to end a worker is given before the next, harder one.
PATIENCE = 10.0

_CONTEXTS: dict[SharingStrategy, SpawnContext | ForkContext | ForkServerContext] = {
    SharingStrategy.SharedMemory: multiprocessing.get_context("spawn"),
    SharingStrategy.FileSystem: multiprocessing.get_context("spawn"),
    SharingStrategy.Fork: multiprocessing.get_context("fork"),
    SharingStrategy.ForkServer: multiprocessing.get_context("forkserver"),
}
_NOT_STARTED = "AsynchronousDataAccessor worker thread failed to start"


class WorkerEnded(Exception):
    """The worker has ended without being asked to; the text says how."""


class WorkerProcess:
    """A worker that fills a ring.

    Args:
        dataset: what the worker iterates over.
        strategy: how the dataset gets there.
        buffer_size: slots of the ring.
        settings: further fields of the worker's plan.
    """

    def __init__(
        self, dataset: Any, strategy: SharingStrategy, buffer_size: int, **settings: Any
    ) -> None:
        context = _CONTEXTS[strategy]
        forked = strategy == SharingStrategy.Fork
        self.ring = Ring(buffer_size)
        self._bell, their_bell = Bell(), Bell()
        self._reports, their_reports = context.Pipe(duplex=False)
        plan = Plan(
            ring=self.ring,
            bell=their_bell,
            consumer_bell=self._bell,
            reports=their_reports,
            payload=Payload(
                (Surroundings(), dataset), on_disk=strategy == SharingStrategy.FileSystem
            ),
            others=[self._reports] if forked else [],
            **settings,
        )
        self._process = context.Process(target=main, args=(plan,), name="poptorch-loader")
        with _interrupts_later():
            try:
                _start(self._process, strategy)
            except Exception as exc:
                for end in (self._bell, their_bell, self._reports, self.ring):
                    end.close()
                unpicklable = isinstance(exc, (pickle.PicklingError, TypeError, AttributeError))
                hint = " SharingStrategy.Fork needs no pickling." if unpicklable else ""
                raise createPoptorchError(
                    f"{_NOT_STARTED}: {type(exc).__name__}: {exc}.{hint}"
                ) from exc
            finally:
                their_reports.close()
                plan.payload.close()
            self._life = _life_of(self._process)
            held = [self._bell, their_bell, self.ring, self._reports]
            self._finalize = util.Finalize(
                self,
                _end,
                (self._process, self.ring, their_bell, held, self._life),
                exitpriority=10,
            )
        self.wake = their_bell.ring
        self._poll = select.poll()
        self._report_poll = select.poll()
        for poll, fd in ((self._poll, self._bell.fd), (self._report_poll, self._reports.fileno())):
            poll.register(fd, select.POLLIN)
            poll.register(self._life, select.POLLIN)

    def start(self) -> Form:
        """Wait for the first element; how it and all others look."""
        try:
            form = self._receive()
        except WorkerEnded as exc:
            self.stop()
            raise createPoptorchError(
                f"{_NOT_STARTED}: {exc}. Does the program start its work under "
                'if __name__ == "__main__"?'
            ) from None
        except BaseException:
            self.ring.words[STOP] = 1
            _signal(self._process, signal.SIGINT)  # the first element may take long
            self.stop()
            raise
        if isinstance(form, str):
            self.stop()
            raise createPoptorchError(f"{_NOT_STARTED}:\n{form}")
        return form

    def wait(self, number: int) -> None:
        """Return when the worker has written the entry with this number."""
        words = self.ring.words
        while words[PUBLISHED] <= number:
            self.wake()
            ready = {fd for fd, _ in self._poll.poll()}
            if self._bell.fd in ready:
                self._bell.wait()
            # What it has written before its end still counts.
            elif words[PUBLISHED] <= number:
                raise WorkerEnded(self._how_it_ended())

    def reports_until(self, number: int) -> list[Any]:
        """All reports up to that of the entry with this number."""
        reports = []
        while True:
            of_entry, report = self._receive()
            reports.append(report)
            if of_entry >= number:
                return reports

    def _receive(self) -> Any:
        while not self._reports.poll():
            if any(fd == self._life for fd, _ in self._report_poll.poll()):
                if self._reports.poll():
                    break
                raise WorkerEnded(self._how_it_ended())
        try:
            return self._reports.recv()
        except (EOFError, OSError):
            raise WorkerEnded(self._how_it_ended()) from None

    def _how_it_ended(self) -> str:
        self._process.join(1)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"the worker process was killed by {signal.Signals(-code).name}"
        return f"the worker process has ended with exit code {code}"

    def stop(self) -> None:
        """End the worker, if it runs, and free everything but the ring's memory."""
        self._finalize()


def stay_at_exit() -> None:
    """Keep a daemon thread that reads from a worker while Python exits from telling of it: the
    worker is ended by then, and so will be the thread."""
    if util.is_exiting():
        threading.Event().wait()


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C while a process is being started would leave it without an owner."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *details: came.append(details))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    if came and callable(before):
        before(*came[0])


def _life_of(process: Any) -> int:
    """A descriptor that is ready when the process has ended."""
    try:
        # Processes that the worker forks keep its pipes open, so that these say little.
        return os.pidfd_open(process.pid)
    except OSError:
        return os.dup(process.sentinel)


def _start(process: Any, strategy: SharingStrategy) -> None:
    if strategy == SharingStrategy.ForkServer:
        server = getattr(forkserver, "_forkserver", None)
        if getattr(server, "_preload_modules", None) == ["__main__"]:
            # Every worker would import torch again, if the program's main module does not.
            forkserver.set_forkserver_preload(["__main__", "poptorch"])
    if strategy == SharingStrategy.Fork:
        process.start()
        return
    # Until the worker has its handler, Ctrl-C would make it, or the server that forks it, print a
    # traceback from its imports.
    resource_tracker.ensure_running()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _signal(process: Any, number: int) -> None:
    if process.exitcode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _end(process: Any, ring: Ring, bell: Bell, held: list[Any], life: int) -> None:
    ring.words[STOP] = 1
    bell.ring()
    for thing in held:  # the worker has its own; a report that nobody reads ends with an error
        thing.close()
    try:
        process.join(PATIENCE)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if process.exitcode is not None:
                break
            _signal(process, number)
            process.join(PATIENCE)
    except BaseException:  # a second Ctrl-C: the user has waited long enough
        _signal(process, signal.SIGKILL)
        raise
    finally:
        os.close(life)
