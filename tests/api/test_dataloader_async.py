# SPDX-License-Identifier: Apache-2.0
"""The asynchronous modes of DataLoader: the batches of Sync, epochs, prefetching, rebatching."""

import gc
import os
import time

import numpy as np
import poptorch
import pytest
import torch
from loader_support import (
    ASYNC,
    FORK,
    REBATCHED,
    Elements,
    Endless,
    Named,
    Pair,
    PairParser,
    Stream,
    counter,
    first_column,
    numbers,
    ones_to,
    settles_at,
    share_elements,
)
from poptorch import AsynchronousDataAccessor as Accessor
from torch.utils.data import BatchSampler, SequentialSampler, TensorDataset

# They count processes and shared memory: not beside each other.
pytestmark = pytest.mark.xdist_group("processes")

STRATEGIES = list(poptorch.SharingStrategy)


def epochs_of(loader, count=3):
    return [[[t.clone() for t in batch] for batch in loader] for _ in range(count)]


# The same data as Sync ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy", ["SharedMemory", "SharingStrategy.Fork", "poptorch.SharingStrategy.ForkServer", 1]
)
def test_a_sharing_strategy_and_a_mode_may_be_given_as_text_or_number(opts, strategy):
    loader = poptorch.DataLoader(
        opts,
        numbers(4),
        batch_size=2,
        mode="Async" if isinstance(strategy, str) else 1,
        async_options={"sharing_strategy": strategy},
    )
    assert first_column(loader) == [[0, 1], [2, 3]]
    loader.terminate()


def test_other_texts_are_refused_with_the_names_there_are(opts):
    for strategy in ("sharedmemory", "Memory", "SharingStrategy.", "DataLoaderMode.Sync", 7, None):
        with pytest.raises(ValueError, match=r"SharingStrategy \(SharedMemory, .*\), got"):
            Accessor(numbers(4), sharing_strategy=strategy)
    with pytest.raises(ValueError, match=r"poptorch.DataLoaderMode \(Sync, Async, AsyncRebatched"):
        poptorch.DataLoader(opts, numbers(4), mode="Fast")


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_every_sharing_strategy_gives_the_batches_of_sync(opts, strategy):
    opts.deviceIterations(2)
    common = {"batch_size": 2, "shuffle": True}
    torch.manual_seed(5)
    expected = epochs_of(poptorch.DataLoader(opts, numbers(21), **common))
    torch.manual_seed(5)
    options = {"sharing_strategy": strategy}
    loader = poptorch.DataLoader(opts, numbers(21), mode=ASYNC, async_options=options, **common)
    assert len(loader) == 5 and loader.combinedBatchSize == 4
    torch.testing.assert_close(epochs_of(loader), expected, rtol=0, atol=0)
    loader.terminate()


@pytest.mark.parametrize("mode", [ASYNC, REBATCHED])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_map_style_datasets_give_the_batches_of_sync(opts, mode, drop_last, workers):
    opts.Training.gradientAccumulation(3)
    common = {"batch_size": 2, "drop_last": drop_last, "num_workers": workers}
    sync = poptorch.DataLoader(opts, numbers(20), **common)
    loader = poptorch.DataLoader(opts, numbers(20), mode=mode, async_options=FORK, **common)
    assert loader.persistent_workers == (workers > 0)
    assert len(loader) == len(sync) == (3 if drop_last else 4)
    torch.testing.assert_close(epochs_of(loader), epochs_of(sync), rtol=0, atol=0)
    loader.terminate()


def test_random_numbers_of_a_dataset_continue_those_of_the_program(opts):
    torch.manual_seed(1)
    np.random.seed(2)
    state = torch.get_rng_state(), np.random.get_state()
    expected = [torch.rand(3), torch.from_numpy(np.random.rand(3))]
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    accessor = Accessor(RandomElement())
    torch.testing.assert_close(next(accessor), expected, rtol=0, atol=0)
    accessor.terminate()


class RandomElement:
    def __iter__(self):
        yield [torch.rand(3), torch.from_numpy(np.random.rand(3))]


