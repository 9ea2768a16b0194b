# SPDX-License-Identifier: Apache-2.0
"""``AsynchronousDataAccessor``: prepares batches in a process of its own."""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import torch

from poptorch.base.errors import RecoverableError, createPoptorchError
from poptorch.base.naming import found_in
from poptorch.capture import structure
from poptorch.data.elements import ROWS_OF_FIRST, Form, SkeletonReader
from poptorch.data.process import WorkerEnded, WorkerProcess, stay_at_exit
from poptorch.data.ring import PUBLISHED, RELEASED, SLEEPING, WANTED, WHOLE
from poptorch.enums import SharingStrategy

_FETCHER_ERROR = "An error occurred in the data fetcher"


class WorkerDied(RecoverableError, AssertionError):
    """The worker process has ended, such as for want of memory; the next epoch starts another one.

    An ``AssertionError`` as well, like all that ends an iteration.
    """


def member_of(kind: type[Enum], value: Any) -> Any:
    """A member of an enumeration, which configuration files give as a number or by its name."""
    if isinstance(value, str):
        name = value.removeprefix("poptorch.").removeprefix(f"{kind.__name__}.")
        if name in kind.__members__:
            return kind[name]
    elif value in list(kind):
        return kind(value)
    names = ", ".join(kind.__members__)
    raise ValueError(f"Expected a poptorch.{kind.__name__} ({names}), got {value!r}")


class Combining:
    """What an accessor asks of a ``poptorch.DataLoader``, which combines micro-batches."""

    _accessor: "AsynchronousDataAccessor | None" = None
    _combined_batch_size: int | None
    _drops_last: bool
    _short_groups: bool  # whether batches of unknown size are combined, the last short


