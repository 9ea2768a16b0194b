# SPDX-License-Identifier: Apache-2.0
"""DataLoader when several processes train together: each reads its own part of the dataset."""

import poptorch
import pytest
import torch
from loader_support import ASYNC, FORK, REBATCHED, Stream, first_column, numbers
from torch.utils.data import BatchSampler, SequentialSampler, Subset, TensorDataset


def loader_of(rank, processes, count, seed=None, **arguments):
    opts = poptorch.Options().showCompilationProgressBar(False).deviceIterations(2)
    opts.Distributed.configureProcessId(rank, processes)
    if seed is not None:
        opts.randomSeed(seed)
    arguments.setdefault("batch_size", 2)
    return poptorch.DataLoader(opts, numbers(count), **arguments)


def elements(loader):
    return [i for batch in first_column(loader) for i in batch]


@pytest.mark.parametrize("count", [24, 25, 35])
@pytest.mark.parametrize("processes", [2, 3])
def test_parts_are_equal_multiples_of_a_call(count, processes):
    size = 4 * (count // (4 * processes))
    for rank in range(processes):
        loader = loader_of(rank, processes, count)
        assert loader.combinedBatchSize == 4, "the number of processes is not part of it"
        assert len(loader.dataset) == size and len(loader) == size // 4
        assert elements(loader) == list(range(rank * size, (rank + 1) * size))


@pytest.mark.parametrize("count", [24, 25, 26])
def test_parts_that_keep_everything_differ_by_one(count, log):
    parts = [elements(loader_of(rank, 3, count, drop_last=False)) for rank in range(3)]
    assert sum(parts, []) == list(range(count))
    assert [len(part) for part in parts] == [(count + 2 - rank) // 3 for rank in range(3)]
    warned = "is not divisible by the number of elements processed per step (12)" in log.text
    assert warned == (count % 12 != 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffling_is_a_permutation_shared_by_all_processes(workers):
    count, size = 22, 8
    generator = torch.Generator().manual_seed(6)
    loaders = [loader_of(r, 2, count, 6, shuffle=True, num_workers=workers) for r in range(2)]
    for epoch in range(4):
        order = torch.randperm(count, generator=generator).tolist()
        begin = count % size if epoch % 2 == 0 else 0
        for rank, loader in enumerate(loaders):
            offset = begin + rank * size
            assert elements(loader) == order[offset : offset + size]


def test_shuffled_parts_without_drop_last_cover_the_dataset(log):
    loaders = [loader_of(r, 3, 23, 6, shuffle=True, drop_last=False) for r in range(3)]
    for _ in range(2):
        parts = [elements(loader) for loader in loaders]
        assert [len(part) for part in parts] == [8, 8, 7]
        assert sorted(sum(parts, [])) == list(range(23))


@pytest.mark.parametrize("mode", [ASYNC, REBATCHED])
@pytest.mark.parametrize("shuffle", [False, True])
def test_asynchronous_modes_read_the_same_parts(mode, shuffle):
    for rank in range(2):
        sync = loader_of(rank, 2, 21, 6, shuffle=shuffle)
        loader = loader_of(rank, 2, 21, 6, shuffle=shuffle, mode=mode, async_options=FORK)
        for _ in range(3):
            assert first_column(loader) == first_column(sync)
        assert len(loader) == len(sync) == 2
        loader.terminate()


def test_one_process_or_no_partitioning_means_the_whole_dataset(opts):
    assert elements(loader_of(0, 1, 8)) == list(range(8))
    assert elements(loader_of(1, 2, 8, auto_distributed_partitioning=False)) == list(range(8))
    disabled = poptorch.Options()
    disabled.Distributed.configureProcessId(1, 2).disable()
    assert elements(poptorch.DataLoader(disabled, numbers(4))) == list(range(4))


def test_a_part_is_a_dataset_of_its_own():
    plain, shuffled = loader_of(1, 2, 20), loader_of(1, 2, 20, 6, shuffle=True)
    assert isinstance(plain.dataset, Subset)
    for part in (plain.dataset, shuffled.dataset):
        assert len(part) == 8 and part[0][0] == 8


def test_datasets_that_give_several_elements_at_once_are_asked_so():
    asked = []

    class Many(TensorDataset):
        def __getitems__(self, positions):
            asked.append(list(positions))
            return [self[p] for p in positions]

    opts = poptorch.Options().randomSeed(1)
    opts.Distributed.configureProcessId(0, 2)
    loader = poptorch.DataLoader(opts, Many(torch.arange(8)), batch_size=2, shuffle=True)
    seen = [i for (batch,) in loader for i in batch.tolist()]
    assert sum(asked, []) == seen
    assert [len(positions) for positions in asked] == [2, 2]


def test_a_dataset_too_small_for_all_is_empty():
    for shuffle in (False, True):
        loader = loader_of(0, 2, 7, 6, shuffle=shuffle)
        assert len(loader) == 0 and elements(loader) == []


def test_what_cannot_be_partitioned():
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(0, 2)
    text = "auto_distributed_partitioning not supported for IterableDataset"
    with pytest.raises(AssertionError, match=text):
        poptorch.DataLoader(opts, Stream(4))
    text = "batch_size=None not allowed when using auto_distributed_partitioning"
    with pytest.raises(AssertionError, match=text):
        poptorch.DataLoader(opts, numbers(4), batch_size=None)
    with pytest.raises(AssertionError, match=r"you must set poptorch.Options.randomSeed\(\)"):
        poptorch.DataLoader(opts, numbers(4), shuffle=True)
    sampler = BatchSampler(SequentialSampler(range(4)), 2, False)
    text = "mutually exclusive with auto_distributed_partitioning=True"
    with pytest.raises(poptorch.Error, match=text):
        poptorch.DataLoader(opts, numbers(4), batch_sampler=sampler)
    free = {"auto_distributed_partitioning": False}
    assert len(list(poptorch.DataLoader(opts, Stream(4), **free))) == 4
    assert len(list(poptorch.DataLoader(opts, numbers(4), batch_sampler=sampler, **free))) == 2
