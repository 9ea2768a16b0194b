# SPDX-License-Identifier: Apache-2.0
"""The worker process of an asynchronous loader: iterates over the dataset and writes what it gets
into the ring, ahead of the consumer."""

import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import random
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from poptorch.base.errors import createPoptorchError
from poptorch.capture import structure
from poptorch.data.elements import (
    ROWS_OF_FIRST,
    Form,
    common_rows,
    describe,
    iterate,
    skeleton_of,
    take_apart,
)
from poptorch.data.payload import Payload
from poptorch.data.ring import (
    END,
    FAILED,
    PUBLISHED,
    RELEASED,
    SLEEPING,
    STOP,
    WANTED,
    WHOLE,
    Bell,
    Ring,
    Spec,
)

_REPORT_CHARACTERS = 20000  # fits into a pipe, so that a worker need not wait for its reader


class _Stopped(Exception):
    """The worker was asked to end."""


class _Abandoned(Exception):
    """The consumer wants a later epoch than the one being loaded."""


@dataclass
class Plan:
    """What a worker is told when it starts."""

    ring: Ring
    bell: Bell  # wakes the worker
    consumer_bell: Bell
    reports: Any  # connection: first the form of batches, then what does not fit into an entry
    payload: Payload  # surroundings and dataset
    load_indefinitely: bool
    early_preload: bool
    rebatched_size: int | None
    keep_last: bool  # whether a batch at the end may have fewer rows
    others: list[Any]  # what a forked worker has inherited and has to close


class Surroundings:
    """State of the program that a dataset would find if it were read there: random numbers
    continue from the same place, custom types are known, processes start in the same way."""

    def __init__(self) -> None:
        self._start_method = multiprocessing.get_start_method(allow_none=True)
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy = numpy.random.get_state()
        self._parsers = {t: p for t, p in structure.custom_parsers.items() if _can_pickle((t, p))}

    def restore(self) -> None:
        """Make this process like the one that the object was made in."""
        multiprocessing.set_start_method(self._start_method, force=True)
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
        structure.custom_parsers.update(self._parsers)


