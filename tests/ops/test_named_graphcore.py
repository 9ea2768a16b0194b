# SPDX-License-Identifier: Apache-2.0
"""Ops of ai.graphcore and poptorch.custom_ops by name, and random ones, against eager torch."""

import poptorch
import pytest
import torch
import torch.nn.functional as F
from against_eager import Call, check_training, quiet
from named_ops import Case, Cases, Known
from poptorch.capture.custom.named import TABLES

torch.manual_seed(1)
X = torch.randn(2, 3, 4)
Y = torch.randn(3, 4)
IMAGE = torch.randn(2, 4, 5, 5)
I32 = torch.tensor([[1, 5, -3], [4, -2, 7]], dtype=torch.int32)
LABELS = torch.tensor([0, 3, 1], dtype=torch.int32)
PROBABILITIES = torch.rand(3, 4) + 0.1


def gc(name, inputs, formula, attributes=None, **other):
    return Case(name, inputs, formula, attributes or {}, 1, "ai.graphcore", **other)


def own(name, inputs, formula, attributes=None):
    return Case(name, inputs, formula, attributes or {}, 1, "poptorch.custom_ops")


def ctc(reduction, zero=False):
    def run(x, t, n, m):
        given = x.log_softmax(2), t.long(), n.long(), m.long()
        loss = F.ctc_loss(*given, 0, reduction, zero)
        leaf = given[0].detach().requires_grad_()
        with torch.enable_grad():
            each = F.ctc_loss(leaf, *given[1:], 0, "sum", zero)
        return loss, torch.autograd.grad(each, leaf)[0]

    return run


class LogProbabilities(Cases):
    """The first input of each case after a log_softmax, as programs have it."""

    def forward(self, *args):
        results = {}
        for number, case in enumerate(self.cases):
            x, rest = self.weights[number], args[3 * number : 3 * number + 3]
            if poptorch.isRunningOnIpu():
                x = x.log_softmax(2)
                examples = [torch.zeros(1)] * case.outputs
                out = poptorch.custom_op(
                    [x, *rest], "Ctc", "ai.graphcore", 1, examples, case.attributes
                )
            else:
                out = list(case.formula(x, *rest))[: case.outputs]
            results[f"{number} Ctc"] = out
        return results


TARGETS = [
    torch.tensor([[1, 2, 2], [3, 1, 0]], dtype=torch.int32),
    torch.tensor([6, 5], dtype=torch.int32),
    torch.tensor([3, 2], dtype=torch.int32),
]
CTC = [
    gc("Ctc", [torch.randn(6, 2, 4), *TARGETS], ctc("mean"),
       {"reduction": "Mean", "blank": 0, "outDataType": "UNDIFINED"}, outputs=2),
    gc("Ctc", [torch.randn(6, 2, 4), *TARGETS], ctc("sum"), {"reduction": "Sum"}, outputs=2),
    gc("Ctc", [torch.randn(6, 2, 4), *TARGETS], ctc("none"), {"reduction": "None"}, outputs=2),
    gc("Ctc", [torch.randn(2, 2, 4), TARGETS[0], TARGETS[2] * 0 + 2, TARGETS[2]],
       ctc("sum", True), {"reduction": "Sum", "zeroInfinity": 1}),
]  # fmt: skip


def test_ctc_loss_and_its_gradient():
    model = LogProbabilities(CTC)
    check_training(model, model.arguments(), calls=1)


def lstm(x, w, b):
    order, wide = [1, 0, 2, 3], x.shape[-1]
    parts = [w[order][:, s].transpose(1, 2).reshape(12, -1) for s in (slice(wide), slice(wide, 9))]
    zero = torch.zeros(1, 2, 3)
    parts += [b[order].reshape(-1), torch.zeros(12)]
    y, _, c = torch.lstm(x, [zero, zero], parts, True, 1, 0.0, False, False, False)
    return y, c[0]


