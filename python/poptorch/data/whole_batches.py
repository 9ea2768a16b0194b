# SPDX-License-Identifier: Apache-2.0
"""A faster way to read a ``TensorDataset``: each batch is gathered by one indexing."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler, Subset, TensorDataset

_PLAIN_BATCHES = torch.utils.data.BatchSampler


class _WholeBatches:
    """Batches of a TensorDataset, each gathered by one indexing instead of sample by sample.

    Order, values and use of random numbers are those of torch's own iterator: collating 16
    samples one by one takes longer than a training step of a small model.
    """

    def __init__(self, loader: Any, tensors: Any, indices: torch.Tensor | None) -> None:
        self._length = len(loader)
        # torch draws a base seed for its workers, even without workers.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        self._batches = self._generate(loader, tensors, indices)

    @staticmethod
    def _generate(
        loader: Any, tensors: Any, indices: torch.Tensor | None
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


def whole_batches(loader: Any) -> _WholeBatches | None:
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
