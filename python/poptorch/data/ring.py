# SPDX-License-Identifier: Apache-2.0
"""Memory that an asynchronous loader shares with its worker: counters, and a ring of slots, each
with the tensors of one batch. It is anonymous, so it is gone when both processes are."""

import mmap
import os
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from typing import Any

import torch

# Words of the header. One process writes each word, and x86 keeps the order of stores: what was
# written before a counter is seen by whoever sees the counter.
PUBLISHED = 0  # entries that the worker has written
RELEASED = 1  # entries that the consumer has given back
WANTED = 2  # the epoch that the consumer wants, -1 before the first
SLEEPING = 3  # whether the worker waits to be woken
STOP = 4  # whether the worker is asked to end
_ENTRIES = 8  # where entries begin

# Instead of a number of rows:
WHOLE = -1  # all rows of the slot
END = -2  # there is no batch: the epoch is over
FAILED = -3  # there is no batch: an exception, whose text is the next report

_WORD = 8
_ENTRY_WORDS = 3  # epoch, rows, whether a report belongs to it
_ALIGN = 64
_PAGE = mmap.ALLOCATIONGRANULARITY

Spec = tuple[Sequence[int], torch.dtype]


class Bell:
    """Wakes the other process: rings are counted, so one is heard even if it comes too early."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0)

    def __getstate__(self) -> Any:
        return DupFd(self.fd)

    def __setstate__(self, state: Any) -> None:
        self.fd = state.detach()

    def ring(self) -> None:
        """Wake whoever waits, now or later."""
        os.eventfd_write(self.fd, 1)

    def wait(self) -> None:
        """Return when it has rung since the last time."""
        os.read(self.fd, 8)  # not eventfd_read, which a signal ends

    def close(self) -> None:
        """Forget the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class Ring:
    """The shared memory, first without slots: these need the shapes of the first batch.

    Args:
        slots: number of batches that it holds.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._fd = os.memfd_create("poptorch-ring")
        os.ftruncate(self._fd, self._header_bytes())
        self._map_header()
        self.words[WANTED] = -1

    def __getstate__(self) -> tuple[int, Any]:
        return self.slots, DupFd(self._fd)

    def __setstate__(self, state: tuple[int, Any]) -> None:
        self.slots, handle = state
        self._fd = handle.detach()
        self._map_header()

    def _header_bytes(self) -> int:
        return _rounded((_ENTRIES + self.slots * _ENTRY_WORDS) * _WORD, _PAGE)

    def _map_header(self) -> None:
        self.words = memoryview(mmap.mmap(self._fd, self._header_bytes())).cast("q")

    def allocate(self, specs: list[Spec]) -> None:
        """Make room for batches of such tensors; done by the worker, before it maps them."""
        stride = _layout(specs)[1]
        # Memory that is not there is an error here, not a signal at the first write.
        os.posix_fallocate(self._fd, 0, self._header_bytes() + max(stride * self.slots, 1))

    def map(self, specs: list[Spec]) -> list[list[torch.Tensor]]:
        """The tensors of every slot."""
        offsets, stride = _layout(specs)
        memory = mmap.mmap(
            self._fd,
            max(stride * self.slots, 1),
            flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
            offset=self._header_bytes(),
        )
        return [
            [
                _tensor(memory, slot * stride + offset, shape, dtype)
                for offset, (shape, dtype) in zip(offsets, specs, strict=True)
            ]
            for slot in range(self.slots)
        ]

    def entry(self, number: int) -> tuple[int, int, int]:
        """Epoch, rows and report flag of the entry with this number since the start."""
        at = _ENTRIES + number % self.slots * _ENTRY_WORDS
        words = self.words
        return words[at], words[at + 1], words[at + 2]

    def publish(self, epoch: int, rows: int, report: bool = False) -> None:
        """Hand the next entry to the consumer."""
        number = self.words[PUBLISHED]
        at = _ENTRIES + number % self.slots * _ENTRY_WORDS
        self.words[at], self.words[at + 1], self.words[at + 2] = epoch, rows, report
        self.words[PUBLISHED] = number + 1

    def close(self) -> None:
        """Forget the file; memory stays as long as tensors point to it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _layout(specs: list[Spec]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for shape, dtype in specs:
        offsets.append(end)
        end += _rounded(torch.Size(shape).numel() * dtype.itemsize, _ALIGN)
    return offsets, _rounded(end, _PAGE)


def _tensor(memory: mmap.mmap, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Any:
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(tuple(shape))
