# SPDX-License-Identifier: Apache-2.0
"""Ops of ai.onnx by name: results and gradients of compiled models against eager torch.

ONNX's own cases are in test_onnx_node_cases; these have gradients and the older forms.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from against_eager import check_training
from named_ops import Case, Cases, Known
from poptorch.capture.custom.named import TABLES

torch.manual_seed(0)
X = torch.randn(2, 3, 4)
Y = torch.randn(3, 4)
UNIT = torch.rand(2, 3) * 0.8 + 0.1
ABOVE = torch.rand(2, 3) + 1.2
IMAGE = torch.randn(2, 4, 6, 6)
ROWS = torch.tensor([[0, 2], [1, 1]])
I32 = torch.tensor([[1, 5, -3], [4, -2, 7]], dtype=torch.int32)
BOOL = torch.tensor([[True, False, True], [False, False, True]])
ONES = torch.ones(1, dtype=torch.int64)


def unary(*names):
    return [Case(n, [X], getattr(torch, n.lower())) for n in names]


MATH = [
    *unary("Abs", "Atan", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Neg", "Reciprocal"),
    *unary("Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Tan", "Tanh", "Asinh", "IsNaN"),
    *[Case(n, [UNIT], getattr(torch, n.lower())) for n in ("Acos", "Asin", "Atanh", "Log", "Sqrt")],
    Case("Acosh", [ABOVE], torch.acosh),
    Case("Add", [X, Y], lambda a, b: a + b),
    Case("Add", [X, torch.randn(3)], lambda a, b: a + b[:, None],
         {"broadcast": 1, "axis": 1}, version=6),
    Case("Sub", [X, Y], lambda a, b: a - b),
    Case("Mul", [X, Y], lambda a, b: a * b),
    Case("Div", [X, Y], lambda a, b: a / b),
    Case("Div", [I32, I32 * 0 + 2], lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    Case("Pow", [ABOVE, UNIT], torch.pow),
    Case("Pow", [ABOVE, Known(2)], lambda a, b: a * a),
    Case("Mod", [I32, I32 * 0 + 3], torch.remainder),
    Case("Mod", [X, Y], torch.fmod, {"fmod": 1}),
    Case("Max", [X, Y, X.neg()], lambda a, b, c: torch.maximum(torch.maximum(a, b), c)),
    Case("Min", [X, Y], torch.minimum),
    Case("Sum", [X, Y, X], lambda a, b, c: a + b + c),
    Case("Mean", [X, Y], lambda a, b: (a + b) / 2),
    Case("And", [BOOL, ~BOOL], torch.logical_and),
    Case("Or", [BOOL, ~BOOL], torch.logical_or),
    Case("Xor", [BOOL, BOOL], torch.logical_xor),
    Case("Not", [BOOL], torch.logical_not),
    Case("Equal", [I32, Known(4)], lambda a, b: a == 4),
    Case("Greater", [X, Y], torch.gt),
    Case("GreaterOrEqual", [X, Y], torch.ge, version=12),
    Case("Less", [X, Y], torch.lt),
    Case("LessOrEqual", [X, Y], torch.le, version=12),
    Case("Where", [BOOL, UNIT, ABOVE], torch.where),
    Case("Identity", [X], lambda x: x),
    Case("IsInf", [X], lambda x: x > 99, {"detect_negative": 0}),
    Case("BitShift", [I32.abs(), I32 * 0 + 1], lambda a, b: a * 2, {"direction": "LEFT"}),
    Case("BitwiseAnd", [I32, I32 + 1], lambda a, b: a & b, version=18),
    Case("BitwiseOr", [I32, I32 + 1], lambda a, b: a | b, version=18),
    Case("BitwiseXor", [I32, I32 + 1], lambda a, b: a ^ b, version=18),
    Case("BitwiseNot", [I32], lambda a: ~a, version=18),
    Case("Cast", [X], lambda x: x.int(), {"to": 6}, example=torch.zeros(1, dtype=torch.int32)),
    Case("Cast", [I32], lambda x: x.half(), {"to": "FLOAT16"}, version=6),
    Case("CastLike", [I32, X], lambda a, b: a.float(), version=15),
    Case("Clip", [X], lambda x: x.clamp(-0.5, 0.5), {"min": -0.5, "max": 0.5}, version=6),
    Case("Clip", [X, Known(-0.5), Known(0.5)], lambda x, a, b: x.clamp(-0.5, 0.5)),
    Case("Clip", [X, Known([]), Known(0.5)], lambda x, a, b: x.clamp(max=0.5)),
]  # fmt: skip

ACTIVATIONS = [
    Case("Elu", [X], lambda x: F.elu(x, 0.7), {"alpha": 0.7}),
    Case("Celu", [X], lambda x: F.celu(x, 2.0), {"alpha": 2}, version=12),
    Case("Selu", [X], F.selu),
    Case("LeakyRelu", [X], lambda x: F.leaky_relu(x, 0.2), {"alpha": 0.2}),
    Case("PRelu", [X, torch.rand(4)], lambda x, s: torch.where(x < 0, s * x, x)),
    Case("PRelu", [X, torch.rand(3)], F.prelu, version=6),
    Case("ThresholdedRelu", [X], lambda x: F.threshold(x, 0.3, 0.0), {"alpha": 0.3}),
    Case("HardSigmoid", [X], lambda x: (0.3 * x + 0.4).clamp(0, 1), {"alpha": 0.3, "beta": 0.4}),
    Case("HardSwish", [X], F.hardswish, version=14),
    Case("Shrink", [X], lambda x: F.softshrink(x, 0.4), {"lambd": 0.4, "bias": 0.4}),
    Case("Softplus", [X], F.softplus),
    Case("Softsign", [X], F.softsign),
    Case("Gelu", [X], F.gelu, version=20),
    Case("Gelu", [X], lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}, version=20),
    Case("Mish", [X], F.mish, version=18),
    Case("Swish", [X], lambda x: x * torch.sigmoid(1.5 * x), {"alpha": 1.5}, version=24),
    Case("Softmax", [X], lambda x: x.flatten(1).softmax(1).reshape(x.shape)),
    Case("Softmax", [X], lambda x: x.softmax(2), {"axis": -1}),
    Case("Softmax", [X], lambda x: x.softmax(-1), version=13),
    Case("Softmax", [X], lambda x: x.softmax(1), {"axis": 1}, version=13),
    Case("LogSoftmax", [X], lambda x: x.flatten().log_softmax(0).reshape(x.shape), {"axis": 0}),
    Case("Hardmax", [X], lambda x: F.one_hot(x.flatten(1).argmax(1), 12).reshape(2, 3, 4).float()),
]


def reduced(name, formula):
    return [
        Case(name, [X], lambda x: formula(x, 1, False), {"axes": [1], "keepdims": 0}),
        Case(name, [X, Known([-1])], lambda x, a: formula(x, 2, True), version=18),
        Case(name, [X], lambda x: formula(x.reshape(-1), 0, False).reshape(1, 1, 1)),
    ]


POSITIVE = torch.rand(2, 3, 4) + 0.2
REDUCE = [
    *reduced("ReduceSum", lambda x, d, k: x.sum(d, keepdim=k)),
    *reduced("ReduceMean", lambda x, d, k: x.mean(d, keepdim=k)),
    *reduced("ReduceMax", lambda x, d, k: x.amax(d, keepdim=k)),
    *reduced("ReduceMin", lambda x, d, k: x.amin(d, keepdim=k)),
    *reduced("ReduceProd", lambda x, d, k: x.prod(d, keepdim=k)),
    *reduced("ReduceL1", lambda x, d, k: x.abs().sum(d, keepdim=k)),
    *reduced("ReduceL2", lambda x, d, k: x.square().sum(d, keepdim=k).sqrt()),
    *reduced("ReduceSumSquare", lambda x, d, k: x.square().sum(d, keepdim=k)),
    *reduced("ReduceLogSumExp", lambda x, d, k: x.exp().sum(d, keepdim=k).log()),
    Case("ReduceLogSum", [POSITIVE], lambda x: x.sum((0, 2), keepdim=True).log(), {"axes": [0, 2]}),
    Case("ReduceSum", [X, Known([])], lambda x, a: x, {"noop_with_empty_axes": 1}, version=13),
    Case("ArgMax", [X], lambda x: x.argmax(0, keepdim=True)),
    Case("ArgMin", [X], lambda x: x.argmin(2), {"axis": -1, "keepdims": 0}),
    Case("ArgMax", [I32 * 0], lambda x: torch.full((2, 1), 2), {"axis": 1, "select_last_index": 1},
         version=12),
    Case("CumSum", [X, Known(1)], lambda x, a: x.cumsum(1)),
    Case("CumSum", [X, Known(2)], lambda x, a: x.flip(2).cumsum(2).flip(2) - x,
         {"exclusive": 1, "reverse": 1}),
    Case("TopK", [X], lambda x: x.topk(2), {"k": 2}, version=9, outputs=2),
    Case("TopK", [X, Known([2])], lambda x, k: x.topk(2, 1, False), {"axis": 1, "largest": 0},
         outputs=2),
    Case("Einsum", [X, Y], lambda a, b: torch.einsum("bij,ij->bj", a, b),
         {"equation": "bij,ij->bj"}, version=12),
    Case("Det", [torch.randn(2, 3, 3)], torch.linalg.det),
]  # fmt: skip


SHAPE = [
    Case("Reshape", [X, Known([0, -1])], lambda x, s: x.reshape(2, 12)),
    Case("Reshape", [X], lambda x: x.reshape(6, 4), {"shape": [6, 4]}, version=1),
    Case("Flatten", [X], lambda x: x.reshape(6, 4), {"axis": 2}),
    Case("Transpose", [X], lambda x: x.permute(2, 1, 0)),
    Case("Transpose", [X], lambda x: x.permute(1, 0, 2), {"perm": [1, 0, 2]}),
    Case("Squeeze", [X[:1]], lambda x: x.squeeze(0), {"axes": [0]}),
    Case("Squeeze", [X[:1], Known([0])], lambda x, a: x.squeeze(0), version=13),
    Case("Squeeze", [X[:1]], lambda x: x.squeeze(0)),
    Case("Unsqueeze", [Y], lambda x: x[None, :, :, None], {"axes": [0, 3]}),
    Case("Unsqueeze", [Y, Known([1])], lambda x, a: x.unsqueeze(1), version=13),
    Case("Expand", [Y, Known([2, 1, 1])], lambda x, s: x.expand(2, 3, 4)),
    Case("Tile", [Y, Known([2, 3])], lambda x, r: x.repeat(2, 3)),
    Case("Concat", [X, X.neg()], lambda a, b: torch.cat([a, b], 2), {"axis": -1}),
    Case("Split", [X], lambda x: x.split([1, 3], 2), {"axis": 2, "split": [1, 3]}, outputs=2),
    Case("Split", [X, Known([1, 2])], lambda x, s: x.split([1, 2], 1), {"axis": 1}, version=13,
         outputs=2),
    Case("Split", [X], lambda x: x.split(1), outputs=2),
    Case("Split", [X], lambda x: x.split(2, 1), {"axis": 1, "num_outputs": 2}, version=18,
         outputs=2),
    Case("Slice", [X], lambda x: x[:, 1:, :-1], {"starts": [1, 0], "ends": [99, -1],
         "axes": [1, 2]}, version=9),
    Case("Slice", [X, Known([-1, 0]), Known([-99, 3]), Known([2, 1]), Known([-2, 2])],
         lambda x, *_: x.flip(2)[:, :3:2, ::2]),
    Case("Slice", [X, Known([1]), Known([2**62])], lambda x, *_: x[1:]),
    Case("Pad", [Y], lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
         {"pads": [0, 1, 1, 2], "value": 3.0}, version=2),
    Case("Pad", [Y, Known([0, 1, 1, 2]), torch.ones(())],
         lambda x, p, v: torch.where(F.pad(torch.ones(3, 4), (1, 2, 0, 1)) > 0,
                                     F.pad(x, (1, 2, 0, 1)), v)),
    Case("Pad", [Y, Known([1, -1, 0, 2])], lambda x, p: F.pad(x, (-1, 2, 1, 0))),
    Case("Pad", [X, Known([0, 1, 2, 0, 0, 1])],
         lambda x, p: F.pad(x, (2, 1), mode="reflect")[:, [1, 0, 1, 2]], {"mode": "reflect"}),
    Case("Pad", [X, Known([0, 0, 2, 0, 0, 1])], lambda x, p: F.pad(x, (2, 1), mode="replicate"),
         {"mode": "edge"}),
    Case("Pad", [X, Known([2, 1]), Known([]), Known([2])],
         lambda x, *_: F.pad(x, (2, 1), mode="circular"), {"mode": "wrap"}, version=19),
    Case("SpaceToDepth", [IMAGE], lambda x: torch.cat(
        [x[:, :, i::2, j::2] for i in range(2) for j in range(2)], 1), {"blocksize": 2}),
    Case("DepthToSpace", [IMAGE], lambda x: F.pixel_shuffle(x, 2), {"blocksize": 2, "mode": "CRD"}),
    Case("DepthToSpace", [IMAGE[:, [0, 2, 1, 3]]],
         lambda x: F.pixel_shuffle(x, 2), {"blocksize": 2}),
    Case("Shape", [X], lambda x: torch.tensor([2, 3, 4])),
    Case("Size", [X], lambda x: torch.tensor(24)),
    Case("Constant", [], lambda: torch.tensor([1.5, 2.0]), {"value_floats": [1.5, 2.0]},
         version=12),
    Case("Constant", [], lambda: torch.tensor(3), {"value_int": 3}, version=12),
    Case("ConstantOfShape", [Known([2, 2])], lambda s: torch.full((2, 2), 1.5), {"value": 1.5}),
    Case("EyeLike", [Y], lambda x: torch.eye(3, 5)[:, 1:].contiguous(), {"k": -1}),
    Case("Range", [Known(1), Known(8), Known(3)], lambda *_: torch.tensor([1, 4, 7])),
    Case("Trilu", [Y], torch.triu, version=14),
    Case("NonZero", [Known([[1, 0], [1, 1]])], lambda x: torch.tensor([[0, 1, 1], [0, 0, 1]])),
]  # fmt: skip

INDEX = [
    Case("Gather", [X, torch.tensor([[0, -1], [2, 1]])], lambda x, i: x[:, i], {"axis": 1}),
    Case("Gather", [Y, torch.tensor([2, 0], dtype=torch.int32)], lambda x, i: x[i.long()]),
    Case("GatherElements", [Y, torch.tensor([[0, -1], [1, 1]])],
         lambda x, i: x.gather(1, i % 4), {"axis": 1}),
    Case("GatherND", [X, torch.tensor([[0, 2], [-1, 0]])], lambda x, i: x[[0, 1], [2, 0]]),
    Case("GatherND", [X, torch.tensor([[2], [0]])], lambda x, i: x[[0, 1], [2, 0]],
         {"batch_dims": 1}, version=12),
    Case("ScatterElements", [Y, ROWS, torch.randn(2, 2)], lambda x, i, u: x.scatter(0, i, u)),
    Case("ScatterElements", [Y, ROWS, torch.randn(2, 2)], lambda x, i, u: x.scatter_add(1, i, u),
         {"axis": 1, "reduction": "add"}, version=16),
    Case("Scatter", [Y, ROWS, torch.randn(2, 2)], lambda x, i, u: x.scatter(1, i, u), {"axis": 1}),
    Case("ScatterND", [X, torch.tensor([[1, 2], [0, -3]]), torch.randn(2, 4)],
         lambda x, i, u: x.index_put((torch.tensor([1, 0]), torch.tensor([2, 0])), u)),
    Case("ScatterND", [Y, torch.tensor([[1], [1]]), torch.randn(2, 4)],
         lambda x, i, u: x.index_add(0, i[:, 0], u), {"reduction": "add"}, version=16),
    Case("OneHot", [ROWS, Known(3), torch.tensor([0.5, 2.0])],
         lambda i, d, v: F.one_hot(i, 3) * (v[1] - v[0]) + v[0]),
    Case("OneHot", [ROWS, Known(3), Known([0.0, 1.0])],
         lambda i, d, v: F.one_hot(i, 3).float().movedim(-1, 1), {"axis": 1}),
    Case("ReverseSequence", [Y, torch.tensor([1, 3, 2, 2])], lambda x, n: torch.stack(
        [x[:, 0], x[:, 1].flip(0), x[[1, 0, 2], 2], x[[1, 0, 2], 3]], 1)),
    Case("Compress", [Y, Known([True, False, True])], lambda x, c: x[[0, 2]], {"axis": 0}),
]  # fmt: skip

WEIGHT = torch.randn(6, 2, 3, 3)
LAYERS = [
    Case("MatMul", [X, Y.t().contiguous()], torch.matmul),
    Case("Gemm", [Y, torch.randn(5, 4), torch.randn(5)],
         lambda a, b, c: 0.5 * a @ b.t() + 2 * c, {"alpha": 0.5, "beta": 2.0, "transB": 1}),
    Case("Gemm", [Y, torch.randn(3, 5)], lambda a, b: a.t() @ b, {"transA": 1}),
    Case("Conv", [IMAGE, WEIGHT, torch.randn(6)],
         lambda x, w, b: F.conv2d(x, w, b, 2, 1, 1, 2),
         {"pads": [1, 1, 1, 1], "strides": [2, 2], "group": 2, "kernel_shape": [3, 3]}),
    Case("Conv", [IMAGE, WEIGHT], lambda x, w: F.conv2d(F.pad(x, (0, 1, 1, 2)), w, groups=2),
         {"pads": [1, 0, 2, 1], "group": 2}),
    Case("Conv", [IMAGE, WEIGHT],
         lambda x, w: F.conv2d(F.pad(x, (0, 1, 0, 1)), w, None, 2, groups=2),
         {"auto_pad": "SAME_UPPER", "group": 2, "strides": [2, 2]}),
    Case("ConvTranspose", [IMAGE, torch.randn(4, 3, 3, 3), torch.randn(3)],
         lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1),
         {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    Case("ConvTranspose", [IMAGE, torch.randn(4, 3, 3, 3), torch.randn(3)],
         lambda x, w, b: F.conv_transpose2d(x, w, b, 2)[:, :, :-1, 1:],
         {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
    Case("MaxPool", [IMAGE], lambda x: F.max_pool2d(x, 3, 2, 1),
         {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("MaxPool", [IMAGE], lambda x: F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-math.inf), 3, 2),
         {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    Case("MaxPool", [IMAGE], lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 2, return_indices=True)[
        1] + 36 * torch.arange(8).reshape(2, 4, 1, 1)),
         {"kernel_shape": [2, 2], "strides": [2, 2]}, outputs=2),
    Case("AveragePool", [IMAGE], lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
         {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("AveragePool", [IMAGE], lambda x: F.avg_pool2d(F.pad(x, (0, 1, 0, 1)), 3, 2),
         {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1],
          "count_include_pad": 1}),
    Case("LpPool", [IMAGE], lambda x: (F.avg_pool2d(x.square(), 2, 1) * 4).sqrt(),
         {"kernel_shape": [2, 2]}),
    Case("GlobalAveragePool", [IMAGE], lambda x: x.mean((2, 3), keepdim=True)),
    Case("GlobalMaxPool", [IMAGE], lambda x: x.amax((2, 3), keepdim=True)),
    Case("GlobalLpPool", [IMAGE], lambda x: x.square().sum((2, 3), keepdim=True).sqrt()),
]  # fmt: skip


def batch_statistics(x, scale, bias, mean, var):
    now, spread = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
    y = F.batch_norm(x, None, None, scale, bias, True)
    return y, (mean * 0.9 + now * 0.1).detach(), (var * 0.9 + spread * 0.1).detach()


STATS = [torch.rand(4) + 0.5 for _ in range(4)]
NORMS = [
    Case("BatchNormalization", [IMAGE, *STATS],
         lambda x, s, b, m, v: F.batch_norm(x, m.detach(), v.detach(), s, b, False, 0.0, 1e-3),
         {"epsilon": 1e-3}),
    Case("BatchNormalization", [IMAGE, *STATS], batch_statistics, {"training_mode": 1}, version=14,
         outputs=3),
    Case("InstanceNormalization", [IMAGE, *STATS[:2]],
         lambda x, s, b: F.instance_norm(x, weight=s, bias=b)),
    Case("GroupNormalization", [IMAGE, *STATS[:2]], lambda x, s, b: F.group_norm(x, 2, s, b),
         {"num_groups": 2}, version=21),
    Case("GroupNormalization", [IMAGE, STATS[0][:2], STATS[1][:2]],
         lambda x, s, b: F.group_norm(x, 2, s.repeat_interleave(2), b.repeat_interleave(2)),
         {"num_groups": 2}, version=18),
    Case("LayerNormalization", [X, torch.randn(3, 4), torch.randn(3, 4)],
         lambda x, w, b: F.layer_norm(x, (3, 4), w, b), {"axis": 1}, version=17),
    Case("RMSNormalization", [X, torch.randn(4)], lambda x, w: F.rms_norm(x, (4,), w, 1e-5),
         version=23),
    Case("LRN", [IMAGE], lambda x: F.local_response_norm(x, 3, 0.1, 0.6, 2.0),
         {"size": 3, "alpha": 0.1, "beta": 0.6, "bias": 2.0}),
    Case("LpNormalization", [X], lambda x: F.normalize(x, 1.0, 1), {"p": 1, "axis": 1}),
    Case("MeanVarianceNormalization", [IMAGE],
         lambda x: (x - x.mean((0, 2, 3), True)) / x.std((0, 2, 3), unbiased=False, keepdim=True)),
    Case("NegativeLogLikelihoodLoss", [torch.randn(2, 4, 3), torch.tensor([[0, 3, 1], [2, 1, 1]]),
         torch.rand(4)], lambda x, t, w: F.nll_loss(x, t, w.detach(), ignore_index=1),
         {"ignore_index": 1}, version=12),
    Case("SoftmaxCrossEntropyLoss", [Y, torch.tensor([0, 3, 1], dtype=torch.int32)],
         lambda x, t: (F.cross_entropy(x, t.long(), reduction="sum"), x.log_softmax(1)),
         {"reduction": "sum"}, version=12, outputs=2),
]  # fmt: skip

RESIZE = [
    Case("Resize", [IMAGE, Known([1.0, 1.0, 2.0, 2.0])],
         lambda x, s: F.interpolate(x, scale_factor=2), version=10),
    Case("Resize", [IMAGE, Known([]), Known([1.0, 1.0, 0.5, 1.5])],
         lambda x, r, s: F.interpolate(x, scale_factor=(0.5, 1.5), mode="bilinear"),
         {"mode": "linear"}),
    Case("Resize", [IMAGE, Known([]), Known([]), Known([2, 4, 9, 8])],
         lambda x, *_: F.interpolate(x, (9, 8), mode="bicubic", align_corners=True),
         {"mode": "cubic", "coordinate_transformation_mode": "align_corners"}),
    Case("Upsample", [IMAGE], lambda x: F.interpolate(x, scale_factor=(2, 3)),
         {"scales": [1.0, 1.0, 2.0, 3.0]}, version=7),
    Case("Upsample", [IMAGE, Known([1.0, 1.0, 2.0, 2.0])],
         lambda x, s: F.interpolate(x, scale_factor=2), version=9),
]  # fmt: skip


def torch_layer(kind, order, states, directions=1):
    """torch's layer with weights in ONNX's order of gates."""

    def run(x, w, r, b, *first):
        def gates(t):
            return torch.cat([t.chunk(len(order))[g] for g in order])

        parts = []
        for d in range(directions):
            parts += [gates(w[d]), gates(r[d]), *(gates(t) for t in b[d].chunk(2))]
        first = first or tuple(torch.zeros(directions, x.shape[1], 3) for _ in range(states))
        hidden = list(first) if states == 2 else first[0]
        y, *last = getattr(torch, kind)(
            x, hidden, parts, True, 1, 0.0, False, directions == 2, False
        )
        return y.reshape(*y.shape[:2], directions, 3).transpose(1, 2), *last

    return run


def layer(gates, directions=1):
    return [
        torch.randn(5, 2, 4),
        torch.randn(directions, gates * 3, 4) * 0.5,
        torch.randn(directions, gates * 3, 3) * 0.5,
        torch.randn(directions, gates * 6) * 0.5,
    ]


def with_lengths(x, w, r, b, n):
    """The first sample of an RNN for three steps, the second for five."""
    run = torch_layer("rnn_tanh", [0], 1)
    y, last = run(x, w, r, b)
    short = run(x[:3], w, r, b)[0]
    y = torch.stack([F.pad(short[:, :, 0], (0, 0, 0, 0, 0, 2)), y[:, :, 1]], 2)
    return y, torch.stack([short[2, :, 0], last[:, 1]], 1)


def reset_first(x, w, r, b):
    """A GRU that resets the state before it is multiplied."""
    h, outs = torch.zeros(2, 3), []
    for t in range(5):
        gates = x[t] @ w[0].t() + b[0][:9]
        z = torch.sigmoid(gates[:, :3] + h @ r[0][:3].t() + b[0][9:12])
        reset = torch.sigmoid(gates[:, 3:6] + h @ r[0][3:6].t() + b[0][12:15])
        new = torch.tanh(gates[:, 6:] + (reset * h) @ r[0][6:].t() + b[0][15:])
        h = (1 - z) * new + z * h
        outs.append(h)
    return torch.stack(outs).unsqueeze(1), h.unsqueeze(0)


RECURRENT = [
    Case("LSTM", layer(4), torch_layer("lstm", [0, 2, 3, 1], 2), {"hidden_size": 3}, outputs=3),
    Case("LSTM", layer(4, 2), torch_layer("lstm", [0, 2, 3, 1], 2, 2),
         {"hidden_size": 3, "direction": "bidirectional"}, outputs=3),
    Case("GRU", layer(3), torch_layer("gru", [1, 0, 2], 1), {"linear_before_reset": 1}, outputs=2),
    Case("GRU", layer(3), reset_first, outputs=2),
    Case("RNN", layer(1), torch_layer("rnn_relu", [0], 1), {"activations": ["Relu"]}, outputs=2),
    Case("RNN", [*layer(1), torch.tensor([3, 5], dtype=torch.int32)], with_lengths, outputs=2),
]  # fmt: skip

GROUPS = {
    "math": MATH, "activations": ACTIVATIONS, "reduce": REDUCE, "shape": SHAPE, "index": INDEX,
    "layers": LAYERS, "norms": NORMS, "resize": RESIZE, "recurrent": RECURRENT,
}  # fmt: skip
RANDOM = {
    "Bernoulli", "Dropout", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
}  # fmt: skip


@pytest.mark.parametrize("group", GROUPS)
def test_results_and_gradients(group):
    model = Cases(GROUPS[group])
    check_training(model, model.arguments(), calls=1)


def test_every_op_has_a_case():
    tested = {case.name for cases in GROUPS.values() for case in cases}
    assert tested | RANDOM == set(TABLES["ai.onnx"])
