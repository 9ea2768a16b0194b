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


def test_errors(opts):
    probs = torch.zeros(2, 1, 3)
    for values, text in (({"blank": 3}, "blank 3 is none of the 3"), ({"top_paths": 101}, "101 p")):
        with pytest.raises(poptorch.Error, match=text):
            poptorch.inferenceModel(Decoder(**values), opts)(probs, torch.tensor([2]))
    run = poptorch.inferenceModel(Decoder(), opts)
    with pytest.raises(poptorch.Error, match="length 3 in a batch of 2 steps"):
        run(probs, torch.tensor([3]))
    assert run(probs, torch.tensor([2]))[1].shape == (1, 1)
