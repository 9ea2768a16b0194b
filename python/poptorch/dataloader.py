# SPDX-License-Identifier: Apache-2.0
"""``DataLoader``: PyTorch's loader, whose batches are as large as one call of a model needs, and
``AsynchronousDataAccessor``, which prepares them in a process of its own."""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import torch
from torch.utils.data import IterableDataset

from poptorch._data_partition import partition
from poptorch._data_process import WorkerEnded, WorkerProcess, stay_at_exit
from poptorch._data_ring import PUBLISHED, RELEASED, SLEEPING, WANTED, WHOLE
from poptorch._data_worker import ROWS_OF_FIRST, Form, SkeletonReader
from poptorch._errors import createPoptorchError
from poptorch._logging import logger
from poptorch._whole_batches import whole_batches
from poptorch.capture import structure
from poptorch.enums import DataLoaderMode, SharingStrategy
from poptorch.options import Options

__all__ = ["AsynchronousDataAccessor", "DataLoader"]

_FETCHER_ERROR = "An error occurred in the data fetcher"


def _member(kind: type[Enum], value: Any) -> Any:
    """A member of an enumeration, which configuration files give as a number or by its name."""
    if isinstance(value, str):
        name = value.removeprefix("poptorch.").removeprefix(f"{kind.__name__}.")
        if name in kind.__members__:
            return kind[name]
    elif value in list(kind):
        return kind(value)
    names = ", ".join(kind.__members__)
    raise ValueError(f"Expected a poptorch.{kind.__name__} ({names}), got {value!r}")


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
        if isinstance(dataset, DataLoader):
            if dataset._accessor is not None:
                raise createPoptorchError(
                    "The DataLoader already uses an AsynchronousDataAccessor internally"
                )
            keep_last = not dataset._drops_last
            if dataset._short_groups:
                rebatched_size = ROWS_OF_FIRST
            fixed = not keep_last or dataset.combinedBatchSize in (None, 1)
            assert fixed or rebatched_size is not None, (
                "AsynchronousDataAccessor of a DataLoader with drop_last=False only works if "
                "'rebatched_size' is specified too"
            )
        self.rebatched_size = None if rebatched_size == ROWS_OF_FIRST else rebatched_size
        self._dataset = dataset
        worker = WorkerProcess(
            dataset,
            _member(SharingStrategy, sharing_strategy),
            buffer_size,
            load_indefinitely=load_indefinitely,
            early_preload=early_preload,
            rebatched_size=rebatched_size,
            keep_last=keep_last,
        )
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
        self._death: str | None = None  # how the worker ended
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
            self._begin()
        while True:
            number = self._position
            words[RELEASED] = number
            if words[SLEEPING]:
                worker.wake()
            if words[PUBLISHED] <= number:
                self._wait(number)
            epoch, rows, has_report = self._entry(number)
            self._position = number + 1
            error = self._take_reports(number) if has_report else ""
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

    def _begin(self) -> None:
        """Start the first epoch, or raise what every call after the end of one raises."""
        self._running_worker()
        if self._over:
            raise AssertionError(f"{_FETCHER_ERROR}:\n{self._over}")
        if self._over is not None:
            raise StopIteration
        self._next_epoch()

    def _running_worker(self) -> WorkerProcess:
        assert self._death is None, f"{_FETCHER_ERROR}: {self._death}"
        assert self._worker is not None, "The AsynchronousDataAccessor has been terminated"
        return self._worker

    def _wait(self, number: int) -> None:
        try:
            self._worker.wait(number)
        except WorkerEnded as exc:
            self._death = str(exc)
            self.terminate()
        self._running_worker()

    def _take_reports(self, number: int) -> str:
        """Read what does not fit into entries; the text of the error, if it is one."""
        error = ""
        try:
            for report in self._worker.reports_until(number):
                if isinstance(report, str):
                    error = report
                else:
                    self._read_skeleton(report)
        except WorkerEnded as exc:
            self._death = str(exc)
            self.terminate()
        self._running_worker()
        return error

    def terminate(self) -> None:
        """End the worker process; batches that were returned stay readable."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def __del__(self) -> None:
        self.terminate()


class DataLoader(torch.utils.data.DataLoader):
    """A loader whose every batch feeds one call of a model with the same options.

    Args:
        options: how many micro-batches a call holds; frozen by this.
        dataset: the data.
        batch_size: samples in one micro-batch; None disables batching.
        shuffle: whether the order changes every epoch.
        num_workers: processes that prepare batches.
        drop_last: whether an incomplete last batch is dropped. True by default, unlike in torch.
        persistent_workers: whether workers live on between epochs; default: if there are any.
        auto_distributed_partitioning: give each process its own part of the dataset.
        mode: where batches are prepared.
        async_options: arguments of the :class:`AsynchronousDataAccessor`.
        rebatched_worker_size: batch size of the workers in ``AsyncRebatched`` mode.
        batch_sampler: yields the indices of each micro-batch.
        kwargs: further arguments of ``torch.utils.data.DataLoader``.
    """

    _accessor: AsynchronousDataAccessor | None = None

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Any = None,
        **kwargs: Any,
    ) -> None:
        assert isinstance(options, Options), f"Expected poptorch.Options, got {type(options)}"
        mode = _member(DataLoaderMode, mode)
        options._freeze()
        self._options = options
        self._num_batches_to_combine = (
            options.device_iterations
            * (options.replication_factor // options.input_group_size)
            * options.Training.gradient_accumulation
        )
        self._combined_batch_size: int | None = None
        self._drops_last = drop_last
        self._short_groups = False  # whether batches of unknown size are combined, the last short
        self.rebatched_drop_last: bool | None = None
        self.batch_sampler_drop_last: bool | None = None
        if persistent_workers is None:
            persistent_workers = num_workers > 0
        common = {"num_workers": num_workers, "persistent_workers": persistent_workers, **kwargs}
        if isinstance(dataset, IterableDataset):
            if num_workers > 1 and kwargs.get("worker_init_fn") is None:
                logger.warning(
                    "Every worker of an IterableDataset without worker_init_fn returns all of its "
                    "elements: each will be returned once per worker."
                )
        if batch_sampler is not None:
            if batch_size != 1 or shuffle:
                raise createPoptorchError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle"
                )
            batch_size = getattr(batch_sampler, "batch_size", None) or 1
            self.batch_sampler_drop_last = drop_last
        if batch_size is not None:
            self._combined_batch_size = batch_size * self._num_batches_to_combine
        elements = None if isinstance(dataset, IterableDataset) else len(dataset)
        if auto_distributed_partitioning and options.Distributed.numProcesses > 1:
            dataset, shuffle = self._partitioned(dataset, shuffle, batch_sampler, common)

        rebatched_size = self._rebatched_size(mode, batch_sampler)
        if rebatched_size is not None:
            self.rebatched_drop_last = drop_last
            combined = self._combined_batch_size
            assert rebatched_worker_size is None or rebatched_worker_size <= combined, (
                f"rebatched_worker_size ({rebatched_worker_size}) must be <= to the combined batch "
                f"size ({combined})"
            )
        if batch_sampler is not None:
            self._warn_of_incomplete_group(batch_sampler)
            super().__init__(dataset, batch_sampler=batch_sampler, **common)
        elif batch_size is None:
            super().__init__(dataset, batch_size=None, shuffle=bool(shuffle), **common)
        else:
            if elements is not None:
                self._warn_if_incomplete(elements, len(dataset))
            inner = self._combined_batch_size
            if rebatched_size is not None:
                inner, drop_last = rebatched_worker_size or inner, False
            # torch refuses any value of shuffle for iterable datasets.
            shuffled = shuffle if isinstance(dataset, IterableDataset) else bool(shuffle)
            super().__init__(
                dataset, batch_size=inner, shuffle=shuffled, drop_last=drop_last, **common
            )
        self._warn_if_empty()
        if mode != DataLoaderMode.Sync:
            settings = dict(async_options or {})
            if mode == DataLoaderMode.AsyncRebatched:
                assert "rebatched_size" not in settings, (
                    "You cannot use DataLoaderMode.AsyncRebatched and manually specify "
                    "rebatched_size in async_options"
                )
            settings.setdefault("rebatched_size", rebatched_size)
            self._accessor = AsynchronousDataAccessor(self, **settings)

    # Construction --------------------------------------------------------------------------------

    def _partitioned(
        self,
        dataset: Any,
        shuffle: bool | None,
        batch_sampler: Any,
        common: dict[str, Any],
    ) -> tuple[Any, bool]:
        """This process's part of the dataset, and whether torch is to shuffle it."""
        if batch_sampler is not None:
            raise createPoptorchError(
                "batch_sampler is mutually exclusive with auto_distributed_partitioning=True"
            )
        assert not isinstance(dataset, IterableDataset), (
            "auto_distributed_partitioning not supported for IterableDataset"
        )
        assert self._combined_batch_size is not None, (
            "batch_size=None not allowed when using auto_distributed_partitioning"
        )
        part, sampler = partition(
            dataset, self._combined_batch_size, self._options, self._drops_last, bool(shuffle)
        )
        if sampler is None or common.get("sampler") is not None:
            return part, bool(shuffle)  # torch refuses a sampler together with shuffle
        common["sampler"] = sampler
        return part, False

    def _rebatched_size(self, mode: DataLoaderMode, batch_sampler: Any) -> int | None:
        """Rows of the batches that an accessor has to put together, if it has to."""
        combined = self._combined_batch_size
        if mode == DataLoaderMode.Sync or combined is None:
            return None
        if batch_sampler is not None and not getattr(batch_sampler, "batch_size", None):
            self._short_groups = True
            return None
        # A batch sampler may end with a short batch whatever this loader was told.
        complete = self._drops_last and batch_sampler is None
        if mode == DataLoaderMode.Async and (complete or combined == 1):
            return None
        return combined

    def _warn_of_incomplete_group(self, batch_sampler: Any) -> None:
        if self.batch_sampler_drop_last or self._num_batches_to_combine == 1:
            return
        try:
            left = len(batch_sampler) % self._num_batches_to_combine
        except (TypeError, NotImplementedError):
            logger.warning(
                "The __len__ method of the batch sampler is not implemented: the last tensor may "
                "be smaller than the others."
            )
            return
        if left:
            logger.warning(
                "The number of batches generated by the batch sampler is not divisible by the "
                "number of batches processed per step (%d): the last tensor will hold %d of them.",
                self._num_batches_to_combine,
                left,
            )

    def _warn_if_empty(self) -> None:
        try:
            batches = len(self)
        except (TypeError, NotImplementedError, AttributeError):
            return
        # torch would compare what an iterable dataset yields with the length that was asked for.
        self._IterableDataset_len_called = None
        if batches:
            return
        known = ""
        if self.batch_sampler_drop_last is not None:
            known = f", {self._num_batches_to_combine} batches of the batch sampler"
        elif self._combined_batch_size is not None:
            source = self.dataset if isinstance(self.dataset, IterableDataset) else self.sampler
            known = f": there are {len(source)} elements, a batch has {self._combined_batch_size}"
        logger.warning(
            "The loader has no batch to give: its data are fewer than one call of a model needs%s. "
            "Use fewer device iterations, replicas or accumulated gradients, a smaller batch_size, "
            "or more data; drop_last=False keeps an incomplete batch.",
            known,
        )

    def _warn_if_incomplete(self, elements: int, own: int) -> None:
        """Warn of a short last batch; ``own`` of the elements are for this process."""
        combined = self._combined_batch_size
        per_step = combined * self._options.Distributed.numProcesses
        if not self._drops_last and elements % per_step:
            logger.warning(
                "The number of elements in the dataset (%d) is not divisible by the number of "
                "elements processed per step (%d): the last tensor will have a batch size of %d. "
                "Set drop_last=True, or pad it.",
                elements,
                per_step,
                own % combined or combined,
            )

    # Use -----------------------------------------------------------------------------------------

    @property
    def combinedBatchSize(self) -> int | None:
        """Samples in one batch of this loader; None without batching."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        """The options given to the constructor."""
        return self._options

    def terminate(self) -> None:
        """End the worker of the asynchronous modes; nothing to do in Sync mode."""
        if self._accessor is not None:
            self._accessor.terminate()

    def __del__(self) -> None:
        self.terminate()

    def __len__(self) -> int:
        """Number of batches of one epoch."""
        if self.batch_sampler_drop_last is not None:
            count, per_batch = super().__len__(), self._num_batches_to_combine
        elif self.rebatched_drop_last is not None:
            iterable = isinstance(self.dataset, IterableDataset)
            count = len(self.dataset if iterable else self.sampler)
            per_batch = self._combined_batch_size
        else:
            return super().__len__()
        return count // per_batch if self._drops_last else -(-count // per_batch)

    def __iter__(self) -> Any:
        if self._accessor is not None:
            return iter(self._accessor)
        whole = whole_batches(self)
        if whole is not None:
            return whole
        batches = super().__iter__()
        alone = self.batch_sampler_drop_last is None or self.rebatched_drop_last is not None
        if alone or self._num_batches_to_combine == 1:
            return batches
        return self._combined(batches)

    def _combined(self, batches: Iterator[Any]) -> Iterator[Any]:
        kept: list[Any] = []
        for batch in batches:
            kept.append(batch)
            if len(kept) == self._num_batches_to_combine:
                yield _concatenate(kept)
                kept = []
        if kept and not self.batch_sampler_drop_last:
            yield _concatenate(kept)


def _concatenate(batches: list[Any]) -> Any:
    first = structure.tensors_of(batches[0], "batch")
    # By name, because dicts may have their keys in another order.
    others = [dict(structure.tensors_of(batch, "batch")) for batch in batches[1:]]
    for other in others:
        differing = other.keys() ^ {name for name, _ in first}
        if differing:
            raise createPoptorchError(
                "Batches that are combined must hold the same tensors: only some have "
                f"{', '.join(sorted(differing))}"
            )
    columns = ([tensor, *(other[name] for other in others)] for name, tensor in first)
    return structure.rebuild(batches[0], iter([torch.cat(column) for column in columns]))