def test_batches_train_a_model_like_eager(opts, regression):
    data = TensorDataset(torch.randn(24, 3), torch.randn(24, 2))
    reference = torch.nn.Linear(3, 2)
    reference.load_state_dict(regression.linear.state_dict())
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    losses, kept = [], []
    for x, target in torch.utils.data.DataLoader(data, batch_size=4):
        out = reference(x)
        loss = torch.nn.functional.mse_loss(out, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((out.detach(), loss.detach()))
    model = poptorch.trainingModel(
        regression, opts, optimizer=torch.optim.SGD(regression.parameters(), lr=0.1)
    )
    loader = poptorch.DataLoader(opts, data, batch_size=4, mode=ASYNC, async_options=FORK)
    for x, target in loader:
        kept.append(model(x, target))  # results must not be the memory of the ring
    loader.terminate()
    torch.testing.assert_close(kept, losses, rtol=1e-5, atol=1e-6)
    model.destroy()


def test_a_model_that_returns_its_input_returns_a_copy(opts):
    model = poptorch.inferenceModel(torch.nn.Identity(), opts)
    accessor = Accessor(ones_to(8), **FORK)
    results = [model(x) for x in accessor]
    assert [r[0].item() for r in results] == list(range(8))
    accessor.terminate()


# The ring -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_batches_are_the_memory_of_the_ring(opts, slots):
    accessor = Accessor(ones_to(11), buffer_size=slots, **FORK)
    for _ in range(2):
        places = []
        for index, batch in enumerate(accessor):
            assert batch.tolist() == [index, index]
            places.append(batch.data_ptr())
        assert len(places) == 11 and len(set(places)) == slots, "a copy would be elsewhere"
    accessor.terminate()


def test_a_batch_is_valid_until_the_next_is_asked_for(opts):
    data = ones_to(6)
    accessor = Accessor(data, buffer_size=2, **FORK)
    batch = next(accessor)
    assert settles_at(data.count, 3), "two are in the ring, the third has no place"
    assert batch.tolist() == [0, 0]
    next(accessor)
    assert settles_at(data.count, 4)
    assert batch.tolist() == [2, 2], "its place was used again"
    accessor.terminate()


def test_what_is_done_to_a_batch_does_not_show_in_the_next_lap(opts):
    accessor = Accessor(ones_to(4), buffer_size=1, **FORK)
    for index, batch in enumerate(accessor):
        assert batch.shape == (2,) and not batch.requires_grad
        assert batch.tolist() == [index, index]
        batch.zero_()
        batch.unsqueeze_(0).requires_grad_()
    accessor.terminate()
    assert batch.tolist() == [[0, 0]], "memory outlives the worker while a tensor points to it"


def test_types_and_shapes_of_tensors():
    element = [
        torch.randn(3, 1, 2, dtype=torch.float64),
        torch.tensor(True),
        torch.empty(0, 4),
        torch.randn(5).to(torch.bfloat16),
        torch.randn(4, 3).t(),
        torch.randn(2, dtype=torch.complex64),
        torch.randn(2, 2, requires_grad=True),
    ]
    accessor = Accessor(Elements(element, element), **FORK)
    for batch in accessor:
        torch.testing.assert_close(batch, [t.detach() for t in element], rtol=0, atol=0)
        assert all(t.is_contiguous() for t in batch)
    accessor.terminate()


class Leisurely:
    """An element takes a while, without work."""

    def __iter__(self):
        for index in range(12):
            time.sleep(0.02)
            yield torch.tensor([index])


def test_loading_and_use_overlap():
    def seconds(elements):
        begin = time.monotonic()
        for _ in elements:
            time.sleep(0.02)
        return time.monotonic() - begin

    in_turn = seconds(Leisurely())
    accessor = Accessor(Leisurely(), load_indefinitely=False, **FORK)
    next(iter(accessor))
    at_once = min(seconds(accessor) for _ in range(2))
    accessor.terminate()
    assert at_once < 0.85 * in_turn, "half, if nothing disturbs"


# Epochs -------------------------------------------------------------------------------------------


def test_early_preload_fills_the_ring_before_the_first_iteration():
    lazy, eager = ones_to(10), ones_to(10)
    first = Accessor(lazy, buffer_size=4, **FORK)
    second = Accessor(eager, buffer_size=4, early_preload=True, **FORK)
    assert settles_at(lazy.count, 1)
    assert settles_at(eager.count, 5), "four in the ring, one in the hand"
    iter(first)
    assert settles_at(lazy.count, 5)
    for accessor in (first, second):
        assert [int(b[0]) for b in accessor] == list(range(10))
        accessor.terminate()


@pytest.mark.parametrize("indefinitely", [True, False])
def test_load_indefinitely_starts_the_next_epoch_by_itself(indefinitely):
    data = ones_to(3)
    accessor = Accessor(data, buffer_size=8, load_indefinitely=indefinitely, **FORK)
    assert data.iterators.value == 1
    for epoch in range(3):
        assert [int(b[0]) for b in accessor] == [0, 1, 2]
        assert settles_at(data.iterators, epoch + 1 + indefinitely)
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(accessor)
    accessor.terminate()


def test_iter_resets_what_was_begun_and_nothing_else():
    accessor = Accessor(ones_to(5), **FORK)
    assert iter(accessor) is accessor is iter(accessor)
    assert next(accessor)[0] == 0
    assert next(accessor)[0] == 1
    for _ in range(5):
        assert next(iter(accessor))[0] == 0
    assert [int(b[0]) for b in accessor] == [0, 1, 2, 3, 4]
    for batch in accessor:
        if batch[0] == 3:
            break
    iter(iter(accessor))
    assert [int(b[0]) for b in accessor] == [0, 1, 2, 3, 4]
    accessor.terminate()


def test_iter_of_a_loader_is_its_accessor(opts):
    loader = poptorch.DataLoader(opts, numbers(4), mode=ASYNC, async_options=FORK)
    assert iter(loader) is loader._accessor
    loader.terminate()
    sync = poptorch.DataLoader(opts, numbers(4))
    assert sync._accessor is None
    sync.terminate()
    assert len(list(sync)) == 4


def test_a_dataset_that_can_be_read_once_has_one_epoch():
    accessor = Accessor((torch.tensor([i]) for i in range(3)), **FORK)
    assert [b.item() for b in accessor] == [0, 1, 2]
    assert [b.item() for b in accessor] == []
    accessor.terminate()


def test_a_dataset_without_iter_has_as_many_elements_as_it_says():
    accessor = Accessor(Endless())
    assert len(accessor) == 3
    assert [b.item() for b in accessor] == [0, 1, 2]
    accessor.terminate()


# Forms of batches ---------------------------------------------------------------------------------


def test_lists_and_tuples_become_lists_and_dicts_stay_dicts(opts):
    x, y = torch.ones(2), torch.arange(3)
    for element, expected in [
        (x, x),
        ([x, y], [x, y]),
        ((x, y), [x, y]),
        ({"x": x, "y": y}, {"x": x, "y": y}),
    ]:
        accessor = Accessor(Elements(element), **FORK)
        (batch,) = accessor
        assert type(batch) is type(expected)
        torch.testing.assert_close(batch, expected)
        accessor.terminate()
    loader = poptorch.DataLoader(opts, Named(), batch_size=2, mode=ASYNC)
    assert [(list(b), b["y"].tolist()) for b in loader] == [
        (["x", "y"], [i, i + 1]) for i in (0, 2, 4)
    ]
    loader.terminate()


def test_keys_of_a_dict_may_come_in_any_order():
    a, b = torch.zeros(2), torch.ones(3)
    accessor = Accessor(Elements({"a": a, "b": b}, {"b": b, "a": a}), **FORK)
    assert [(d["a"].sum().item(), d["b"].sum().item()) for d in accessor] == [(0, 3), (0, 3)]
    accessor.terminate()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_types_with_a_parser_are_rebuilt_with_what_is_no_tensor(strategy):
    poptorch.registerCustomArgParser(Pair, PairParser())
    try:
        titles = ["one", "one", "two", "one"]
        pairs = [Pair(torch.full((2,), i), torch.tensor(i), t) for i, t in enumerate(titles)]
        accessor = Accessor(Elements(*pairs), sharing_strategy=strategy)
        for _ in range(2):
            batches = [(type(b), b.x.tolist(), b.y.item(), b.title) for b in accessor]
            assert batches == [(Pair, [i, i], i, title) for i, title in enumerate(titles)]
        assert next(iter(accessor)).title == "one"
        assert next(iter(accessor)).title == "one", "skipped batches count too"
        accessor.terminate()
    finally:
        poptorch.registerCustomArgParser(Pair, None)


# Rebatching ---------------------------------------------------------------------------------------


def rows(*sizes):
    """Elements with that many rows, counted through."""
    return Elements(*torch.arange(sum(sizes)).split(list(sizes)))


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2, 2), (1,) * 10, (10,), (4, 1, 5), (3, 3, 3, 1)])
def test_elements_are_put_together(sizes):
    accessor = Accessor(rows(*sizes), rebatched_size=4, buffer_size=2, **FORK)
    for _ in range(2):
        assert [b.tolist() for b in accessor] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert accessor.rebatched_size == 4
    if len(set(sizes)) == 1:
        assert len(accessor) == 2
    accessor.terminate()


