# SPDX-License-Identifier: Apache-2.0
"""``fps`` and ``nearest`` against plain PyTorch, and their checks."""

import itertools
import math

import poptorch
import pytest
import torch


class Points(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def run(function, *args, opts):
    return poptorch.inferenceModel(Points(function), opts)(*args)


def sampled(points, ptr, ratio, first):
    found = []
    for (begin, end), row in zip(itertools.pairwise(ptr), first, strict=True):
        segment = points[begin:end].flatten(1) if points.dim() > 1 else points[begin:end, None]
        segment = segment.float()
        taken = []
        for _ in range(math.ceil((end - begin) * ratio)):
            taken.append(row)
            row = int(torch.cdist(segment, segment[taken]).min(1).values.argmax())
        found += [begin + row for row in taken]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("shape", "ptr", "ratio"),
    [((40, 3), [0, 25, 40], 0.5), ((30, 2, 2), [2, 2, 9, 29], 0.3), ((17,), [0, 17], 1.0)],
)
def test_fps_takes_points_far_apart(opts, dtype, shape, ptr, ratio):
    torch.manual_seed(1)
    points = torch.randn(shape).to(dtype)
    actual = run(lambda p: poptorch.fps(p, ptr, ratio), points, opts=opts)
    assert actual.dtype == torch.int32
    assert actual.tolist() == sampled(points, ptr, ratio, [0] * (len(ptr) - 1))


def test_fps_from_a_random_start(opts):
    points, ptr = torch.randn(64, 2), [0, 32, 64]
    model = Points(lambda p: poptorch.fps(p, ptr, 0.25, random_start=True))
    executor = poptorch.inferenceModel(model, opts.randomSeed(3))
    starts = set()
    for _ in range(8):
        found = executor(points).tolist()
        first = [found[0], found[8] - 32]
        assert found == sampled(points, ptr, 0.25, first)
        starts.add(tuple(first))
    assert len(starts) > 1


def test_many_points_compile_as_fast_as_few(opts):
    points = torch.randn(4000, 3)
    executor = poptorch.inferenceModel(Points(lambda p: poptorch.fps(p, [0, 4000])), opts)
    assert executor(points).unique().numel() == 2000
    assert len(executor.getProgramSummary()["steps"]) < 10


BATCHES = torch.tensor([0, 0, 3, 3, 3]), torch.tensor([0, 0, 0, 0, 2, 3, 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("ids", ["none", "lists", "tensors", "arguments"])
def test_nearest(opts, ids, dtype):
    torch.manual_seed(2)
    x, y = torch.randn(5, 3).to(dtype), torch.randn(7, 3).to(dtype)
    batches = BATCHES if ids != "none" else ()
    distance = torch.cdist(x.float(), y.float())
    if batches:
        distance = distance.masked_fill(batches[0][:, None] != batches[1], math.inf)
    given = [b.tolist() for b in batches] if ids == "lists" else batches

    def find(x, y, *args):
        return poptorch.nearest(x, y, *(args or given))

    args = batches if ids == "arguments" else ()
    assert run(find, x, y, *args, opts=opts).tolist() == distance.argmin(1).tolist()


def test_nearest_of_numbers(opts):
    x, y = torch.tensor([0.1, 2.2]), torch.tensor([2.0, 0.0, 9.0])
    assert run(poptorch.nearest, x, y, opts=opts).tolist() == [1, 0]
    ids = [0, 0]
    one_sided = run(lambda x, y: poptorch.nearest(x, y, ids), x, y, opts=opts)
    assert one_sided.tolist() == [1, 0]


def test_ids_that_only_the_data_show(opts):
    executor = poptorch.inferenceModel(Points(poptorch.nearest), opts)
    x, ids = torch.randn(3, 2), torch.tensor([0, 0, 1])
    good = executor(x, x, ids, ids)
    assert good.tolist() == [0, 1, 2]
    for batch_x, batch_y, text in (
        ([1, 0, 0], [0, 0, 1], "'batch_x' is not sorted"),
        ([0, 0, 1], [1, 0, 0], "'batch_y' is not sorted"),
        ([0, 0, 2], [0, 0, 1], "'batch_x' that do not occur in 'batch_y'"),
    ):
        with pytest.raises(poptorch.Error, match=text):
            executor(x, x, torch.tensor(batch_x), torch.tensor(batch_y))
    assert torch.equal(executor(x, x, ids, ids), good)


def test_indices_in_training(opts):
    """What is picked by them has a gradient."""

    class Picked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

        def forward(self, x):
            y = x * self.scale
            picked = y[poptorch.fps(y, [0, 6])] + y[poptorch.nearest(y, x)].sum()
            return poptorch.identity_loss(picked.square(), "sum")

    model = Picked()
    x = torch.randn(6, 2)
    poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.01))(x)
    scale = torch.tensor([1.0, 2.0], requires_grad=True)
    y = x * scale
    index = sampled(y.detach(), [0, 6], 0.5, [0])
    near = torch.cdist(y, x).argmin(1)
    (y[index] + y[near].sum()).square().sum().backward()
    torch.testing.assert_close(model.scale.detach(), (scale - 0.01 * scale.grad).detach())


