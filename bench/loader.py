# SPDX-License-Identifier: Apache-2.0
"""What an asynchronous loader costs the process that reads from it, and how well it overlaps.

The first table compares `next()` of batches that are ready with a `memcpy` of the same bytes. The
second trains on a dataset whose batch takes as long as a training step: by waiting, as for a disk,
or by computing, which needs a core of its own; a model that uses all cores then has to share them,
and the row for it has no limit. The last line says how far two processes that have nothing to do
with each other slow each other down: on a free machine 1.00, and no row can be better. Figures
are the best of many samples, medians are beside them.
usage: python -m bench.loader
"""

import multiprocessing
import os
import statistics
import time

import torch
from torch import nn

from bench.harness import training_executor
from bench.models import TutorialCNN, WithLoss

SIZES = {  # of the elements of one batch
    "16 x 784, 49 KiB": (16, 784),
    "64 x 3 x 32 x 32, 768 KiB": (64, 3, 32, 32),
    "16 x 3 x 224 x 224, 9 MiB": (16, 3, 224, 224),
    "64 x 3 x 224 x 224, 37 MiB": (64, 3, 224, 224),
}
STEPS = 30
ROUNDS = 5


class Ready:
    """Batches that exist already: the worker only copies them into the ring."""

    def __init__(self, shape):
        self.batch = [torch.randn(shape), torch.zeros(shape[0], dtype=torch.long)]

    def __iter__(self):
        while True:
            yield self.batch


class Timed(torch.utils.data.Dataset):
    """Batches that take a given time to make, waiting or computing."""

    def __init__(self, seconds, computes):
        self.seconds, self.computes = seconds, computes
        self.batch = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        if not self.computes:
            time.sleep(self.seconds)
            return self.batch
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            self.batch[0].sum()
        return self.batch


def accessor_of(dataset, **arguments):
    import poptorch

    return poptorch.AsynchronousDataAccessor(dataset, **arguments)


def next_costs():
    """Rows of (title, seconds of every next(), seconds of every memcpy)."""
    torch.set_num_threads(1)  # a memcpy, not a parallel one
    for title, shape in SIZES.items():
        accessor = accessor_of(Ready(shape), early_preload=True)
        source, target = torch.randn(shape), torch.empty(shape)
        ours, copies = [], []
        for _ in range(300):
            time.sleep(max(2 * min(copies, default=0), 0.0005))  # until the batch is ready
            start = time.perf_counter()
            next(accessor)
            middle = time.perf_counter()
            target.copy_(source)
            ours.append(middle - start)
            copies.append(time.perf_counter() - middle)
        accessor.terminate()
        yield title, ours, copies


def epoch(batches, step):
    start = time.perf_counter()
    for batch in batches:
        step(*batch)
    return time.perf_counter() - start


def skip(*batch):
    """A step that does nothing."""


def model_step(threads, repeats):
    """A training step of the tutorial CNN, repeated until it takes some milliseconds."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = WithLoss(TutorialCNN(), nn.NLLLoss())
    run = training_executor(model, torch.optim.SGD(model.parameters(), lr=0.001))

    def step(images, labels):
        for _ in range(repeats):
            run(images, labels)

    return step


def overlaps():
    """Rows of (title, model alone, data alone, both at once), seconds of every epoch."""
    for computes, threads in ((False, 2), (True, 1), (True, 2)):
        kind = "computing" if computes else "waiting"
        step = model_step(threads, 20)
        images = [Timed(0, False).batch] * STEPS
        epoch(images, step)
        alone = [epoch(images, step) for _ in range(ROUNDS)]
        dataset = Timed(min(alone) / STEPS, computes)
        accessor = accessor_of(dataset, load_indefinitely=False)
        epoch(accessor, step)
        both = [epoch(accessor, step) for _ in range(ROUNDS)]
        accessor.terminate()
        data = [epoch(map(dataset.__getitem__, range(STEPS)), skip) for _ in range(ROUNDS)]
        title = f"{kind}, model on {threads} thread{'s' * (threads > 1)}"
        yield title, alone, data, both


def busy(seconds):
    """Time that so much work of one core takes."""
    start, end = time.perf_counter(), time.process_time() + seconds
    while time.process_time() < end:
        pass
    return time.perf_counter() - start


def two_at_once():
    """How much longer a core's work takes while another process does the same."""
    context = multiprocessing.get_context("fork")
    alone = min(busy(0.3) for _ in range(ROUNDS))
    together = []
    for _ in range(ROUNDS):
        other = context.Process(target=busy, args=(0.4,))
        other.start()
        together.append(busy(0.3))
        other.join()
    return min(together) / alone


def main():
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"WARNING: load average {load:.1f}: other work is running, figures are not valid")
    print(f"{'batch':32}{'next()':>12}{'memcpy':>12}{'ratio':>9}{'median':>9}   (5 %)")
    for title, ours, copies in next_costs():
        best, copy = min(ours), min(copies)
        median = statistics.median(ours) / statistics.median(copies)
        times = f"{best * 1e6:9.1f} us{copy * 1e6:9.1f} us"
        print(f"{title:32}{times}{best / copy:9.1%}{median:9.1%}", flush=True)
    print()
    heads = f"{'dataset':32}{'model':>12}{'data':>12}{'both':>12}{'ratio':>9}{'median':>9}"
    print(f"{heads}   (1.15)")
    for title, *samples in overlaps():
        model, data, both = map(min, samples)
        medians = list(map(statistics.median, samples))
        times = f"{model * 1e3:9.0f} ms{data * 1e3:9.0f} ms{both * 1e3:9.0f} ms"
        ratio, median = both / max(model, data), medians[2] / max(medians[:2])
        print(f"{title:32}{times}{ratio:9.2f}{median:9.2f}", flush=True)
    print(f"{'two processes without a loader':68}{two_at_once():9.2f}")


if __name__ == "__main__":
    main()