def test_a_loader_that_keeps_its_last_batch_keeps_it_short(opts, log):
    opts.deviceIterations(2)
    sync = poptorch.DataLoader(opts, numbers(11), batch_size=2, drop_last=False)
    expected = first_column(sync)
    accessor = Accessor(sync, rebatched_size=4, **FORK)
    loader = poptorch.DataLoader(
        opts, numbers(11), batch_size=2, drop_last=False, mode=ASYNC, async_options=FORK
    )
    assert loader.rebatched_drop_last is False
    for source in (accessor, loader):
        assert first_column(source) == first_column(source) == expected
        source.terminate()
    assert expected[-1] == [8, 9, 10] and len(loader) == 3


def test_what_is_no_tensor_comes_from_the_last_piece_of_a_batch():
    poptorch.registerCustomArgParser(Pair, PairParser())
    try:
        pieces = [("a", 2), ("b", 1), ("c", 2), ("c", 1), ("a", 2)]
        pairs = [Pair(torch.ones(n), torch.ones(n), title) for title, n in pieces]
        accessor = Accessor(Elements(*pairs), rebatched_size=2, **FORK)
        for _ in range(2):
            assert [b.title for b in accessor] == ["a", "c", "c", "a"]
        accessor.terminate()
    finally:
        poptorch.registerCustomArgParser(Pair, None)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("worker_size", [1, 3, None])
