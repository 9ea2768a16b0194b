# SPDX-License-Identifier: Apache-2.0
"""``DataLoader``: PyTorch's loader, whose batches are as large as one call of a model needs."""

from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import IterableDataset

from poptorch.base.errors import createPoptorchError
from poptorch.base.logging import logger
from poptorch.capture import structure
from poptorch.data.accessor import AsynchronousDataAccessor, Combining, member_of
from poptorch.data.partition import partition
from poptorch.data.whole_batches import whole_batches
from poptorch.enums import DataLoaderMode
from poptorch.options import Options

__all__ = ["AsynchronousDataAccessor", "DataLoader"]


class DataLoader(Combining, torch.utils.data.DataLoader):
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
        mode = member_of(DataLoaderMode, mode)
        options._freeze()
        self._options = options
        self._num_batches_to_combine = (
            options.device_iterations
            * (options.replication_factor // options.input_group_size)
            * options.Training.gradient_accumulation
        )
        self._combined_batch_size: int | None = None
        self._drops_last = drop_last
        self._short_groups = False
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
            assert rebatched_worker_size is None or rebatched_worker_size <= rebatched_size, (
                f"rebatched_worker_size ({rebatched_worker_size}) must be <= to the combined batch "
                f"size ({rebatched_size})"
            )
        if batch_sampler is not None:
            self._warn_of_incomplete_group(batch_sampler)
            super().__init__(dataset, batch_sampler=batch_sampler, **common)
        elif batch_size is None:
            super().__init__(dataset, batch_size=None, shuffle=bool(shuffle), **common)
        else:
            inner = batch_size * self._num_batches_to_combine
            if elements is not None:
                self._warn_if_incomplete(inner, elements, len(dataset))
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
            known = f": there are {self._count()} elements, a batch has {self._combined_batch_size}"
        logger.warning(
            "The loader has no batch to give: its data are fewer than one call of a model needs%s. "
            "Use fewer device iterations, replicas or accumulated gradients, a smaller batch_size, "
            "or more data; drop_last=False keeps an incomplete batch.",
            known,
        )

    def _warn_if_incomplete(self, combined: int, elements: int, own: int) -> None:
        """Warn of a short last batch; ``own`` of the elements are for this process."""
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
        elif self.rebatched_drop_last is not None and self._combined_batch_size is not None:
            count, per_batch = self._count(), self._combined_batch_size
        else:
            return super().__len__()
        return count // per_batch if self._drops_last else -(-count // per_batch)

    def _count(self) -> int:
        """Elements of one epoch, of a dataset that says how many it has."""
        source = self.dataset if isinstance(self.dataset, IterableDataset) else self.sampler
        return len(cast(Sized, source))

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
