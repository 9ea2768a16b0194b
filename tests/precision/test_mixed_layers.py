# SPDX-License-Identifier: Apache-2.0
"""Layers and products with operands of float16 and float32, which plain torch mostly refuses: one
row each, in both rules, with the values of float32."""

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from poptorch import HalfFloatCastingBehavior as Behavior
from torch import nn

HALF, FULL = torch.float16, torch.float32


class Call(nn.Module):
    """A function of a layer and of the inputs as a model."""

    def __init__(self, function, layer):
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, *args):
        return self.function(*args) if self.layer is None else self.function(self.layer, *args)


def tensors(value):
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in tensors(v)]


def apply(layer, *args):
    return layer(*args)


torch.manual_seed(0)
IDS = torch.arange(20).reshape(5, 4) % 10
X, Y, SAME = torch.randn(5, 4, 8), torch.randn(5, 8, 3), torch.randn(5, 4, 8)
H = X.half()
LABELS = torch.tensor([1, 0, 7, 3])

LAYERS = {
    "LSTM": (apply, nn.LSTM(8, 6), H),
    "LSTM both ways": (apply, nn.LSTM(8, 6, 2, bidirectional=True), H),
    "LSTM state": (apply, nn.LSTM(8, 6), H, (X[:1, :, :6], X[1:2, :, :6])),
    "LSTM projected": (apply, nn.LSTM(8, 6, proj_size=3), H),
    "GRU": (apply, nn.GRU(8, 6), H),
    "RNN": (apply, nn.RNN(8, 6), H),
    "LSTMCell": (apply, nn.LSTMCell(8, 6), H[0]),
    "GRUCell": (apply, nn.GRUCell(8, 6), H[0]),
    "attention": (lambda m, x: m(x, x, x)[0], nn.MultiheadAttention(8, 2), H),
    "encoder": (apply, nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), H),
    "Linear": (apply, nn.Linear(8, 6), H),
    "Bilinear": (lambda m, x: m(x, x), nn.Bilinear(8, 8, 6), H),
    "Conv1d": (apply, nn.Conv1d(4, 6, 3), H),
    "ConvTranspose1d": (apply, nn.ConvTranspose1d(4, 6, 3), H),
    "Embedding": (lambda m, i, x: m(i) + x, nn.Embedding(10, 8), IDS, H),
    "EmbeddingBag": (
        lambda m, i, w: m(i, per_sample_weights=w),
        nn.EmbeddingBag(10, 8, mode="sum"),
        IDS,
        H[:, :, 0],
    ),
    "PReLU": (apply, nn.PReLU(4), H),
    "matmul": (torch.matmul, None, H, Y),
    "bmm": (torch.bmm, None, H, Y),
    "mm": (torch.mm, None, X[0], Y[0].half()),
    "mv": (torch.mv, None, H[0], Y[0, :, 0]),
    "dot": (torch.dot, None, H[0, 0], Y[0, :, 0]),
    "einsum": (lambda x, y: torch.einsum("abc,acd->abd", x, y), None, H, Y),
    "addmm": (torch.addmm, None, X[0, :, :3], H[0], Y[0]),
    "baddbmm": (torch.baddbmm, None, H[:, :, :3], X, Y),
    "addmv": (torch.addmv, None, H[0, :, 0], X[0], Y[0, :, 0]),
    "attention function": (
        lambda x, y: F.scaled_dot_product_attention(x, y, y),
        None,
        H,
        SAME,
    ),
    "cdist": (torch.cdist, None, H, SAME),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.25), None, H, SAME),
    "addcmul": (lambda x, y: torch.addcmul(x, y, y), None, H, SAME),
    "stack": (lambda x, y: torch.stack([x, y]), None, H, SAME),
    "scatter_add": (lambda x, y: x.scatter_add(0, torch.zeros_like(y).long(), y), None, H, SAME),
    "index_put": (lambda x, y: torch.index_put(x, (torch.tensor([3]),), y), None, H, SAME[:1]),
    "power": (lambda x, y: x.abs().clamp(min=0.5) ** y, None, H, SAME),
    "binary cross entropy": (
        F.binary_cross_entropy_with_logits,
        None,
        H,
        SAME.sigmoid(),
    ),
    "cross entropy": (F.cross_entropy, None, H[0], LABELS, Y[0, :, 0].abs()),
}
#: They compute in the type of their input by both rules.
NORMS = {
    "LayerNorm": nn.LayerNorm(8),
    "GroupNorm": nn.GroupNorm(2, 4),
    "BatchNorm1d": nn.BatchNorm1d(4),
    "BatchNorm1d in inference": nn.BatchNorm1d(4).eval(),
    "InstanceNorm1d": nn.InstanceNorm1d(4, affine=True),
    "RMSNorm": nn.RMSNorm(8),
}


def in_float(args):
    return [
        in_float(a) if isinstance(a, tuple) else a.float() if a.is_floating_point() else a
        for a in args
    ]


def compare(model, opts, behavior, dtype, args):
    opts.Precision.halfFloatCasting(behavior)
    got = tensors(poptorch.inferenceModel(model, opts)(*args))
    want = tensors(model(*in_float(args)))
    tolerance = 1e-2 if dtype == HALF else 1e-5
    assert [t.dtype for t in got] == [dtype] * len(want)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "behavior, dtype",
    [(Behavior.FloatDowncastToHalf, HALF), (Behavior.HalfUpcastToFloat, FULL)],
    ids=["down", "up"],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
def test_types_and_values(opts, name, behavior, dtype):
    function, layer, *args = LAYERS[name]
    compare(Call(function, layer), opts, behavior, dtype, args)


@pytest.mark.parametrize("behavior", [Behavior.FloatDowncastToHalf, Behavior.HalfUpcastToFloat])
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("name", NORMS)
def test_norms_compute_in_the_type_of_their_input(opts, name, behavior):
    compare(NORMS[name], opts, behavior, HALF, [H])


def test_a_number_does_not_widen_a_tensor(opts):
    opts.Precision.halfFloatCasting(Behavior.HalfUpcastToFloat)
    got = poptorch.inferenceModel(Call(torch.mul, None), opts)(H, torch.tensor(2.0))
    assert got.dtype == HALF and torch.equal(got, H * 2)


def test_a_recurrent_layer_keeps_its_float32_weights_in_training(opts):
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.rnn = nn.LSTM(8, 6)

        def forward(self, x):
            return poptorch.identity_loss(self.rnn(x)[0].float().pow(2).mean(), "sum")

    ours, theirs = Loss(), Loss()
    step = poptorch.trainingModel(ours, opts, poptorch.optim.SGD(ours.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(5):
        step(H)
        optimizer.zero_grad()
        theirs.rnn(H.float())[0].pow(2).mean().backward()
        optimizer.step()
    for a, b in zip(step.rnn.parameters(), theirs.rnn.parameters(), strict=True):
        assert a.dtype == FULL
        torch.testing.assert_close(a, b, rtol=0, atol=5e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32])
def test_other_mixes_of_recurrent_layers_are_refused_as_in_torch(opts, dtype):
    with pytest.raises(Exception, match="RNN input dtype"):
        poptorch.inferenceModel(nn.LSTM(8, 6), opts)(X.to(dtype))