def test_rebatching_loses_at_most_one_batch_of_an_iterable_dataset(opts, drop_last, worker_size):
    opts.deviceIterations(4)
    common = {
        "num_workers": 2,
        "drop_last": drop_last,
        "worker_init_fn": share_elements,
        "async_options": FORK,
    }
    loader = poptorch.DataLoader(
        opts, Stream(22), mode=REBATCHED, rebatched_worker_size=worker_size, **common
    )
    seen = [b.tolist() for b in loader]
    assert [len(b) for b in seen] == [4] * 5 + ([] if drop_last else [2])
    everything = [i for b in seen for i in b]
    assert len(set(everything)) == len(everything)
    loader.terminate()
    if drop_last:  # without rebatching each worker loses three
        loader = poptorch.DataLoader(opts, Stream(22), mode=ASYNC, **common)
        assert sum(len(b) for b in loader) == 16
        loader.terminate()


class Batches:
    """A batch sampler that knows nothing of itself."""

    def __init__(self, *batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


@pytest.mark.parametrize("mode", [ASYNC, REBATCHED])
@pytest.mark.parametrize("drop_last", [True, False])
def test_batch_samplers_are_combined_as_in_sync(opts, mode, drop_last, log):
    opts.deviceIterations(2)
    known = BatchSampler(SequentialSampler(range(10)), 2, False)
    unknown = Batches(*[[i, i + 1] for i in range(0, 10, 2)])
    for sampler in (known, unknown):
        sync, loader = (
            poptorch.DataLoader(
                opts, numbers(10), batch_sampler=sampler, drop_last=drop_last, **more
            )
            for more in ({}, {"mode": mode, "async_options": FORK})
        )
        if sampler is known:
            assert len(loader) == len(sync) == (2 if drop_last else 3)
        assert first_column(loader) == first_column(loader) == first_column(sync)
        loader.terminate()


def test_short_batch_of_a_sampler_is_dropped_when_that_is_asked_for(opts):
    sampler = BatchSampler(SequentialSampler(range(10)), 4, False)
    loader = poptorch.DataLoader(
        opts, numbers(10), batch_sampler=sampler, mode=ASYNC, async_options=FORK
    )
    assert [len(b) for b in first_column(loader)] == [4, 4]
    loader.terminate()


def test_batching_may_be_disabled(opts):
    loader = poptorch.DataLoader(opts, numbers(3), batch_size=None, mode=ASYNC, async_options=FORK)
    assert loader.combinedBatchSize is None
    assert [int(b[0]) for b in loader] == [0, 1, 2]
    loader.terminate()


# What reaches the worker --------------------------------------------------------------------------


class Mixed:
    """Many tensors, two of which share memory, arrays, and a counter of multiprocessing."""

    def __init__(self):
        self.base = torch.arange(3000)
        self.view = self.base[1000:]
        self.many = [torch.tensor([i]) for i in range(1500)]
        self.array = np.arange(4000)
        self.empty = torch.empty(0)
        self.weight = torch.nn.Parameter(torch.ones(2000))
        self.count = counter()

    def __iter__(self):
        self.count.value += 1
        self.base[1000] = 7  # its own copy, also seen through the view
        self.array[0] = 5
        yield [
            self.view[0],
            torch.cat(self.many),
            torch.from_numpy(self.array),
            self.weight.sum(),
            torch.tensor(self.empty.numel()),
        ]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_datasets_of_any_content_reach_the_worker(strategy):
    data = Mixed()
    accessor = Accessor(data, sharing_strategy=strategy, load_indefinitely=False)
    view, many, array, weight, empty = next(accessor)
    assert view == 7 and weight == 2000 and empty == 0
    assert torch.equal(many, torch.arange(1500))
    assert array[0] == 5 and array[3999] == 3999
    accessor.terminate()
    assert data.base[1000] == 1000 and data.array[0] == 0, "the worker has a copy"
    assert data.count.value == 1


# Ends ---------------------------------------------------------------------------------------------


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("end", ["terminate", "delete"])
@pytest.mark.parametrize("strategy", STRATEGIES[2:], ids=lambda s: s.name)
def test_nothing_is_left_of_a_loader(opts, end, strategy):
    def run():
        loader = poptorch.DataLoader(
            opts, numbers(8), mode=ASYNC, async_options={"sharing_strategy": strategy}
        )
        process = loader._accessor._worker._process
        assert process.is_alive()
        next(iter(loader))
        if end == "terminate":
            loader.terminate()
            loader.terminate()
        else:
            del loader
            patience = time.monotonic() + 30
            while process.is_alive() and time.monotonic() < patience:
                gc.collect()  # does nothing while another thread collects
                time.sleep(0.01)
        assert not process.is_alive() and process.exitcode == 0

    run()  # starts the fork server
    gc.collect()
    before = open_files()
    run()
    gc.collect()
    assert open_files() == before


def test_a_forked_process_does_not_stop_the_worker_of_its_parent():
    accessor = Accessor(ones_to(5), **FORK)
    batches = iter(accessor)
    next(batches)
    pid = os.fork()
    if pid == 0:
        try:
            accessor.terminate()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert [int(b[0]) for b in batches] == [0, 1, 2, 3, 4]
    accessor.terminate()


def test_a_worker_stuck_in_its_dataset_is_interrupted(monkeypatch):
    from poptorch.data import process as _data_process

    monkeypatch.setattr(_data_process, "PATIENCE", 0.3)
    stuck = Stuck()
    accessor = Accessor(stuck, early_preload=True, **FORK)
    assert settles_at(stuck.count, 1)
    process = accessor._worker._process
    accessor.terminate()
    assert process.exitcode == 0, "SIGINT was enough, and no error"


class Stuck:
    def __init__(self):
        self.count = counter()

    def __iter__(self):
        yield torch.zeros(1)
        self.count.value = 1
        time.sleep(3600)
