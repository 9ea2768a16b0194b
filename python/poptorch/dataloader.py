# SPDX-License-Identifier: Apache-2.0
"""``DataLoader``: PyTorch's loader, whose batches are as large as one call of a model needs."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import (
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from poptorch._errors import createPoptorchError, not_yet
from poptorch._logging import logger
from poptorch.capture import structure
from poptorch.enums import DataLoaderMode
from poptorch.options import Options

__all__ = ["AsynchronousDataAccessor", "DataLoader"]


class AsynchronousDataAccessor:
    """Loads data in a process of its own; not available yet."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise not_yet("AsynchronousDataAccessor")


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
        if mode != DataLoaderMode.Sync:
            raise not_yet(f"DataLoaderMode.{DataLoaderMode(mode).name}")
        options._freeze()
        self._options = options
        self._num_batches_to_combine = (
            options.device_iterations
            * (options.replication_factor // options.input_group_size)
            * options.Training.gradient_accumulation
        )
        self._combined_batch_size: int | None = None
        self._accessor = None
        self.rebatched_drop_last: bool | None = None
        self.batch_sampler_drop_last: bool | None = None
        self._check_distribution(dataset, auto_distributed_partitioning, batch_sampler)
        if isinstance(dataset, IterableDataset):
            if num_workers > 1 and kwargs.get("worker_init_fn") is None:
                logger.warning(
                    "Every worker of an IterableDataset without worker_init_fn returns all of its "
                    "elements: each will be returned once per worker."
                )
        if persistent_workers is None:
            persistent_workers = num_workers > 0
        common = {"num_workers": num_workers, "persistent_workers": persistent_workers, **kwargs}

        if batch_sampler is not None:
            self._init_sampled(dataset, batch_size, shuffle, drop_last, batch_sampler, common)
        elif batch_size is None:
            super().__init__(dataset, batch_size=None, shuffle=bool(shuffle), **common)
        else:
            self._combined_batch_size = batch_size * self._num_batches_to_combine
            if not drop_last:
                self._warn_if_incomplete(dataset)
            # torch refuses any value of shuffle for iterable datasets.
            shuffled = shuffle if isinstance(dataset, IterableDataset) else bool(shuffle)
            super().__init__(
                dataset,
                batch_size=self._combined_batch_size,
                shuffle=shuffled,
                drop_last=drop_last,
                **common,
            )

    def _check_distribution(self, dataset: Any, automatic: bool, batch_sampler: Any) -> None:
        if not automatic or self._options.Distributed.numProcesses == 1:
            return
        if batch_sampler is not None:
            raise createPoptorchError(
                "batch_sampler is mutually exclusive with auto_distributed_partitioning=True"
            )
        assert not isinstance(dataset, IterableDataset), (
            "auto_distributed_partitioning not supported for IterableDataset"
        )
        raise not_yet("auto_distributed_partitioning with several processes")

    def _init_sampled(
        self,
        dataset: Any,
        batch_size: int | None,
        shuffle: bool | None,
        drop_last: bool,
        batch_sampler: Any,
        common: dict[str, Any],
    ) -> None:
        if batch_size != 1 or shuffle:
            raise createPoptorchError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle"
            )
        size = getattr(batch_sampler, "batch_size", None) or 1
        self._combined_batch_size = size * self._num_batches_to_combine
        self.batch_sampler_drop_last = drop_last
        if not drop_last and self._num_batches_to_combine > 1:
            try:
                left = len(batch_sampler) % self._num_batches_to_combine
            except (TypeError, NotImplementedError):
                logger.warning(
                    "The __len__ method of the batch sampler is not implemented: the last tensor "
                    "may be smaller than the others."
                )
            else:
                if left:
                    logger.warning(
                        "The number of batches generated by the batch sampler is not divisible "
                        "by the number of batches processed per step (%d): the last tensor will "
                        "hold %d of them.",
                        self._num_batches_to_combine,
                        left,
                    )
        super().__init__(dataset, batch_sampler=batch_sampler, **common)

    def _warn_if_incomplete(self, dataset: Any) -> None:
        if isinstance(dataset, IterableDataset):
            return
        per_step = self._combined_batch_size * self._options.Distributed.numProcesses
        left = len(dataset) % per_step
        if left:
            logger.warning(
                "The number of elements in the dataset (%d) is not divisible by the number of "
                "elements processed per step (%d): the last tensor will have a batch size of %d. "
                "Set drop_last=True, or pad it.",
                len(dataset),
                per_step,
                left,
            )

    @property
    def combinedBatchSize(self) -> int | None:
        """Samples in one batch of this loader; None without batching."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        """The options given to the constructor."""
        return self._options

    def terminate(self) -> None:
        """Stop the worker of the asynchronous modes; nothing to do in Sync mode."""

    def __iter__(self) -> Any:
        whole = _whole_batches(self)
        if whole is not None:
            return whole
        batches = super().__iter__()
        if self.batch_sampler_drop_last is None or self._num_batches_to_combine == 1:
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
    columns = zip(*([t for _, t in structure.tensors_of(b)] for b in batches), strict=True)
    return structure.rebuild(batches[0], iter([torch.cat(column) for column in columns]))


# Whole batches at once ----------------------------------------------------------------------------


class _WholeBatches:
    """Batches of a TensorDataset, each gathered by one indexing instead of sample by sample.

    Order, values and use of random numbers are those of torch's own iterator: collating 16
    samples one by one takes longer than a training step of a small model.
    """

    def __init__(self, loader: DataLoader, tensors: Any, indices: torch.Tensor | None) -> None:
        self._length = len(loader)
        # torch draws a base seed for its workers, even without workers.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        self._batches = self._generate(loader, tensors, indices)

    @staticmethod
    def _generate(
        loader: DataLoader, tensors: Any, indices: torch.Tensor | None
    ) -> Iterator[list[torch.Tensor]]:
        sampler, size, count = loader.sampler, loader.batch_size, len(loader.dataset)
        end = count - count % size if loader.drop_last else count
        if isinstance(sampler, SequentialSampler) and indices is None:
            for start in range(0, end, size):
                yield [t[start : start + size].clone() for t in tensors]
            return
        generator = None
        order = torch.arange(count)
        if isinstance(sampler, RandomSampler):
            generator = sampler.generator
            if generator is None:
                generator = torch.Generator()
                generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
            order = torch.randperm(count, generator=generator)
        if indices is not None:
            order = indices[order]
        select = torch.index_select
        for chosen in order[:end].split(size):
            yield [select(t, 0, chosen) for t in tensors]
        if generator is not None:
            torch.randperm(count, generator=generator)  # torch draws one permutation too many

    def __iter__(self) -> "_WholeBatches":
        return self

    def __next__(self) -> list[torch.Tensor]:
        return next(self._batches)

    def __len__(self) -> int:
        return self._length


def _whole_batches(loader: DataLoader) -> _WholeBatches | None:
    """The fast iterator, if nothing of the user's would see the difference."""
    dataset, indices = loader.dataset, None
    if type(dataset) is Subset and len(dataset):
        if not all(isinstance(index, int) for index in dataset.indices):
            return None
        indices = torch.tensor(dataset.indices)
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset or type(loader.batch_sampler) is not _PLAIN_BATCHES:
        return None
    sampler = loader.sampler
    plain = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(loader.dataset)
    )
    if (
        not plain
        or loader.num_workers
        or loader.pin_memory
        or loader.batch_sampler_drop_last is not None
        or loader.collate_fn is not torch.utils.data.default_collate
        or len(loader.dataset) == 0
        or any(type(t) is not torch.Tensor or t.requires_grad for t in dataset.tensors)
    ):
        return None
    return _WholeBatches(loader, dataset.tensors, indices)


_PLAIN_BATCHES = torch.utils.data.BatchSampler