def updated(x, i, s):
    out = x.clone()
    out[:, 1:3, 2:4] = s
    return out


PLAIN = [
    gc("Gelu", [X], lambda x: F.gelu(x, approximate="tanh")),
    gc("GeluErf", [X], F.gelu),
    gc("Swish", [X], F.silu),
    gc("Round", [Known([0.5, 1.5, -2.5, 1.2])], lambda x: torch.tensor([1.0, 2.0, -3.0, 1.0])),
    gc("NearbyInt", [X], torch.round),
    gc("Fmod", [X, Y], torch.fmod),
    gc("Remainder", [X, Y], torch.remainder),
    gc("Atan2", [X, Y], torch.atan2),
    gc("Expm1", [X], torch.expm1),
    gc("Log1p", [PROBABILITIES], torch.log1p),
    gc("Detach", [X], torch.Tensor.detach),
    gc("Nop", [X], torch.clone),
    gc("TensorRemap", [X], torch.clone, {"remap_type": 0}),
    gc("ZerosLike", [X], torch.zeros_like),
    gc("Scale", [X], lambda x: x * 0.3, {"scale": 0.3}),
    gc("ScaledAdd", [X, Y], lambda a, b: a * 0.3 + b * 2, {"scale0": 0.3, "scale1": 2.0}),
    gc("ScaledAdd", [X, Y, torch.tensor(0.5)], lambda a, b, s: a * s + b),
    gc("BitwiseAnd", [I32, I32 + 1], lambda a, b: a & b),
    gc("BitwiseOr", [I32, I32 + 1], lambda a, b: a | b),
    gc("BitwiseXor", [I32, I32 + 1], lambda a, b: a ^ b),
    gc("BitwiseXnor", [I32, I32 + 1], lambda a, b: ~(a ^ b)),
    gc("BitwiseNot", [I32], lambda a: ~a),
    gc("IncrementMod", [I32], lambda a: (a + 3) % 4, {"increment": 3.0, "modulus": 4.0}),
    gc("Reshape", [X], lambda x: x.reshape(2, 12), {"shape": [0, -1]}),
    gc("Reverse", [X], lambda x: x.flip(0, 2), {"dimensions": [0, -1]}),
    gc("Slice", [X], lambda x: x[:, 1:], {"starts": [1], "ends": [3], "axes": [1]}),
    gc("Subsample", [X], lambda x: x[:, ::2, ::3], {"strides": [1, 2, 3]}),
    gc("DepthToSpace", [IMAGE], lambda x: F.pixel_shuffle(x, 2), {"blocksize": 2, "mode": "CRD"}),
    gc("Sort", [X], lambda x: x.sort(1, True), {"axis": 1, "descending": 1}, outputs=2),
    gc("ReduceMedian", [X], lambda x: x.median(2), {"axes": [2], "keepdims": 0}, outputs=2),
    gc("Bucketize", [X, Known([-1.0, 0.0, 1.0])], torch.bucketize),
    gc("L1", [X], lambda x: 0.1 * x.abs().sum(), {"lambda": 0.1, "reduction": "Sum"}),
    gc("Nll", [PROBABILITIES, LABELS], lambda p, t: F.nll_loss(p.log(), t.long())),
    gc("Nll", [PROBABILITIES, LABELS], lambda p, t: F.nll_loss(p, t.long(), ignore_index=3),
       {"ignoreIndex": 3, "inputIsLogProbability": 1}),
    gc("GroupNormalization", [IMAGE, torch.rand(4), torch.rand(4)],
       lambda x, s, b: F.group_norm(x, 2, s, b), {"num_groups": 2, "epsilon": 1e-5}),
    gc("BatchNormalization", [IMAGE, *(torch.rand(4) + 0.5 for _ in range(4))],
       lambda x, s, b, m, v: F.batch_norm(x, m.detach(), v.detach(), s, b)),
    gc("LSTM", [torch.randn(5, 2, 6), torch.randn(4, 9, 3) * 0.5, torch.randn(4, 3)], lstm,
       outputs=2),
    gc("ReplicatedAllGather", [X], torch.flatten),
    gc("ReplicatedReduceScatter", [X], torch.flatten),
    gc("ReplicatedAllReduce", [X], torch.clone),
]  # fmt: skip

