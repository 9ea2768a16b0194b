# SPDX-License-Identifier: Apache-2.0
"""The CTC decoder against the sum over all paths, and where its beam is too narrow for all."""

import itertools
import math

import poptorch
import pytest
import torch


class Decoder(torch.nn.Module):
    def __init__(self, **values):
        super().__init__()
        self.values = values

    def forward(self, probs, lengths):
        return poptorch.ctc_beam_search_decoder(probs, lengths, **self.values)


def spelled(path, blank):
    return tuple(c for c, _ in itertools.groupby(path) if c != blank)


def all_sequences(logp, blank):
    """Label sequences and their log probabilities, likeliest first."""
    found = {}
    for path in itertools.product(range(logp.shape[1]), repeat=logp.shape[0]):
        p = math.exp(sum(logp[t, c].item() for t, c in enumerate(path)))
        found[spelled(path, blank)] = found.get(spelled(path, blank), 0.0) + p
    return sorted(((math.log(p), s) for s, p in found.items()), reverse=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("blank", [0, 2])
def test_a_wide_beam_finds_what_is_likeliest(opts, blank, dtype):
    torch.manual_seed(blank)
    steps, top = 5, 4
    probs = torch.randn(steps, 3, 3).mul(2).log_softmax(-1).to(dtype)
    lengths = torch.tensor([5, 3, 0])
    run = poptorch.inferenceModel(Decoder(blank=blank, beam_width=64, top_paths=top), opts)
    score, sizes, labels = run(probs, lengths)
    assert score.dtype == dtype and sizes.dtype == labels.dtype == torch.int32
    for b, length in enumerate(lengths.tolist()):
        expected = all_sequences(probs[:length, b].float(), blank)[:top]
        for k in range(top):
            if k >= len(expected):
                assert score[b, k] == -math.inf and sizes[b, k] == 0
                continue
            p, sequence = expected[k]
            assert score[b, k].item() == pytest.approx(p, abs=1e-5 if dtype.itemsize == 4 else 1e-2)
            padding = [blank] * (steps - len(sequence))
            assert labels[b, k].tolist() == [*sequence, *padding]
            assert sizes[b, k] == len(sequence)


def test_a_narrow_beam_gives_up_sequences_and_finds_them_again(opts):
    """No sequence is returned twice, and no probability is too large."""
    torch.manual_seed(1)
    probs = torch.randn(6, 40, 4).log_softmax(-1)
    run = poptorch.inferenceModel(Decoder(beam_width=3, top_paths=3), opts)
    score, sizes, labels = run(probs, torch.full((40,), 6))
    for b in range(40):
        true = {sequence: p for p, sequence in all_sequences(probs[:, b], 0)}
        found = [tuple(labels[b, k, : sizes[b, k]].tolist()) for k in range(3)]
        assert len(set(found)) == 3
        for k, sequence in enumerate(found):
            assert score[b, k] <= true[sequence] + 1e-5
        assert (score[b].diff() <= 0).all()


def test_inside_a_model_that_is_trained(opts):
    """The decoder beside the loss; no gradient comes from it."""

    class Recognizer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 4)

        def forward(self, x, lengths, targets):
            logp = self.linear(x).log_softmax(-1)
            loss = torch.nn.functional.ctc_loss(logp, targets, lengths, torch.tensor([2, 1]))
            return *poptorch.ctc_beam_search_decoder(logp, lengths, top_paths=2), loss

    torch.manual_seed(0)
    model = Recognizer()
    before = [p.detach().clone() for p in model.parameters()]
    run = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    x, lengths = torch.randn(5, 2, 3), torch.tensor([5, 4])
    score, sizes, labels, loss = run(x, lengths, torch.tensor([[1, 2], [3, 0]]))
    eager = Recognizer()
    for mine, value in zip(eager.parameters(), before, strict=True):
        mine.data.copy_(value)
    logp = eager.linear(x).log_softmax(-1)
    for b in range(2):
        expected = all_sequences(logp[: lengths[b], b].detach(), 0)
        for k in range(2):
            assert score[b, k].item() == pytest.approx(expected[k][0], abs=1e-5)
            assert tuple(labels[b, k, : sizes[b, k]].tolist()) == expected[k][1]
    eager(x, lengths, torch.tensor([[1, 2], [3, 0]]))[-1].backward()
    for mine, value in zip(eager.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(value.detach(), (mine - 0.1 * mine.grad).detach())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_types_of_lengths(opts, dtype):
    probs = torch.randn(4, 2, 3).log_softmax(-1)
    run = poptorch.inferenceModel(Decoder(), opts)
    _, sizes, _ = run(probs, torch.tensor([0, 4], dtype=dtype))
    assert sizes[0] == 0
    score = poptorch.inferenceModel(Decoder(), opts)(probs.double(), torch.tensor([4, 4]))[0]
    assert score.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_outside_a_model_it_returns_zeros(dtype):
    probs = torch.zeros(7, 2, 3, dtype=dtype)
    score, sizes, labels = poptorch.ctc_beam_search_decoder(probs, torch.tensor([7, 1]), 0, 9, 4)
    assert score.shape == sizes.shape == (2, 4) and labels.shape == (2, 4, 7)
    assert score.dtype == dtype and sizes.dtype == labels.dtype == torch.int32
    assert not score.any() and not sizes.any() and not labels.any()


PROBS, LENGTHS = torch.zeros(2, 1, 3), torch.tensor([2])


@pytest.mark.parametrize(
    ("probs", "lengths", "values", "text"),
    [
        (PROBS, LENGTHS, {"blank": 3}, "blank must be an integer from 0 to 2, not 3"),
        (PROBS, LENGTHS, {"blank": 0.0}, "blank must be an integer"),
        (PROBS, LENGTHS, {"beam_width": 0}, "beam_width must be an integer from 1"),
        (PROBS, LENGTHS, {"top_paths": 101}, "top_paths must be an integer from 1 to 100, not 101"),
        (PROBS, LENGTHS, {"top_paths": True}, "top_paths must be an integer"),
        (PROBS[0], LENGTHS, {}, "must be rank-3"),
        (PROBS.int(), LENGTHS, {}, "no log-probabilities"),
        (PROBS, LENGTHS.float(), {}, "lengths must be 1 integers"),
        (PROBS, LENGTHS[0], {}, "lengths must be 1 integers"),
    ],
)
def test_arguments_that_are_refused(opts, probs, lengths, values, text):
    model = Decoder(**values)
    if "lengths" not in text:  # outside they are not read
        with pytest.raises(poptorch.Error, match=text):
            model(probs, lengths)
    with pytest.raises(poptorch.Error, match=text):
        poptorch.inferenceModel(model, opts)(probs, lengths)


def test_no_tensors():
    for args in ((1, LENGTHS), (PROBS, [2])):
        text = r"ctc_beam_search_decoder: .* is not supported\."
        with pytest.raises(poptorch.Error, match=text):
            poptorch.ctc_beam_search_decoder(*args)


def test_data_that_are_refused(opts):
    run = poptorch.inferenceModel(Decoder(), opts)
    with pytest.raises(poptorch.Error, match="length 3 in a batch of 2 steps"):
        run(PROBS, torch.tensor([3]))
    with pytest.raises(poptorch.Error, match="sample 0 has a log probability that is NaN or inf"):
        run(torch.full((2, 1, 3), math.nan), LENGTHS)
    assert run(PROBS, LENGTHS)[1].shape == (1, 1)