def _can_pickle(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


# Writing ------------------------------------------------------------------------------------------


class _Writer:
    """Puts elements into slots, one each, or in pieces that fill batches of a given size."""

    def __init__(self, plan: Plan) -> None:
        self._ring, self._reports = plan.ring, plan.reports
        self._bell, self._consumer_bell = plan.bell, plan.consumer_bell
        self._size, self._keep_last = plan.rebatched_size, plan.keep_last
        self._words = plan.ring.words
        self.filled = 0  # rows in the slot that is being filled
        self._report: bytes | None = None  # that goes with it

    def start(self, element: Any) -> None:
        """Learn from the first element how all of them look, and tell the consumer."""
        kind, keys, tensors = take_apart(element)
        rows = 0
        if self._size is not None:
            rows = common_rows(tensors)
            if self._size == ROWS_OF_FIRST:
                self._size = rows
        specs: list[Spec] = []
        for tensor in tensors:
            shape = list(tensor.shape)
            if self._size is not None:
                shape[0] = self._size
            specs.append((tuple(shape), tensor.dtype))
        skeleton = skeleton_of(element, tensors) if kind is None else b""
        self._form = Form(kind, keys, specs, rows, skeleton)
        self._ring.allocate(specs)
        self._slots = self._ring.map(specs)
        self._reports.send(self._form)
        self._skeleton = skeleton  # what the consumer knows

    def sleep_until(self, ready: Callable[[], bool]) -> None:
        """Wait for the consumer to change something."""
        words = self._words
        while not ready():
            if words[STOP]:
                raise _Stopped
            words[SLEEPING] = 1
            # Again, because the consumer may have looked before it was set. If both looked too
            # early, the consumer notices before it waits itself.
            if not ready() and not words[STOP]:
                self._bell.wait()
            words[SLEEPING] = 0

    def check(self, epoch: int) -> None:
        """Raise unless the epoch is still of interest."""
        if self._words[STOP]:
            raise _Stopped
        if self._words[WANTED] > epoch:
            raise _Abandoned

    def _free_slot(self, epoch: int) -> list[torch.Tensor]:
        words, ring = self._words, self._ring
        number = words[PUBLISHED]
        self.sleep_until(lambda: number - words[RELEASED] < ring.slots or words[WANTED] > epoch)
        self.check(epoch)
        return self._slots[number % ring.slots]

    def _publish(self, epoch: int, rows: int, report: Any = None) -> None:
        number = self._words[PUBLISHED]
        self._ring.publish(epoch, rows, report is not None)
        self._consumer_bell.ring()
        if report is not None:
            self._reports.send((number, report))
        if isinstance(report, bytes):  # only now: an abandoned batch is never published
            self._skeleton = report

    def add(self, epoch: int, element: Any) -> None:
        """Write one element of the dataset."""
        tensors, report = self._checked(element)
        if self._size is None:
            for target, tensor in zip(self._free_slot(epoch), tensors, strict=True):
                target.copy_(tensor)
            self._publish(epoch, WHOLE, report)
            return
        self._report = report  # of the last piece of a batch
        rows, begin = common_rows(tensors), 0
        while begin < rows:
            slot = self._free_slot(epoch)
            count = min(rows - begin, self._size - self.filled)
            for target, tensor in zip(slot, tensors, strict=True):
                target[self.filled : self.filled + count].copy_(tensor[begin : begin + count])
            begin += count
            self.filled += count
            if self.filled == self._size:
                self._finish_batch(epoch, WHOLE)

    def _finish_batch(self, epoch: int, rows: int) -> None:
        report, self._report, self.filled = self._report, None, 0
        self._publish(epoch, rows, report)

    def finish(self, epoch: int) -> None:
        """End an epoch that came to its end."""
        if self.filled and self._keep_last:
            self._finish_batch(epoch, self.filled)
        self.filled = 0
        self._free_slot(epoch)
        self._publish(epoch, END)

    def fail(self, epoch: int) -> None:
        """Tell the consumer of the exception that is being handled."""
        text = traceback.format_exc()[-_REPORT_CHARACTERS:]
        self.filled = 0
        with contextlib.suppress(_Abandoned):
            self._free_slot(epoch)
            self._publish(epoch, FAILED, text)

    def _checked(self, element: Any) -> tuple[list[torch.Tensor], bytes | None]:
        """The tensors of an element, if they are like the first, and a report if it needs one."""
        form = self._form
        kind, keys, tensors = take_apart(element)
        if kind is not form.kind or len(tensors) != len(form.specs) or set(keys) != set(form.keys):
            raise createPoptorchError(
                "All elements must be organised like the first one: expected "
                f"{describe(form.kind, form.keys, len(form.specs))}, "
                f"got {describe(kind, keys, len(tensors))}"
            )
        if keys and keys != form.keys:
            tensors = [element[key] for key in form.keys]
        from_row = 0 if self._size is None else 1
        for index, (tensor, (shape, dtype)) in enumerate(zip(tensors, form.specs, strict=True)):
            if tensor.dtype != dtype or tuple(tensor.shape[from_row:]) != tuple(shape[from_row:]):
                name = repr(form.keys[index]) if keys else index
                raise createPoptorchError(
                    "All elements must have the shapes and types of the first one: tensor "
                    f"{name} was {list(shape)} {dtype}, now it is {list(tensor.shape)} "
                    f"{tensor.dtype}"
                )
        tensors = [t.detach() if t.requires_grad else t for t in tensors]
        if kind is not None:
            return tensors, None
        skeleton = skeleton_of(element, take_apart(element)[2])
        return tensors, None if skeleton == self._skeleton else skeleton


# Running ------------------------------------------------------------------------------------------


def main(plan: Plan) -> None:
    """Run the worker until it is stopped."""
    words = plan.ring.words

    def interrupted(signum: int, frame: Any) -> None:
        # Ctrl-C reaches every process of a terminal; the parent decides what it means.
        if words[STOP]:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    with contextlib.suppress(_Stopped, KeyboardInterrupt, BrokenPipeError):
        # A signal that came while the process was being started is handled here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for other in plan.others:
            other.close()
        _end_with_parent()
        torch.set_num_threads(1)  # the cores are the model's, and OpenMP does not survive a fork
        _run(plan)


def _end_with_parent() -> None:
    """End this process when its parent does, even inside code of the dataset."""
    parent = multiprocessing.parent_process()
    assert parent is not None and parent.pid is not None
    handles: list[Any] = [parent.sentinel]
    with contextlib.suppress(OSError):  # processes that the parent forked keep sentinels open
        handles.append(os.pidfd_open(parent.pid))

    def watch() -> None:
        multiprocessing.connection.wait(handles)
        with contextlib.suppress(Exception):
            for child in multiprocessing.active_children():
                child.kill()
        os._exit(1)

    threading.Thread(target=watch, name="poptorch-parent-watch", daemon=True).start()


class _WorkerStart:
    """A ``worker_init_fn`` for torch's own workers, which may be stuck when we are killed."""

    def __init__(self, given: Callable[[int], None] | None) -> None:
        self._given = given

    def __call__(self, worker: int) -> None:
        _end_with_parent()
        if self._given is not None:
            self._given(worker)


def _begin(plan: Plan, writer: _Writer) -> tuple[Any, Iterator[Any]]:
    """The dataset, and the elements of its first epoch, of which the writer has seen one."""
    surroundings, dataset = plan.payload.value()
    surroundings.restore()
    if isinstance(dataset, torch.utils.data.DataLoader):
        dataset.worker_init_fn = _WorkerStart(dataset.worker_init_fn)
    elements, nothing = iterate(dataset), object()
    first = next(elements, nothing)
    if first is nothing:
        raise createPoptorchError("The Dataset is empty")
    writer.start(first)
    return dataset, itertools.chain([first], elements)


def _run(plan: Plan) -> None:
    writer, words = _Writer(plan), plan.ring.words
    elements: Iterator[Any] | None
    try:
        dataset, elements = _begin(plan, writer)
    except (Exception, SystemExit):
        plan.reports.send(traceback.format_exc()[-_REPORT_CHARACTERS:])
        return
    epoch = 0
    while True:
        try:
            if elements is None:
                elements = iterate(dataset)
            for element in elements:
                writer.check(epoch)
                writer.add(epoch, element)
                if words[WANTED] < 0 and not plan.early_preload:
                    writer.sleep_until(lambda: words[WANTED] >= 0)
            writer.finish(epoch)
        except _Abandoned:
            writer.filled = 0
        except (_Stopped, BrokenPipeError):
            raise
        except (Exception, SystemExit):
            writer.fail(epoch)
        elements = element = None  # generators and workers of torch end here
        next_epoch = max(epoch + 1, words[WANTED])
        ahead = next_epoch - 1 if plan.load_indefinitely else next_epoch
        writer.sleep_until(lambda: words[WANTED] >= ahead)  # noqa: B023
        epoch = max(next_epoch, words[WANTED])