SLICES = [
    gc("DynamicSlice", [X, torch.tensor([2])], lambda x, i: x[:, :, 2:4],
       {"axes": [2], "sizes": [2]}),
    gc("DynamicSlice", [X, torch.tensor([1, 3])], lambda x, i: x[:, 1:3][:, :, [3, 0]],
       {"axes": [1, 2], "sizes": [2, 2], "noOverlap": 1}),
    gc("DynamicUpdate", [X, torch.tensor([1, 2]), torch.randn(2, 2, 2)], updated,
       {"axes": [1, 2], "sizes": [2, 2]}),
    gc("DynamicUpdate", [Y, torch.tensor([1]), torch.randn(1, 4)],
       lambda x, i, s: torch.cat([x[:1], s, x[2:]]), {"axes": [0], "sizes": [1]}),
    gc("DynamicAdd", [Y, torch.tensor([1]), torch.randn(2, 4)],
       lambda x, i, s: torch.cat([x[:1], x[1:] + s]), {"axes": [0], "sizes": [2]}),
    gc("DynamicZero", [Y, torch.tensor([1])], lambda x, i: torch.cat([x[:1], x[1:] * 0]),
       {"axes": [0], "sizes": [2]}),
    gc("SequenceSlice", [Y, torch.randn(4, 4), torch.tensor([1, 2]), torch.tensor([2, 0]),
       torch.tensor([0, 2])], lambda s, d, *_: torch.cat([s[2:], d[1:2], s[:2]])),
    gc("SequenceSlice", [Y, torch.randn(4, 4), torch.tensor([2]), torch.tensor([1]),
       torch.tensor([1])], lambda s, d, *_: F.pad(s[1:], (0, 0, 1, 1)), {"zeroUnused": 1}),
    gc("ScatterReduce", [X, torch.tensor([0, 0, 4])],
       lambda x, i: torch.zeros(2, 5, 4).index_add(1, i, x),
       {"axis": 1, "axis_size": 5, "reduction": "Sum"}),
    gc("ScatterReduce", [Y, torch.tensor([[0, 1, 1, 2]] * 3)], lambda x, i: torch.zeros(
        3, 4).scatter_reduce(1, i, x, "amax", include_self=False),
       {"axis_size": 4, "reduction": "Max"}),
    gc("GroupedGather", [X, torch.tensor([[2, 0], [1, 1]])],
       lambda x, i: torch.stack([x[0][i[0]], x[1][i[1]]]), {"axis": 1, "group_size": 2}),
    gc("SplineWeighting", [torch.randn(5, 3), torch.randn(4, 3, 2), torch.rand(5, 2),
       torch.tensor([[0, 1], [1, 2], [3, 3], [2, 0], [1, 3]])],
       lambda x, w, b, i: torch.einsum("ei,esio,es->eo", x, w[i], b)),
    own("FastGatherLastDim", [X, torch.randint(0, 4, (2, 3, 6), dtype=torch.int32)],
        lambda x, i: x.gather(-1, i.long()), {"axis": -1, "debug_str": "gather"}),
    own("TorchSoftplus", [X], lambda x: F.softplus(x, 0.5, 2.0), {"beta": 0.5, "threshold": 2.0}),
    own("TorchSoftplus", [X], lambda x: F.softplus(x, 1.0, 1.0)),
    own("Embedding", [Y, torch.tensor([[0, 2], [2, 1]], dtype=torch.int32)],
        lambda w, i: F.embedding(i, w, 2), {"padding_idx": 2, "__available_memory": 0.3}),
    own("UpsampleBilinear2d", [IMAGE], lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    own("UpsampleBilinear2d", [IMAGE], lambda x: F.interpolate(
        x, scale_factor=3, mode="bilinear", align_corners=True),
        {"scaling_factor": 3.0, "align_corners": 1}),
]  # fmt: skip


@pytest.mark.parametrize("cases", [PLAIN, SLICES], ids=["plain", "slices"])
def test_results_and_gradients(cases):
    model = Cases(cases)
    check_training(model, model.arguments(), calls=1)


def run(function, *args, options=None):
    return poptorch.inferenceModel(Call(function), options or quiet())(*args)


def named(inputs, name, attributes=None, domain="ai.graphcore", version=1, outputs=1):
    examples = [torch.zeros(1)] * outputs
    return poptorch.custom_op(inputs, name, domain, version, examples, attributes)


def test_group_norm_gives_its_statistics():
    ones, zeros = torch.ones(4), torch.zeros(4)
    attributes = {"num_groups": 2, "epsilon": 1e-5}
    _, mean, inverse = run(
        lambda x: named([x, ones, zeros], "GroupNormalization", attributes, outputs=3), IMAGE
    )
    groups = IMAGE.reshape(4, -1)
    torch.testing.assert_close(mean, groups.mean(1))
    torch.testing.assert_close(inverse, (groups.var(1, unbiased=False) + 1e-5).rsqrt())


def test_ctc_of_half_precision_in_a_chosen_type():
    x = torch.randn(6, 2, 4).log_softmax(2).half()
    loss, gradient = run(
        lambda x, *t: named([x, *t], "Ctc", {"outDataType": 1}, outputs=2), x, *TARGETS
    )
    assert loss.dtype == gradient.dtype == torch.float32
    expected = F.ctc_loss(x.float(), *(t.long() for t in TARGETS))
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-3)
    (half,) = run(lambda x, *t: named([x, *t], "Ctc", {"outDataType": "UNDIFINED"}), x, *TARGETS)
    assert half.dtype == torch.float16


