# SPDX-License-Identifier: Apache-2.0
"""Ops of PopART whose vertices are codelets: results and gradients are those of torch."""

import poptorch
import pytest
import torch
from codelet_support import Op


def run(library: str, name: str, *inputs: torch.Tensor, **attributes: object) -> torch.Tensor:
    return poptorch.inferenceModel(Op(library, name, **attributes))(*inputs)


class Fit(torch.nn.Module):
    """The inputs of an op as parameters, its result weighted as the loss."""

    def __init__(self, op: Op, inputs: list[torch.Tensor], weights: torch.Tensor) -> None:
        super().__init__()
        self.op = op
        self.inputs = torch.nn.ParameterList([torch.nn.Parameter(x.clone()) for x in inputs])
        self.register_buffer("weights", weights)

    def forward(self) -> torch.Tensor:
        return poptorch.identity_loss((self.op(*self.inputs) * self.weights).sum(), "sum")


def gradients(op: Op, inputs: list[torch.Tensor], weights: torch.Tensor) -> list[torch.Tensor]:
    model = Fit(op, inputs, weights)
    trained = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    trained()
    trained.copyWeightsToHost()
    return [x - p.detach() for x, p in zip(inputs, model.inputs, strict=True)]


DISTANCES = [("L1Distance", 1.0), ("L2Distance", 2.0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float", "half"])
@pytest.mark.parametrize(("name", "p"), DISTANCES, ids=["L1", "L2"])
@pytest.mark.parametrize("columns", [8, 9])
def test_a_vertex_per_element(name, p, columns, dtype):
    torch.manual_seed(columns)
    a, b = torch.randn(7, columns).to(dtype), torch.randn(5, columns).to(dtype)
    got = run("distance", name, a, b)
    assert got.dtype == dtype
    wanted = torch.cdist(a.double(), b.double(), p=p)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float", "half"])
@pytest.mark.parametrize(("name", "p"), DISTANCES, ids=["L1", "L2"])
def test_gradient_ops_of_two_outputs(name, p, dtype):
    torch.manual_seed(1)
    # Columns of the second input are strided: they are gathered for the vertices.
    a, b, weights = torch.randn(6, 5).to(dtype), torch.randn(4, 5).to(dtype), torch.randn(6, 4)
    got = gradients(Op("distance", name), [a, b], weights.to(dtype))
    x, y = a.double().requires_grad_(), b.double().requires_grad_()
    (torch.cdist(x, y, p=p) * weights.to(dtype).double()).sum().backward()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got[0].double(), x.grad, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(got[1].double(), y.grad, rtol=tolerance, atol=tolerance)


def test_intrinsics_round_to_bfloat16():
    torch.manual_seed(2)
    x = torch.randn(6, 50) * 3
    assert run("quantise", "Round", x, dropped=16).equal(x.bfloat16().float())


def test_enum_template_and_clamp():
    x = torch.linspace(-4, 4, 500)
    got = run("quantise", "Round", x, dropped=16, rounding="Down", limit=2.5)
    cut = (x.view(torch.int32) & ~0xFFFF).view(torch.float32)
    assert got.equal(cut.clamp(-2.5, 2.5))


def test_random_numbers_differ_from_run_to_run():
    x = torch.full((20000,), 1.0 + 2**-9)
    model = poptorch.inferenceModel(Op("quantise", "Round", dropped=16, rounding="Stochastic"))
    first, second = model(x), model(x)
    # A quarter of the step between the two neighbours in bfloat16.
    assert first.unique().tolist() == [1.0, 1.0078125]
    for got in (first, second):
        assert abs((got > 1).float().mean().item() - 0.25) < 0.02
    assert not first.equal(second)


def test_random_numbers_follow_the_seed_on_any_number_of_threads():
    x = torch.full((20000,), 1.0 + 2**-9)
    before, found = torch.get_num_threads(), []
    try:
        for seed, threads in [(7, 1), (7, 2), (8, 2)]:
            torch.set_num_threads(threads)
            op = Op("quantise", "Round", dropped=16, rounding="Stochastic")
            model = poptorch.inferenceModel(op, poptorch.Options().randomSeed(seed))
            found.append([model(x), model(x)])
    finally:
        torch.set_num_threads(before)
    assert found[0][0].equal(found[1][0]) and found[0][1].equal(found[1][1])
    assert not found[0][0].equal(found[2][0])


def test_an_op_that_is_its_own_gradient():
    torch.manual_seed(3)
    x, weights = torch.randn(4, 6), torch.randn(4, 6)
    (got,) = gradients(Op("quantise", "Round", dropped=16), [x], weights)
    torch.testing.assert_close(got, weights.bfloat16().float(), rtol=0, atol=1e-6)


def test_packed_numbers_of_4_bits():
    torch.manual_seed(4)
    values = torch.randint(-8, 8, (3, 2, 5, 4))
    words = ((values + 8) << torch.tensor([0, 4, 8, 12])).sum(-1)
    packed = (words - (words >= 1 << 15) * (1 << 16)).to(torch.int16)
    scale, bias = torch.rand(3, 2).half(), torch.rand(3, 2).half()
    got = run("quantise", "Decompress", packed, scale, bias)
    wanted = values.half() * scale[..., None, None] + bias[..., None, None]
    torch.testing.assert_close(got, wanted.reshape(3, -1), rtol=2e-3, atol=2e-3)


def _kept(boxes: torch.Tensor, scores: torch.Tensor, threshold: float, turns: int) -> list[int]:
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    alive, kept = scores.clone(), []
    for _ in range(turns):
        best = int(alive.argmax())
        if alive[best] < 0:
            break
        kept.append(best)
        low = torch.maximum(boxes[:, :2], boxes[best, :2])
        high = torch.minimum(boxes[:, 2:], boxes[best, 2:])
        both = (high - low).clamp(min=0).prod(1)
        alive[both > threshold * (area + area[best] - both)] = -1.0
        alive[best] = -1.0
    return kept


@pytest.mark.parametrize("turns", [6, 40])
def test_workers_loops_and_state_that_is_read_and_written(turns):
    torch.manual_seed(5)
    corner = torch.rand(30, 2)
    boxes = torch.cat([corner, corner + 0.1 + 0.3 * torch.rand(30, 2)], 1)
    scores = torch.rand(30)
    op = Op("nms", "Nms", examples=2, threshold=0.3, turns=turns)
    indices, count = poptorch.inferenceModel(op)(boxes, scores)
    wanted = _kept(boxes, scores, 0.3, turns)
    assert count.tolist() == [len(wanted)]
    assert indices.tolist() == wanted + [-1] * (turns - len(wanted))


BAD = [
    ("none.cpp", None, "there is no file"),
    ("x.gp", "", "cannot run here"),
    ("x.S", "", "assembly of the IPU"),
    ("bad.cpp", "#error no codelets today\n", "no codelets today"),
    ("empty.cpp", "\n", 'no vertex "L1Element<float>"'),
    (
        "fields.cpp",
        "#include <poplar/Vertex.hpp>\ntemplate <typename T> struct L1Element : poplar::Vertex {\n"
        "  poplar::Input<poplar::Vector<T>> x;\n  bool compute() { return true; }\n};\n"
        "template struct L1Element<float>;\n",
        'has no field "a"; it has x',
    ),
]


@pytest.mark.parametrize(("file", "text", "message"), BAD, ids=[b[0] for b in BAD])
def test_codelets_that_cannot_be_used(tmp_path, file, text, message):
    path = tmp_path / file
    if text is not None:
        path.write_text(text)
    with pytest.raises(poptorch.Error) as error:
        run("distance", "L1Distance", torch.rand(2, 3), torch.rand(2, 3), file=str(path))
    assert message in str(error.value)
    assert "L1Distance" in str(error.value)
