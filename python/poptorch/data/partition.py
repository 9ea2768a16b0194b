# SPDX-License-Identifier: Apache-2.0
"""The part of a dataset that one of several processes reads."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler, Subset

from poptorch.options import Options


def share_of(count: int, step: int, options: Options, drop_last: bool) -> range:
    """The positions of this process among ``count``.

    With ``drop_last`` all processes get the same number, a multiple of ``step``; otherwise the
    numbers differ by at most one.
    """
    processes, rank = options.Distributed.numProcesses, options.Distributed.processId
    if drop_last:
        size = step * (count // (step * processes))
        return range(rank * size, (rank + 1) * size)
    size, rest = divmod(count, processes)
    begin = rank * size + min(rank, rest)
    return range(begin, begin + size + (rank < rest))


def partition(
    dataset: Any, step: int, options: Options, drop_last: bool, shuffle: bool
) -> tuple[Any, Sampler | None]:
    """This process's part of a dataset, and the sampler that shuffles it if that is wanted."""
    share = share_of(len(dataset), step, options, drop_last)
    if not shuffle:
        return Subset(dataset, share), None
    assert options.exists("random_seed"), (
        "To shuffle a dataset that is partitioned over several processes, you must set "
        "poptorch.Options.randomSeed() to the same value in all of them."
    )
    return _ShuffledPart(dataset, share), _SharedShuffle(
        len(dataset), share, options.random_seed, drop_last
    )


class _ShuffledPart(Dataset):
    """As long as this process's part, though batches come from everywhere in the dataset."""

    def __init__(self, dataset: Any, share: range) -> None:
        self.dataset = dataset
        self._share = share

    def __len__(self) -> int:
        return len(self._share)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self._share[index]]

    def __getitems__(self, positions: list[int]) -> list[Any]:
        """What the loader calls, with positions in the whole dataset."""
        whole = getattr(self.dataset, "__getitems__", None)
        if whole is not None:
            return whole(positions)
        return [self.dataset[position] for position in positions]


class _SharedShuffle(Sampler):
    """A permutation that all processes draw alike, and of which each reads its own range.

    It is drawn where the loader iterates, so that workers of torch, which hold copies of the
    dataset, need not know of it.
    """

    def __init__(self, count: int, share: range, seed: int, drop_last: bool) -> None:
        self._count = count
        self._share = share
        self._generator = torch.Generator().manual_seed(seed)
        # What no process reads lies at one end in one epoch and at the other in the next.
        self._shift = count % len(share) if drop_last and share else 0
        self._shifted = False

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self._count, generator=self._generator)
        self._shifted = not self._shifted
        begin = self._share.start + (self._shift if self._shifted else 0)
        return iter(order[begin : begin + len(self._share)].tolist())