def test_the_decoder_is_that_of_poptorch():
    x, n = torch.randn(6, 2, 4).log_softmax(2), TARGETS[1]
    attributes = {"blank": 1, "beamWidth": 8, "topPaths": 2}
    ours = run(lambda x, n: named([x, n], "CtcBeamSearchDecoder", attributes, outputs=3), x, n)
    other = run(lambda x, n: poptorch.ctc_beam_search_decoder(x, n, 1, 8, 2), x, n)
    assert all(torch.equal(a, b) for a, b in zip(ours, other, strict=True))


def test_a_tensor_is_printed(capfd):
    (y,) = run(lambda x: named([x], "PrintTensor", {"title": "shown"}), Y)
    assert torch.equal(y, Y) and "shown: " in capfd.readouterr().err


def test_an_op_may_be_the_loss():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(Y.clone())

        def forward(self):
            (loss,) = named([self.weight * 2], "IdentityLoss", {"reduction": "Sum"})
            return loss

    model = Model()
    step = poptorch.trainingModel(model, quiet(), torch.optim.SGD(model.parameters(), lr=1.0))
    torch.testing.assert_close(step(), Y.sum() * 2)
    step.copyWeightsToHost()
    torch.testing.assert_close(model.weight.detach(), Y - 2)


class Random(torch.nn.Module):
    """The random ops of both domains on many elements."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(100, 100))

    def forward(self):
        x = self.weight
        onnx = {"domain": "ai.onnx", "version": 15}
        out = [
            *named([x], "RandomNormalLike", {"mean": 3.0, "scale": 0.5, "dtype": 1}, **onnx),
            *named([], "RandomNormal", {"mean": 3.0, "scale": 0.5, "shape": [100, 100]}, **onnx),
            *named([x], "RandomUniformLike", {"low": 2.0, "high": 4.0}, **onnx),
            *named([], "RandomUniform", {"low": 2.0, "high": 4.0, "shape": [100, 100]}, **onnx),
            *named([x * 0.25], "Bernoulli", **onnx),
            *named([x], "Dropout", {"ratio": 0.25}, "ai.onnx", 11),
            *named([x, torch.tensor(0.25)], "Dropout", None, "ai.onnx", 12, outputs=2),
            *named([x], "ShapedDropout", {"ratio": 0.25, "shape": [100, 1]}),
        ]
        return out, poptorch.identity_loss(x.sum(), "sum")


def test_random_ops_draw_from_their_distributions():
    model = Random()
    step = poptorch.trainingModel(
        model, quiet().randomSeed(3), torch.optim.SGD(model.parameters(), lr=0.0)
    )
    *both, bits, dropped, masked, mask, rows = step()[0]
    for drawn, deviation in zip(both, (0.5, 0.5, 2 / 12**0.5, 2 / 12**0.5), strict=True):
        assert abs(drawn.mean() - 3) < 0.03 and abs(drawn.std() - deviation) < 0.03
    assert abs(bits.mean() - 0.25) < 0.03 and set(bits.unique().tolist()) == {0, 1}
    for y in (dropped, masked, rows):
        assert y.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert abs(dropped.mean() - 1) < 0.03 and mask.dtype == torch.bool
    assert torch.equal(masked != 0, mask) and torch.equal(rows, rows[:, :1].expand(100, 100))
    still = poptorch.inferenceModel(Random(), quiet())()[0]
    assert all(torch.equal(y, torch.ones(100, 100)) for y in (still[5], still[6], still[8]))


def test_a_gather_has_the_parts_of_all_replicas():
    options = quiet().replicationFactor(2)
    x = torch.arange(12.0).reshape(4, 3)
    found = run(lambda x: named([x], "ReplicatedAllGather"), x, options=options)
    assert found[0].flatten().equal(torch.cat([x.flatten(), x.flatten()]))


def test_collectives_have_no_place_in_loops():
    def turn(x):
        return named([x], "ReplicatedAllReduce")[0]

    options = quiet().replicationFactor(2)
    with pytest.raises(poptorch.Error, match="exchange values in the body of poptorch.for_loop"):
        run(lambda x: poptorch.for_loop(2, turn, [x]), X, options=options)


ELSEWHERE = {"Ctc", "CtcBeamSearchDecoder", "IdentityLoss", "PrintTensor", "ShapedDropout"}


def test_every_op_has_a_case():
    tested = {(case.domain, case.name) for case in PLAIN + SLICES}
    tested |= {("ai.graphcore", name) for name in ELSEWHERE}
    domains = ("ai.graphcore", "poptorch.custom_ops")
    assert tested == {(domain, name) for domain in domains for name in TABLES[domain]}


@pytest.mark.parametrize("names", [("beamWidth", "topPaths"), ("beam_width", "top_paths")])
def test_attributes_with_underscores_or_capitals(names, caplog):
    """PopART has both ways of writing, and programs know the one of its builder."""
    x = torch.randn(5, 2, 4).log_softmax(2)
    lengths = torch.tensor([5, 3], dtype=torch.int32)

    def run(x, lengths):
        attributes = dict(zip(names, (6, 2), strict=True))
        return poptorch.custom_op(
            [x, lengths], "CtcBeamSearchDecoder", "ai.graphcore", 1, [x, lengths, x], attributes
        )

    found = poptorch.inferenceModel(Call(run))(x, lengths)
    assert found[0].shape == (2, 2) and "no attribute" not in caplog.text
    # Not of ONNX, whose names are known.
    named = Call(lambda x: poptorch.custom_op([x], "ReduceSum", "", 11, [x], {"keep_dims": 0})[0])
    assert poptorch.inferenceModel(named)(Y).shape == (1, 1)
    assert "no attribute keep_dims" in caplog.text