T = torch.ones(4, 6)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: poptorch.fps(1, [0, 1]), poptorch.Error, r"fps: .* is not supported\."),
        (lambda: poptorch.fps(T, [0]), AssertionError, "must containt at least 2 elements"),
        (lambda: poptorch.fps(T, [0, 4.0]), AssertionError, "a list of ints"),
        (lambda: poptorch.fps(T, torch.tensor([0, 4])), AssertionError, "a list of ints"),
        (lambda: poptorch.fps(T, [0, 4], 1), AssertionError, "Expected a float as ratio"),
        (lambda: poptorch.fps(T, [0, 4], 0.5, 1), AssertionError, "Expected a bool"),
        (lambda: poptorch.fps(T, [0, 5]), poptorch.Error, "ptr must ascend from 0 to at most 4"),
        (lambda: poptorch.fps(T, [3, 1]), poptorch.Error, "ptr must ascend"),
        (lambda: poptorch.fps(T, [0, 4], 1.5), poptorch.Error, "ratio must be above 0 and at most"),
        (lambda: poptorch.fps(T, [0, 4], 0.0), poptorch.Error, "ratio must be above 0"),
        (lambda: poptorch.fps(T.int(), [0, 4]), poptorch.Error, "points must be rows of float32"),
        (lambda: poptorch.fps(T, [0, 4]), poptorch.Error, "poptorch.fps: Device only"),
        (lambda: poptorch.nearest(1, T), poptorch.Error, r"nearest: .* is not supported\."),
        (lambda: poptorch.nearest(T, T, [1, 0, 0, 0], [0] * 4), poptorch.Error, "'batch_x' is not"),
        (lambda: poptorch.nearest(T, T, [0] * 4, [1, 0, 0, 0]), poptorch.Error, "'batch_y' is not"),
        (
            lambda: poptorch.nearest(T, T, [0, 0, 1, 2], [0, 0, 1, 1]),
            poptorch.Error,
            "Some batch indices occur in 'batch_x' that do not occur in 'batch_y'",
        ),
        (lambda: poptorch.nearest(T, T, [0], [0]), poptorch.Error, "one id for each of the 4 rows"),
        (lambda: poptorch.nearest(T, T, "0000"), poptorch.Error, "must be a list or a tensor of"),
        (lambda: poptorch.nearest(T, T, torch.ones(4)), poptorch.Error, "a tensor of integers"),
        (lambda: poptorch.nearest(T, T[:, :2]), poptorch.Error, "equal feature sizes"),
        (lambda: poptorch.nearest(T[None], T[None]), poptorch.Error, "at most 2-d"),
        (lambda: poptorch.nearest(T, T[:0]), poptorch.Error, "y has no points"),
        (lambda: poptorch.nearest(T, T), poptorch.Error, "poptorch.nearest: Device only"),
    ],
)
def test_arguments_that_are_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
