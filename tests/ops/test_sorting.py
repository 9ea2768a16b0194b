# SPDX-License-Identifier: Apache-2.0
"""Sorting, ranks and counts where PyTorch's samples do not reach: long rows, ties, given sizes."""

import poptorch
import pytest
import torch
from against_eager import Call, check_inference, quiet, summary


def native(function, *args):
    executor = check_inference(Call(function), args)
    assert not summary(executor)["host_calls"]


def run(function, *args):
    return poptorch.inferenceModel(Call(function), options=quiet())(*args)


def test_long_rows_without_ties():
    x = torch.randperm(100_000).float()
    native(torch.sort, x)
    native(lambda v: v.topk(1000), x)
    native(lambda v: v.kthvalue(777), x)
    native(lambda v: v.median(0), x)
    native(lambda v: v.quantile(torch.tensor([0.1, 0.5, 0.99])), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.uint8])
def test_places_of_ties_hold_the_values(dtype):
    x = torch.randint(0, 50, (40, 1000)).to(dtype)
    for function in (
        lambda v: v.sort(1, descending=True),
        lambda v: v.topk(30),
        lambda v: [t.unsqueeze(1) for t in v.kthvalue(300)],
        lambda v: [t.unsqueeze(1) for t in v.mode(1)],
    ):
        values, places = run(function, x)
        expected = function(x)[0]
        assert torch.equal(values.to(dtype), expected)
        assert torch.equal(x.gather(1, places.long()), expected)
        assert all(len(set(row)) == len(row) for row in places.tolist())


def test_stable_sort_keeps_the_order_of_equals():
    x = torch.randint(0, 9, (7, 5000))
    native(lambda v: torch.sort(v, stable=True, descending=True), x)
    native(lambda v: torch.sort(v, dim=0, stable=True), x.T.contiguous())


def test_search_and_membership():
    x, table = torch.randint(0, 5000, (300, 200)), torch.randint(0, 5000, (700,))
    native(torch.isin, x, table)
    native(lambda a, b: torch.isin(a, b[:5], invert=True), x, table)
    native(lambda a, b: torch.searchsorted(b.sort()[0], a, right=True), x, table)
    native(lambda a, b: torch.searchsorted(b, a, sorter=b.argsort()), x, table)
    native(lambda a, b: torch.bucketize(a, b.sort()[0], out_int32=True), x, table)


def test_counts_of_a_given_length():
    x, weights = torch.randint(0, 10, (20_000,)), torch.rand(20_000)
    native(lambda i: torch.bincount(i, minlength=12), x)
    native(lambda i, w: i.bincount(w, minlength=12), x, weights)
    check_inference(Call(lambda i, w: torch.bincount(i, (w * 9).int(), 12)), (x, weights))


def test_covariance_with_weights():
    x, f, a = torch.randn(4, 50), torch.randint(1, 5, (50,)), torch.rand(50)
    native(torch.cov, x)
    native(torch.corrcoef, x)
    native(lambda v, i: v.cov(fweights=i), x, f)
    native(lambda v, w: torch.cov(v, correction=0, aweights=w), x, a)
    native(lambda v, i, w: torch.cov(v, fweights=i, aweights=w), x, f, a)


@pytest.mark.parametrize("value, message", [(12, "longer result"), (-1, "non-negative")])
def test_a_value_without_a_count_is_an_error_of_the_call(value, message):
    executor = poptorch.inferenceModel(
        Call(lambda i: torch.bincount(i, minlength=12)), options=quiet()
    )
    good = torch.arange(12)
    assert executor(good).tolist() == [1] * 12
    bad = good.clone()
    bad[5] = value
    with pytest.raises(poptorch.Error, match=message):
        executor(bad)
    assert executor(good).tolist() == [1] * 12


def test_histograms():
    x = torch.randn(300, 100)
    native(lambda v: torch.histc(v, 20, -2, 2), x)
    native(lambda v: torch.histc(v, 7), x)
    native(lambda v: torch.histc(v, 7), torch.ones(30))
    with pytest.raises(poptorch.Error, match="not finite"):
        run(lambda v: torch.histc(v, 7), torch.tensor([1.0, float("inf")]))