@found_in("poptorch.dataloader")
class AsynchronousDataAccessor:
    """Reads a dataset in a worker process, into memory shared with this one, ahead of its use.

    The tensors that it returns are that memory: they stay valid until the next batch is asked for.

    Args:
        dataset: anything that can be iterated over, or a ``poptorch.DataLoader`` in Sync mode. Its
            elements are tensors, flat lists, tuples or dicts of tensors, or of a type given to
            :func:`registerCustomArgParser`; all have the shapes and types of the first one.
        buffer_size: number of batches that the shared memory holds.
        miss_sleep_time_in_ms: accepted for compatibility; nothing here sleeps.
        load_indefinitely: whether the worker goes on to the next epoch by itself.
        early_preload: whether the worker loads more than one element before the first ``iter()``.
        sharing_strategy: how the worker is started and gets the dataset; a member or its name.
        rebatched_size: rows of the returned batches, put together from smaller elements.
    """

    _worker: WorkerProcess | None = None
    _death: str | None = None  # how the worker ended

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy | str = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
    ) -> None:
        assert buffer_size >= 1, f"buffer_size must be at least 1, got {buffer_size}"
        assert rebatched_size is None or rebatched_size > 1, (
            "rebatched_size must be None or greater than 1"
        )
        keep_last = False
        if isinstance(dataset, Combining):
            if dataset._accessor is not None:
                raise createPoptorchError(
                    "The DataLoader already uses an AsynchronousDataAccessor internally"
                )
            keep_last = not dataset._drops_last
            if dataset._short_groups:
                rebatched_size = ROWS_OF_FIRST
            fixed = not keep_last or dataset._combined_batch_size in (None, 1)
            assert fixed or rebatched_size is not None, (
                "AsynchronousDataAccessor of a DataLoader with drop_last=False only works if "
                "'rebatched_size' is specified too"
            )
        self.rebatched_size = None if rebatched_size == ROWS_OF_FIRST else rebatched_size
        self._dataset = dataset
        self._make_worker = partial(
            WorkerProcess,
            dataset,
            member_of(SharingStrategy, sharing_strategy),
            buffer_size,
            load_indefinitely=load_indefinitely,
            early_preload=early_preload,
            rebatched_size=rebatched_size,
            keep_last=keep_last,
        )
        self._start_worker()

    def _start_worker(self) -> None:
        worker = self._make_worker()
        form = worker.start()
        self._form = form
        self._slots = worker.ring.map(form.specs)
        self._entry = worker.ring.entry
        self._words = worker.ring.words
        self._build = self._builder(form)
        self._position = 0  # entry to be read next; all before it are given back when it is
        self._wanted = -1  # epoch that is being read
        self._started = False  # whether a batch of it was returned
        self._over: str | None = None  # set when there is no more of it; the text of an error
        self._death = None
        self._worker = worker

    def _builder(self, form: Form) -> Callable[[list[torch.Tensor]], Any]:
        if form.kind is torch.Tensor:
            return lambda tensors: tensors[0]
        if form.kind is list:
            return lambda tensors: tensors
        if form.kind is dict:
            return lambda tensors: dict(zip(form.keys, tensors, strict=True))
        self._read_skeleton(form.skeleton)
        parser = structure.custom_parsers[type(self._skeleton)]
        return lambda tensors: parser.reconstruct(self._skeleton, iter(tensors))

    def _read_skeleton(self, text: bytes) -> None:
        self._skeleton = SkeletonReader(text, self._slots[0]).load()

    def __len__(self) -> int:
        dataset, size = self._dataset, self.rebatched_size
        if size is None or getattr(dataset, "rebatched_drop_last", None) is not None:
            return len(dataset)
        return len(dataset) * self._form.rows // size

    def __iter__(self) -> "AsynchronousDataAccessor":
        try:
            if self._death is not None:
                self._start_worker()
            self._next_epoch()
        except Exception:
            stay_at_exit()
            raise
        return self

    def _next_epoch(self) -> None:
        worker = self._running_worker()
        if self._wanted < 0 or self._started or self._over is not None:
            self._started, self._over = False, None
            self._wanted += 1
            self._words[WANTED] = self._wanted
            worker.wake()

    def __next__(self) -> Any:
        try:
            return self._next_batch()
        except StopIteration:
            raise
        except Exception:
            stay_at_exit()
            raise

    def _next_batch(self) -> Any:
        worker, words = self._worker, self._words
        if worker is None or self._over is not None or self._wanted < 0:
            worker = self._begin()
        while True:
            number = self._position
            words[RELEASED] = number
            if words[SLEEPING]:
                worker.wake()
            if words[PUBLISHED] <= number:
                self._wait(worker, number)
            epoch, rows, has_report = self._entry(number)
            self._position = number + 1
            error = self._take_reports(worker, number) if has_report else ""
            if epoch < self._wanted:
                continue
            if rows < WHOLE:
                words[RELEASED] = number + 1
                worker.wake()
                self._over = error
                self._begin()
            self._started = True
            # New objects, because what is done to one must not show in the next lap.
            tensors = [tensor.data for tensor in self._slots[number % len(self._slots)]]
            if rows != WHOLE:
                tensors = [tensor[:rows] for tensor in tensors]
            return self._build(tensors)

    def _begin(self) -> WorkerProcess:
        """Start the first epoch, or raise what every call after the end of one raises."""
        worker = self._running_worker()
        if self._over:
            raise AssertionError(f"{_FETCHER_ERROR}:\n{self._over}")
        if self._over is not None:
            raise StopIteration
        self._next_epoch()
        return worker

    def _running_worker(self) -> WorkerProcess:
        if self._death is not None:
            raise WorkerDied(f"{_FETCHER_ERROR}: {self._death}", recovery_action="IPU_RESET")
        assert self._worker is not None, "The AsynchronousDataAccessor has been terminated"
        return self._worker

    def _wait(self, worker: WorkerProcess, number: int) -> None:
        try:
            worker.wait(number)
        except WorkerEnded as exc:
            self._death = str(exc)
            self._end_worker()
        self._running_worker()

    def _take_reports(self, worker: WorkerProcess, number: int) -> str:
        """Read what does not fit into entries; the text of the error, if it is one."""
        error = ""
        try:
            for report in worker.reports_until(number):
                if isinstance(report, str):
                    error = report
                else:
                    self._read_skeleton(report)
        except WorkerEnded as exc:
            self._death = str(exc)
            self._end_worker()
        self._running_worker()
        return error

    def terminate(self) -> None:
        """End the worker process; batches that were returned stay readable."""
        self._death = None
        self._end_worker()

    def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def __del__(self) -> None:
        self.terminate()
