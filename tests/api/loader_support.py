# SPDX-License-Identifier: Apache-2.0
"""Datasets of the loader's tests: importable, because worker processes unpickle them."""

import dataclasses
import multiprocessing
import time

import poptorch
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

ASYNC = poptorch.DataLoaderMode.Async
REBATCHED = poptorch.DataLoaderMode.AsyncRebatched
#: Starts fastest; what holds for all ways to start a worker is tested with all.
FORK = {"sharing_strategy": poptorch.SharingStrategy.Fork}


def counter():
    """A number that every kind of worker can share."""
    return multiprocessing.get_context("spawn").Value("i", 0)


def numbers(count):
    return TensorDataset(torch.arange(count), torch.arange(count * 3).reshape(count, 3).float())


def first_column(loader):
    """What one epoch gives, copied out of the ring."""
    return [batch[0].tolist() for batch in loader]


class Elements:
    """An iterable of the elements given to it; counts what it has returned, in any process."""

    def __init__(self, *elements):
        self.elements = elements
        self.count = counter()
        self.iterators = counter()

    def __len__(self):
        return len(self.elements)

    def __iter__(self):
        self.iterators.value += 1
        for element in self.elements:
            self.count.value += 1
            yield element


def ones_to(count):
    return Elements(*[torch.full((2,), float(i)) for i in range(count)])


def settles_at(value, expected):
    """Whether a counter of a worker gets there, and stays."""
    end = time.monotonic() + 20
    while value.value < expected and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(0.1)
    return value.value == expected


class Failing:
    """Raises at one of its elements."""

    def __init__(self, at, error=ValueError):
        self.at, self.error = at, error

    def __iter__(self):
        for index in range(20):
            if index == self.at:
                raise self.error(f"element {index} is broken")
            yield torch.tensor([index])


class Stream(IterableDataset):
    """Counts up; its workers share the elements among them."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        begin, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(begin, self.count, step):
            yield torch.tensor(index)


def share_elements(worker):
    """A worker_init_fn: its presence says that the dataset knows about workers."""


class Named(Dataset):
    """Samples that are dicts."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"x": torch.full((3,), float(index)), "y": torch.tensor(index)}


class Endless(Dataset):
    """Has a length, and elements beyond it."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.tensor([index])


@dataclasses.dataclass
class Pair:
    """A batch of a type of one's own."""

    x: torch.Tensor
    y: torch.Tensor
    title: str = ""


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.x
        yield struct.y

    def reconstruct(self, original_structure, tensor_iterator):
        return Pair(next(tensor_iterator), next(tensor_iterator), original_structure.title)


class BrokenParser(PairParser):
    def yieldTensors(self, struct):
        raise LookupError("the parser is broken")
