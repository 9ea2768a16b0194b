# SPDX-License-Identifier: Apache-2.0
"""Carries a dataset into a worker process: its tensors and arrays go through one anonymous file,
which the worker maps, however many they are; nothing has a name that could be left behind."""

import ctypes
import io
import mmap
import os
import pickle
import tempfile
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import torch

_ALIGN = 64
_IN_BAND_BYTES = 4096  # smaller buffers stay in the pickle


class Payload:
    """A value that is pickled while a process is started, and unpickled when it is asked for.

    Args:
        value: what the worker gets.
        on_disk: whether the bytes go to a temporary file instead of memory.
    """

    def __init__(self, value: Any, on_disk: bool = False) -> None:
        self._value = value
        self._on_disk = on_disk
        self._file: Any = None

    def value(self) -> Any:
        """The value; in a process that did not inherit it, read from the file."""
        return self._value

    def close(self) -> None:
        """Forget the file, once the process has started: only then it is duplicated."""
        if self._file is not None:
            self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # Called by multiprocessing, so locks, queues and the like may be part of the value.
        text = io.BytesIO()
        buffers: list[pickle.PickleBuffer] = []
        _Pickler(text, buffers).dump(self._value)
        self._file = _anonymous_file(self._on_disk)
        ranges, end = [], 0
        for part in (text.getbuffer(), *(buffer.raw() for buffer in buffers)):
            _write(self._file.fileno(), part, end)
            ranges.append((end, end + part.nbytes))
            end += -(-part.nbytes // _ALIGN) * _ALIGN
        return _Arrived, (DupFd(self._file.fileno()), ranges)


class _Arrived:
    """A payload in the worker."""

    def __init__(self, handle: Any, ranges: list[tuple[int, int]]) -> None:
        self._fd = handle.detach()
        self._ranges = ranges

    def value(self) -> Any:
        # Private pages: a dataset that changes its tensors changes its own copy.
        memory = memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_COPY))
        os.close(self._fd)
        text, *buffers = [memory[begin:end] for begin, end in self._ranges]
        return pickle.loads(text, buffers=buffers)


class _Pickler(ForkingPickler):
    """Takes the contents of tensors and arrays out of the pickle.

    torch's own way gives every tensor a shared-memory file of its own; a dataset of many small
    tensors runs out of file descriptors that way.
    """

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, 5, True, self._take_out)
        self._buffers = buffers
        self._storages: dict[int, torch.UntypedStorage] = {}

    def _take_out(self, buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _IN_BAND_BYTES:
            return True
        self._buffers.append(buffer)
        return False

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.__reduce_ex__(5)
        if isinstance(value, torch.storage.TypedStorage):
            storage = value._untyped_storage
            # Tensors that share memory share it in the worker too.
            storage = self._storages.setdefault(storage._cdata, storage)
            return _typed_storage, (storage, value.dtype)
        if isinstance(value, torch.UntypedStorage) and value.device.type == "cpu":
            memory = (ctypes.c_char * value.nbytes()).from_address(value.data_ptr() or 1)
            return _storage, (pickle.PickleBuffer(memory),)
        return NotImplemented


def _typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _storage(memory: Any) -> torch.UntypedStorage:
    if not len(memory):
        return torch.UntypedStorage(0)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def _anonymous_file(on_disk: bool) -> Any:
    if on_disk:
        return tempfile.TemporaryFile(prefix="poptorch-")
    return os.fdopen(os.memfd_create("poptorch-dataset"), "wb")


def _write(fd: int, part: memoryview, offset: int) -> None:
    part = part.cast("B")
    while part.nbytes:
        done = os.pwrite(fd, part, offset)
        part, offset = part[done:], offset + done
