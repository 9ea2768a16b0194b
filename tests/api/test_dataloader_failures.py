# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments and failing datasets of the asynchronous loaders: each says what happened, in the
process that asked, and nothing hangs."""

import os
import pickle
import signal
import threading
import time

import poptorch
import pytest
import torch
from loader_support import (
    ASYNC,
    FORK,
    REBATCHED,
    BrokenParser,
    Elements,
    Failing,
    Pair,
    PairParser,
    first_column,
    numbers,
    ones_to,
)
from poptorch import AsynchronousDataAccessor as Accessor

# They count processes and shared memory: not beside each other.
pytestmark = pytest.mark.xdist_group("processes")

NOT_STARTED = "AsynchronousDataAccessor worker thread failed to start"
FETCHER = "An error occurred in the data fetcher"
NOT_FLAT = "AsynchronousDataAccessor expects data to be organised as a flat 1D container of tensors"
STRATEGIES = list(poptorch.SharingStrategy)


# Arguments ----------------------------------------------------------------------------------------


def test_a_loader_has_one_accessor(opts):
    loader = poptorch.DataLoader(opts, numbers(4), mode=ASYNC, async_options=FORK)
    text = "The DataLoader already uses an AsynchronousDataAccessor internally"
    with pytest.raises(poptorch.Error, match=text):
        Accessor(loader)
    assert len(first_column(loader)) == 4
    loader.terminate()


def test_an_incomplete_last_batch_needs_rebatching(opts):
    loader = poptorch.DataLoader(opts, numbers(5), batch_size=2, drop_last=False)
    with pytest.raises(AssertionError, match="only works if 'rebatched_size' is specified too"):
        Accessor(loader)
    single = poptorch.DataLoader(opts, numbers(5), drop_last=False)
    accessor = Accessor(single, **FORK)
    assert len(first_column(accessor)) == 5
    accessor.terminate()


def test_rebatched_size_is_more_than_one(opts):
    text = "rebatched_size must be None or greater than 1"
    for size in (1, 0, -1):
        with pytest.raises(AssertionError, match=text):
            Accessor(ones_to(3), rebatched_size=size)
    with pytest.raises(AssertionError, match=text):
        poptorch.DataLoader(opts, numbers(4), mode=REBATCHED)


def test_rebatched_size_is_given_once(opts):
    text = "You cannot use DataLoaderMode.AsyncRebatched and manually specify"
    with pytest.raises(AssertionError, match=text):
        poptorch.DataLoader(
            opts, numbers(8), 2, mode=REBATCHED, async_options={"rebatched_size": 4}
        )


def test_workers_cannot_make_more_than_a_batch(opts):
    with pytest.raises(AssertionError, match="must be <= to the combined batch size"):
        poptorch.DataLoader(opts, numbers(8), 2, mode=REBATCHED, rebatched_worker_size=3)


def test_other_arguments_are_checked(opts):
    with pytest.raises(AssertionError, match="buffer_size must be at least 1"):
        Accessor(ones_to(3), buffer_size=0)
    with pytest.raises(TypeError, match="surprise"):
        poptorch.DataLoader(opts, numbers(4), mode=ASYNC, async_options={"surprise": 1})
    with pytest.raises(ValueError, match="7"):
        poptorch.DataLoader(opts, numbers(4), mode=7)
    with pytest.raises(ValueError, match="9"):
        Accessor(ones_to(3), sharing_strategy=9)


def test_a_terminated_loader_cannot_be_read(opts):
    loader = poptorch.DataLoader(opts, numbers(4), mode=ASYNC, async_options=FORK)
    batches = iter(loader)
    loader.terminate()
    with pytest.raises(AssertionError, match="terminated"):
        iter(loader)
    with pytest.raises(AssertionError, match="terminated"):
        next(batches)
    assert len(loader) == 4


# A worker that cannot start -----------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_the_first_element_raises(strategy):
    with pytest.raises(poptorch.Error, match=NOT_STARTED) as caught:
        Accessor(Failing(0), sharing_strategy=strategy)
    text = str(caught.value)
    assert "ValueError: element 0 is broken" in text
    assert "loader_support.py" in text and "raise self.error" in text, "with its traceback"


def test_an_empty_dataset():
    with pytest.raises(poptorch.Error, match=NOT_STARTED) as caught:
        Accessor(Elements(), **FORK)
    assert "The Dataset is empty" in str(caught.value)


@pytest.mark.parametrize(
    "element",
    [3, "text", None, [], [torch.ones(1), 2], [[torch.ones(1)]], {"a": [torch.ones(1)]}, {"a": 1}],
    ids=repr,
)
def test_elements_that_are_not_flat(element):
    with pytest.raises(poptorch.Error, match=NOT_FLAT):
        Accessor(Elements(element), **FORK)


def test_an_unknown_type_as_element():
    with pytest.raises(poptorch.Error, match=NOT_FLAT):
        Accessor(Elements(Pair(torch.ones(1), torch.ones(1))), **FORK)


def test_rows_that_cannot_be_combined():
    for element in (torch.tensor(1.0), [torch.ones(2), torch.ones(3)]):
        with pytest.raises(poptorch.Error, match="same number of rows"):
            Accessor(Elements(element), rebatched_size=4, **FORK)


@pytest.mark.parametrize("strategy", [STRATEGIES[0], STRATEGIES[1], STRATEGIES[3]])
def test_a_dataset_that_cannot_be_pickled(strategy):
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(poptorch.Error, match=NOT_STARTED) as caught:
        Accessor((torch.ones(1) for _ in range(2)), sharing_strategy=strategy)
    assert "SharingStrategy.Fork needs no pickling" in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)
    caught = None
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 3, "at most the server was started"


class Unreadable:
    def __reduce__(self):
        return _cannot_read, ()


def _cannot_read():
    raise OSError("not on this side")


def test_a_dataset_that_cannot_be_unpickled():
    with pytest.raises(poptorch.Error, match=NOT_STARTED) as caught:
        Accessor(Unreadable())
    assert "OSError: not on this side" in str(caught.value)


# A worker that fails later ------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_an_exception_comes_where_sync_would_raise_it(strategy):
    accessor = Accessor(Failing(6), sharing_strategy=strategy)
    seen = []
    with pytest.raises(AssertionError, match=FETCHER) as caught:
        for batch in accessor:
            seen.append(batch.item())
    assert seen == [0, 1, 2, 3, 4, 5], "all before it arrive"
    text = str(caught.value)
    assert "ValueError: element 6 is broken" in text
    assert "loader_support.py" in text and "raise self.error" in text
    with pytest.raises(AssertionError, match="element 6 is broken"):
        next(accessor)
    assert next(iter(accessor)).item() == 0, "a new epoch may go better"
    accessor.terminate()


def test_an_exception_ahead_of_the_consumer_is_forgotten_with_its_epoch():
    accessor = Accessor(Failing(3), buffer_size=8, **FORK)
    for _ in range(4):
        batches = iter(accessor)
        assert [next(batches).item() for _ in range(2)] == [0, 1]
        time.sleep(0.02)  # the worker has raised by now
    with pytest.raises(AssertionError, match="element 3 is broken"):
        list(accessor)
    accessor.terminate()


@pytest.mark.parametrize("error", [SystemExit, MemoryError, StopIteration, StopAsyncIteration])
def test_any_kind_of_exception_is_reported(error):
    accessor = Accessor(Failing(2, error), **FORK)
    with pytest.raises(AssertionError, match=FETCHER) as caught:
        list(accessor)
    assert "element 2 is broken" in str(caught.value)
    accessor.terminate()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_in_collate_fn(opts, workers):
    def collate(samples):
        if samples[0][0] == 4:
            raise RuntimeError("cannot collate")
        return torch.utils.data.default_collate(samples)

    loader = poptorch.DataLoader(
        opts, numbers(8), 2, mode=ASYNC, async_options=FORK, collate_fn=collate, num_workers=workers
    )
    with pytest.raises(AssertionError, match=FETCHER) as caught:
        list(loader)
    assert "cannot collate" in str(caught.value) and "in collate" in str(caught.value)
    loader.terminate()


def test_an_exception_in_a_parser():
    pairs = Elements(*[Pair(torch.ones(2), torch.ones(2)) for _ in range(3)])
    poptorch.registerCustomArgParser(Pair, BrokenParser())
    try:
        with pytest.raises(poptorch.Error, match=NOT_STARTED) as caught:
            Accessor(pairs)
        assert "LookupError: the parser is broken" in str(caught.value)
        poptorch.registerCustomArgParser(Pair, OwnSide())
        accessor = Accessor(pairs)
        for _ in range(2):
            with pytest.raises(LookupError, match="cannot put together"):
                next(accessor)
        accessor.terminate()
    finally:
        poptorch.registerCustomArgParser(Pair, None)


class OwnSide(PairParser):
    """Fails in the process of the consumer."""

    def reconstruct(self, original_structure, tensor_iterator):
        raise LookupError("cannot put together")


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (torch.ones(3), r"tensor 0 was \[2\] torch.float32, now it is \[3\]"),
        (torch.ones(2).int(), "now it is .* torch.int32"),
        ([torch.ones(2)], "expected Tensor, got list of 1"),
        (5, NOT_FLAT),
    ],
)
def test_elements_that_differ_from_the_first(second, text):
    accessor = Accessor(Elements(torch.ones(2), second), **FORK)
    assert next(accessor).tolist() == [1, 1]
    with pytest.raises(AssertionError, match=FETCHER + r"(.|\n)*" + text):
        next(accessor)
    accessor.terminate()


def test_keys_that_differ_from_the_first():
    first, second = {"a": torch.ones(2)}, {"b": torch.ones(2)}
    accessor = Accessor(Elements(first, second), **FORK)
    next(accessor)
    with pytest.raises(AssertionError, match=r"expected dict of \['a'\], got dict of \['b'\]"):
        next(accessor)
    accessor.terminate()


def test_rebatched_elements_that_differ_from_the_first():
    accessor = Accessor(Elements(torch.ones(2, 3), torch.ones(2, 4)), rebatched_size=4, **FORK)
    with pytest.raises(AssertionError, match=r"now it is \[2, 4\]"):
        next(accessor)
    accessor.terminate()


# Death and interruption ---------------------------------------------------------------------------


class Slow:
    """Its second element takes longer than any test."""

    def __iter__(self):
        yield torch.zeros(1)
        time.sleep(3600)


def later(action, *arguments):
    timer = threading.Timer(0.3, action, arguments)
    timer.start()
    return timer


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_a_worker_that_is_killed_while_the_consumer_waits(strategy):
    accessor = Accessor(Slow(), sharing_strategy=strategy)
    next(accessor)
    timer = later(os.kill, accessor._worker._process.pid, signal.SIGKILL)
    with pytest.raises(AssertionError, match=FETCHER + ".*killed by SIGKILL"):
        next(accessor)
    with pytest.raises(poptorch.RecoverableError, match=FETCHER) as caught:
        next(accessor)
    assert caught.value.recovery_action == "IPU_RESET"
    assert type(pickle.loads(pickle.dumps(caught.value))) is type(caught.value)
    timer.join()
    assert next(iter(accessor)).item() == 0, "the next epoch has a worker of its own"
    os.kill(accessor._worker._process.pid, signal.SIGKILL)
    with pytest.raises(poptorch.RecoverableError):
        next(accessor)
    accessor.terminate()
    with pytest.raises(AssertionError, match="terminated"):
        iter(accessor)


def test_a_worker_that_is_killed_while_its_own_workers_live(opts):
    loader = poptorch.DataLoader(
        opts, numbers(8), mode=ASYNC, async_options={**FORK, "buffer_size": 1}, num_workers=2
    )
    next(iter(loader))
    os.kill(loader._accessor._worker._process.pid, signal.SIGKILL)
    with pytest.raises(AssertionError, match=FETCHER + ".*killed by SIGKILL"):
        list(loader._accessor)
    loader.terminate()


def test_a_worker_that_leaves_by_itself():
    accessor = Accessor(Leaving(), **FORK)
    assert next(accessor).item() == 0
    with pytest.raises(AssertionError, match=FETCHER + ".*exit code 3"):
        next(accessor)


class Leaving:
    def __iter__(self):
        yield torch.zeros(1)
        os._exit(3)


def test_interrupt_while_waiting_leaves_the_accessor_usable():
    data = Elements(*[torch.full((1,), i) for i in range(4)])
    accessor = Accessor(Pausing(data), **FORK)
    assert next(accessor).item() == 0
    timer = later(os.kill, os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        next(accessor)
    assert [b.item() for b in iter_rest(accessor)] == [1, 2, 3]
    accessor.terminate()
    timer.join()


def iter_rest(accessor):
    """What is left of the epoch; iter() would start a new one."""
    while True:
        try:
            yield next(accessor)
        except StopIteration:
            return


class Pausing:
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        for index, element in enumerate(self.data):
            if index == 1:
                time.sleep(1)
            yield element


def test_interrupt_during_start_ends_the_worker():
    timer = later(os.kill, os.getpid(), signal.SIGINT)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Accessor(SlowStart(), **FORK)
    assert time.monotonic() - begin < 8, "it is interrupted, not waited for"
    timer.join()


class SlowStart:
    def __iter__(self):
        time.sleep(3600)
        yield torch.zeros(1)
