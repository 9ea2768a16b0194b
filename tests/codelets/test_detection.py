# SPDX-License-Identifier: Apache-2.0
"""Detection by a loop that ends when there is nothing left: as the same in plain Python."""

import poptorch
import pytest
import torch
from codelet_support import HERE, load


class Detection(torch.nn.Module):
    def __init__(self, most: int, overlap: float = 0.4, least: float = 0.2) -> None:
        super().__init__()
        self.most = most
        self.attributes = {"most": most, "overlap": overlap, "least_score": least}

    def forward(self, scores: torch.Tensor, boxes: torch.Tensor) -> list[torch.Tensor]:
        batch, most = len(scores), self.most
        numbers = torch.zeros(batch, most, dtype=torch.int32)
        examples = [numbers, numbers.to(scores.dtype), torch.zeros(batch, most, 4).to(scores.dtype)]
        examples += [numbers, numbers[:, 0]]
        return poptorch.custom_op(
            [scores, boxes],
            "Detection",
            "test.codelets",
            1,
            example_outputs=examples,
            attributes=self.attributes,
        )


@pytest.fixture(autouse=True)
def _library(monkeypatch):
    monkeypatch.setenv("DETECTION_CODELETS", str(HERE))
    load("detection")


def _area(b: list[float]) -> float:
    return (b[2] - b[0]) * (b[3] - b[1])


def _overlap(a: list[float], b: list[float]) -> float:
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    both = max(w, 0.0) * max(h, 0.0)
    return both / (_area(a) + _area(b) - both)


def _detected(
    scores: torch.Tensor, boxes: torch.Tensor, most: int, overlap: float, least: float
) -> list[tuple[int, int]]:
    """(box, class) of one batch, the best first."""
    left = {(i, c): float(scores[i, c]) for i in range(len(scores)) for c in range(scores.shape[1])}
    found: list[tuple[int, int]] = []
    table = boxes.tolist()
    while left and len(found) < most:
        at = max(left, key=lambda k: left[k])
        if left[at] < least:
            break
        found.append(at)
        left = {
            k: v
            for k, v in left.items()
            if k != at and (k[1] != at[1] or _overlap(table[k[0]], table[at[0]]) <= overlap)
        }
    return found


def _inputs(batch: int, boxes: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(batch)
    corner = torch.rand(batch, boxes, 2)
    sizes = 0.1 + 0.3 * torch.rand(batch, boxes, 2)
    return torch.rand(batch, boxes, classes), torch.cat([corner, corner + sizes], -1)


@pytest.mark.parametrize(
    ("batch", "boxes", "classes", "most"),
    [(1, 20, 1, 30), (2, 33, 3, 12), (4, 50, 2, 100), (7, 11, 5, 8), (3, 1, 1, 2)],
)
def test_what_is_kept_is_that_of_a_plain_loop(batch, boxes, classes, most):
    scores, table = _inputs(batch, boxes, classes)
    index, score, box, label, count = poptorch.inferenceModel(Detection(most))(scores, table)
    for b in range(batch):
        wanted = _detected(scores[b], table[b], most, 0.4, 0.2)
        n = len(wanted)
        assert int(count[b]) == n
        assert list(zip(index[b, :n].tolist(), label[b, :n].tolist(), strict=True)) == wanted
        assert index[b, n:].eq(-1).all() and label[b, n:].eq(-1).all()
        places = index[b, :n].long()
        assert torch.equal(box[b, :n], table[b][places])
        assert torch.equal(score[b, :n], scores[b][places, label[b, :n].long()])
        assert box[b, n:].eq(0).all() and score[b, n:].eq(0).all()


def test_each_call_takes_as_many_turns_as_it_needs():
    model = poptorch.inferenceModel(Detection(40))
    scores, table = _inputs(2, 40, 1)
    for factor in (0.0, 1.0, 0.3, 0.0):
        given = scores * factor
        count = model(given, table)[4]
        wanted = [len(_detected(given[b], table[b], 40, 0.4, 0.2)) for b in range(2)]
        assert count.tolist() == wanted
        assert (sum(wanted) == 0) == (factor == 0.0)


def test_half_precision():
    scores, table = _inputs(2, 24, 2)
    scores, table = scores.half(), table.half()
    count, label = (poptorch.inferenceModel(Detection(10))(scores, table)[i] for i in (4, 3))
    for b in range(2):
        wanted = _detected(scores[b].float(), table[b].float(), 10, 0.4, 0.2)
        assert int(count[b]) == len(wanted)
        assert label[b, : len(wanted)].tolist() == [c for _, c in wanted]


def test_vertices_without_their_file(monkeypatch):
    monkeypatch.delenv("DETECTION_CODELETS")
    with pytest.raises(poptorch.Error, match="DETECTION_CODELETS is not set"):
        poptorch.inferenceModel(Detection(4))(*_inputs(1, 3, 1))
