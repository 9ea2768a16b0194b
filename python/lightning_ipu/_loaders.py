# SPDX-License-Identifier: Apache-2.0
"""Data loaders of the user's as loaders whose batches are as large as one run needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

_COPIED = (
    "num_workers",
    "collate_fn",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "persistent_workers",
    "prefetch_factor",
)


class CombinedBatches:
    """Batches of indices, ``count`` of an inner sampler's joined into each.

    ``sampler`` is the inner one's, because Lightning tells it the epoch.
    """

    def __init__(self, inner: Any, count: int) -> None:
        self.inner = inner
        self.count = count
        self.sampler = getattr(inner, "sampler", None)
        self.batch_size = getattr(inner, "batch_size", None)
        self.drop_last = False

    def __len__(self) -> int:
        return -(-len(self.inner) // self.count)

    def __iter__(self) -> Iterator[list[int]]:
        joined: list[int] = []
        for number, batch in enumerate(self.inner, 1):
            joined += batch
            if number % self.count == 0:
                yield joined
                joined = []
        if joined:
            yield joined


def combined_count(options: Any) -> int:
    """Micro-batches in one batch."""
    return (
        options.device_iterations
        * (options.replication_factor // options.input_group_size)
        * options.Training.gradient_accumulation
    )


def converted(
    loader: Any, options: Any, *, training: bool, tracker: Any = None, refuse: type[Exception]
) -> Any:
    """``loader`` with batches for one run of a program with ``options``.

    Args:
        loader: of the user's.
        options: poptorch's, of the stage.
        training: whether incomplete batches are dropped.
        tracker: wraps the sampler of a loader whose indices Lightning wants to see.
        refuse: class of errors.
    """
    import poptorch

    if not isinstance(loader, DataLoader) or isinstance(loader, poptorch.DataLoader):
        return loader
    settings = {name: getattr(loader, name) for name in _COPIED}
    count = combined_count(options)
    iterable = isinstance(loader.dataset, IterableDataset)
    if loader.batch_sampler is None:  # batches are made by the dataset
        return loader
    if tracker is not None and not iterable:
        batches = tracker(CombinedBatches(loader.batch_sampler, count))
        result = DataLoader(loader.dataset, **settings)
        # torch does not let it be set later, and would take the one above for a user's choice.
        object.__setattr__(result, "batch_sampler", batches)
        object.__setattr__(result, "sampler", loader.sampler)
        object.__setattr__(result, "batch_size", None)
    else:
        drops = loader.drop_last and not training and not iterable  # micro-batches, not whole ones
        if loader.batch_size is None or drops:
            settings["batch_sampler"] = loader.batch_sampler
        elif not iterable:
            settings.update(batch_size=loader.batch_size, sampler=loader.sampler)
        else:
            settings["batch_size"] = loader.batch_size
        with _quiet(poptorch.logger):
            result = poptorch.DataLoader(
                options,
                loader.dataset,
                drop_last=training or (loader.drop_last and count == 1 and iterable),
                auto_distributed_partitioning=False,
                **settings,
            )
    result._micro_rows = getattr(loader.batch_sampler, "batch_size", None)
    if training and not iterable:
        _check_training(loader, result, count, refuse)
    return result


@contextmanager
def _quiet(logger: Any) -> Iterator[None]:
    """Without the warning of a short last batch, which is dealt with here."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def micro_rows(loader: Any) -> int | None:
    """Samples of a micro-batch of a converted loader, or of a ``poptorch.DataLoader``."""
    if hasattr(loader, "_micro_rows"):
        return loader._micro_rows
    combined = getattr(loader, "combinedBatchSize", None)
    if combined is None:
        return None
    return combined // combined_count(loader.options)


def _check_training(loader: Any, result: Any, count: int, refuse: type[Exception]) -> None:
    """Refuse a loader that would give nothing, and warn of samples that are not trained on."""
    from lightning_ipu._effects import warn_of_user

    try:
        samples, whole = len(loader.sampler), len(result)
    except (TypeError, NotImplementedError):
        return
    size = getattr(loader.batch_sampler, "batch_size", None)
    if whole == 0 and samples:
        raise refuse(
            f"The training data has {samples} samples, fewer than one step needs: {count} "
            "micro-batches (device iterations x replicas x accumulate_grad_batches)"
            + (f" of {size}." if size else ".")
        )
    if size and samples % (size * count):
        warn_of_user(
            f"The last {samples % (size * count)} of {samples} training samples of each epoch are "
            f"left out: a step takes {size * count} and a compiled program has one size."
        )
