# SPDX-License-Identifier: Apache-2.0
"""Results of 64-bit types come back with 32 bits; one that does not fit is said, once."""

import poptorch
import pytest
import torch


class Wide(torch.nn.Module):
    def forward(self, x, k):
        return {"index": k * 2, "value": [x.double() * 1e38, x]}


def warnings_of(log):
    return [r.getMessage() for r in log.records if "does not fit" in r.getMessage()]


def test_values_that_fit_come_back_narrow_and_quietly(opts, log):
    executor = poptorch.inferenceModel(Wide(), opts)
    x, k = (
        torch.tensor([1.0, -3.0, float("inf"), float("nan")]),
        torch.tensor([2**30 - 1, -(2**30)]),
    )
    result = executor(x, k)
    assert result["index"].dtype is torch.int32 and result["value"][0].dtype is torch.float32
    expected = Wide()(x, k)
    torch.testing.assert_close(result["index"].long(), expected["index"])
    torch.testing.assert_close(result["value"][0], expected["value"][0].float(), equal_nan=True)
    assert not warnings_of(log)


@pytest.mark.parametrize(
    "x, k, name, words",
    [
        (1.0, 2**31, "result['index']", "torch.int64 in the model and comes back as torch.int32"),
        (1.0, -(2**40), "result['index']", "is cut to its low 32 bits"),
        (
            10.0,
            1,
            "result['value'][0]",
            "torch.float64 in the model and comes back as torch.float32",
        ),
        (-1e3, 1, "result['value'][0]", "becomes infinite"),
    ],
)
def test_a_value_that_does_not_fit_is_said_once(opts, log, x, k, name, words):
    executor = poptorch.inferenceModel(Wide(), opts)
    xs, ks = torch.full((1000,), 1.0), torch.ones(1000, dtype=torch.int64)
    executor(xs, ks)
    assert not warnings_of(log)
    xs[777], ks[777] = x, k
    for _ in range(3):
        result = executor(xs, ks)
    (text,) = warnings_of(log)
    assert text.startswith(f"{name} is ") and words in text
    expected = Wide()(xs, ks)
    assert torch.equal(result["index"], expected["index"].int())
    assert torch.equal(result["value"][0], expected["value"][0].float())


def test_each_output_is_said_on_its_own(opts, log):
    class Many(torch.nn.Module):
        def forward(self, k):
            return k, k + 1, (k - k, k * 2)

    executor = poptorch.inferenceModel(Many(), opts.deviceIterations(2))
    for _ in range(2):
        executor(torch.tensor([1, 2**33]))
    names = [text.split(" is ")[0] for text in warnings_of(log)]
    assert names == ["result[0]", "result[1]", "result[2][1]"]


def test_a_single_result_and_an_anchor(opts, log):
    class Single(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Identity()

        def forward(self, k):
            return (k * 3).sum()

    probe = poptorch.inferenceModel(Single(), opts)
    probe.compile(torch.tensor([1]))
    name = next(n for n in probe.getTensorNames() if "mul" in n)
    opts = opts.clone()
    opts.anchorTensor("tripled", name)
    executor = poptorch.inferenceModel(Single(), opts)
    assert executor(torch.tensor([2**40])).dtype is torch.int32
    assert executor.getAnchoredTensor("tripled").dtype is torch.int32
    assert sorted(text.split(" is ")[0] for text in warnings_of(log)) == ["result", "tripled"]


def test_inputs_that_forward_changes_keep_their_type(opts, log):
    class Writes(torch.nn.Module):
        def forward(self, k):
            k.mul_(2)
            return k.float()

    k = torch.tensor([2**40, -1])
    poptorch.inferenceModel(Writes(), opts)(k)
    assert torch.equal(k, torch.tensor([2**41, -2]))
    assert not warnings_of(log)


def test_denormal_numbers_are_flushed(opts):
    class Product(torch.nn.Module):
        def forward(self, x, y):
            return (x * y) * 2.0**30

    executor = poptorch.inferenceModel(Product(), opts)
    tiny = torch.full((64,), torch.finfo(torch.float32).tiny)
    one = torch.ones(64)
    assert torch.equal(executor(tiny, one), tiny * 2.0**30)
    assert torch.equal(executor(tiny, one / 2), torch.zeros(64)), "a result"
    assert torch.equal(executor(tiny / 2, one * 4), torch.zeros(64)), "an operand"
    assert (tiny / 2 != 0).all(), "eager torch is left as it was"
