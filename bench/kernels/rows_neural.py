# SPDX-License-Identifier: Apache-2.0
"""Layers: softmax, norms, convolutions, pools, upsampling, attention, recurrence, losses."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from bench.kernels.table import Family, ints

ROWS = []
aten = torch.ops.aten
HALF = torch.float16
ROWS_OF_TEXT = [(128, 128), (512, 768), (4096, 768), (8192, 1280)]
IMAGES = (8, 64, 56, 56)

# Softmax ---------------------------------------------------------------------------------------

softmax = Family(ROWS, "softmax", 1)
for size in [*ROWS_OF_TEXT, (12, 32, 128, 128), (64, 50257), (100_000, 10)]:
    softmax.both("softmax", lambda x: x.softmax(-1), size)
    softmax.both("log_softmax", lambda x: x.log_softmax(-1), size)
for name in ("softmax", "log_softmax"):
    for size, dim in (((64, 128, 96), 1), ((64, 128, 96), 0), ((8, 21, 64, 64), 1)):
        op = getattr(torch, name)
        softmax.both(f"{name} dim {dim}", lambda x, op=op, dim=dim: op(x, dim), size)
    backward = getattr(aten, f"_{name}_backward_data")
    for size, dim in (((512, 768), -1), ((64, 128, 96), 1)):
        softmax.row(
            f"{name}_backward dim {dim}",
            lambda g, y, op=backward, dim=dim: op(g, y, dim, torch.float32),
            make=lambda size=size, dim=dim: [torch.randn(size), torch.rand(size).softmax(dim)],
        )
softmax.both("softmax f16", lambda x: x.softmax(-1), (512, 768), dtype=HALF)
softmax.both("softmax f16 dim 1", lambda x: x.softmax(1), (64, 128, 96), dtype=HALF)

# Norms -----------------------------------------------------------------------------------------

norm = Family(ROWS, "norm", 1)
for size in ROWS_OF_TEXT:
    norm.both(
        "layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b), size, size[1:], size[1:]
    )
norm.both("layer_norm plain", lambda x: F.layer_norm(x, x.shape[1:]), (512, 768))
norm.both("layer_norm images", lambda x: F.layer_norm(x, x.shape[1:]), (16, 32, 28, 28))
norm.both("layer_norm short", lambda x: F.layer_norm(x, x.shape[1:]), (16384, 32))
norm.both("layer_norm f16", lambda x: F.layer_norm(x, x.shape[1:]), (512, 768), dtype=HALF)
norm.both("rms_norm", lambda x, w: F.rms_norm(x, w.shape, w), (512, 768), (768,), target=0.9)


def layer_norm_state(rows, columns):
    x = torch.randn(rows, columns)
    weight, bias = torch.randn(columns), torch.randn(columns)
    _, mean, rstd = torch.native_layer_norm(x, (columns,), weight, bias, 1e-5)
    return [torch.randn(rows, columns), x, mean, rstd, weight, bias]


for size in ((512, 768), (4096, 768)):
    norm.row(
        "layer_norm_backward",
        lambda g, x, m, r, w, b: aten.native_layer_norm_backward(
            g, x, w.shape, m, r, w, b, [True, True, True]
        ),
        make=lambda size=size: layer_norm_state(*size),
    )

other = Family(ROWS, "norm", 0.9)
for size, groups in ((IMAGES, 32), (IMAGES, 1), (IMAGES, 64), ((16, 12, 9, 9), 3)):
    other.both(
        f"group_norm {groups}",
        lambda x, w, b, g=groups: F.group_norm(x, g, w, b),
        size,
        (size[1],),
        (size[1],),
    )
other.both("instance_norm", F.instance_norm, IMAGES)
other.both("group_norm f16", lambda x: F.group_norm(x, 8), IMAGES, dtype=HALF)


def batch_norm(training):
    def run(x, w, b, mean, var):
        return F.batch_norm(x, mean.detach(), var.detach(), w, b, training)

    return run


def batch_norm_inputs(size):
    c = size[1:2]
    return lambda: [torch.randn(size), *(torch.rand(c) for _ in range(4))]


for size in (IMAGES, (8, 512, 7, 7), (4, 64, 112, 112), (4096, 768), (8, 32, 8, 28, 28)):
    norm.row("batch_norm eval", batch_norm(False), make=batch_norm_inputs(size))
    norm.both(
        "batch_norm train",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        size,
        size[1:2],
        size[1:2],
    )
norm.row("batch_norm eval +bwd", batch_norm(False), backward=True, make=batch_norm_inputs(IMAGES))

norm.both(
    "batch_norm f16", lambda x: F.batch_norm(x, None, None, training=True), IMAGES, dtype=HALF
)

# Convolutions ----------------------------------------------------------------------------------

conv = Family(ROWS, "conv")


def convolution(name, op, x, w, bias=True, backward=True, dtype=torch.float32, **args):
    out = args.pop("outputs", w[0])
    make = conv.both if backward else conv.row
    make(name, lambda *t: op(*t, **args), x, w, *([(out,)] if bias else []), dtype=dtype)


convolution("conv2d 3x3", F.conv2d, (4, 64, 56, 56), (64, 64, 3, 3), padding=1)
convolution("conv2d 3x3 f16", F.conv2d, (4, 64, 56, 56), (64, 64, 3, 3), dtype=HALF, padding=1)
convolution("conv2d 1x1", F.conv2d, (4, 256, 28, 28), (64, 256, 1, 1))
convolution("conv2d 7x7 s2", F.conv2d, (4, 3, 224, 224), (64, 3, 7, 7), stride=2, padding=3)
convolution("conv2d patches", F.conv2d, (2, 3, 224, 224), (384, 3, 16, 16), stride=16)
convolution("conv2d thin", F.conv2d, (16, 5, 13, 13), (12, 5, 5, 5))
convolution("conv2d depthwise", F.conv2d, (4, 96, 56, 56), (96, 1, 3, 3), padding=1, groups=96)
convolution("conv2d groups 4", F.conv2d, (4, 64, 28, 28), (64, 16, 3, 3), padding=1, groups=4)
convolution("conv2d dilated", F.conv2d, (4, 32, 32, 32), (32, 32, 3, 3), padding=2, dilation=2)
convolution("conv1d", F.conv1d, (8, 64, 512), (64, 64, 5), padding=2)
convolution("conv1d depthwise", F.conv1d, (8, 256, 512), (256, 1, 7), padding=3, groups=256)
convolution("conv3d", F.conv3d, (2, 16, 16, 28, 28), (32, 16, 3, 3, 3), padding=1)
convolution(
    "conv_transpose2d", F.conv_transpose2d, (4, 64, 28, 28), (64, 32, 2, 2), outputs=32, stride=2
)
convolution(
    "conv_transpose2d 4x4",
    F.conv_transpose2d,
    (4, 64, 16, 16),
    (64, 32, 4, 4),
    outputs=32,
    stride=2,
    padding=1,
)
convolution("conv_transpose1d", F.conv_transpose1d, (8, 64, 256), (64, 64, 4), outputs=64, stride=2)

# Pools -----------------------------------------------------------------------------------------

pool = Family(ROWS, "pool", 1)
average = Family(ROWS, "pool", 0.9)
pool.both("max_pool2d 2", lambda x: F.max_pool2d(x, 2), IMAGES)
pool.both("max_pool2d 3 s2 p1", lambda x: F.max_pool2d(x, 3, 2, 1), (4, 64, 112, 112))
pool.both("max_pool2d small", lambda x: F.max_pool2d(x, 2), (16, 5, 26, 26))
pool.row("max_pool2d indices", lambda x: F.max_pool2d(x, 2, return_indices=True), IMAGES)
pool.both("max_pool2d f16", lambda x: F.max_pool2d(x, 2), IMAGES, dtype=HALF)
pool.both("max_pool1d", lambda x: F.max_pool1d(x, 2), (8, 64, 1024))
pool.both("max_pool3d", lambda x: F.max_pool3d(x, 2), (2, 32, 16, 28, 28))
average.both("avg_pool2d 2", lambda x: F.avg_pool2d(x, 2), IMAGES)
average.both("avg_pool2d 3 s2 p1", lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGES)
average.both("avg_pool2d f16", lambda x: F.avg_pool2d(x, 2), IMAGES, dtype=HALF)
average.both("avg_pool1d", lambda x: F.avg_pool1d(x, 4), (8, 64, 1024))
average.both("avg_pool3d", lambda x: F.avg_pool3d(x, 2), (2, 32, 16, 28, 28))
average.both("adaptive_avg_pool2d 1", lambda x: F.adaptive_avg_pool2d(x, 1), IMAGES)
average.both("adaptive_avg_pool2d 7", lambda x: F.adaptive_avg_pool2d(x, 7), IMAGES)
average.both("adaptive_avg_pool2d 6", lambda x: F.adaptive_avg_pool2d(x, 6), (8, 64, 13, 13))
average.both("adaptive_max_pool2d 6", lambda x: F.adaptive_max_pool2d(x, 6), (8, 64, 13, 13))
average.both("lp_pool2d", lambda x: F.lp_pool2d(x, 2, 2), IMAGES)
average.row("unfold", lambda x: F.unfold(x, 3, padding=1), (4, 32, 32, 32))

upsample = Family(ROWS, "upsample")
SMALL_IMAGES = (4, 32, 32, 32)
for mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
    upsample.both(
        f"upsample {mode}",
        lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode),
        SMALL_IMAGES,
    )
upsample.both("linear", lambda x: F.interpolate(x, 1000, mode="linear"), (8, 32, 512))
upsample.both(
    "trilinear", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (2, 16, 8, 16, 16)
)
upsample.row("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (4, 64, 32, 32))
upsample.row(
    "grid_sample",
    lambda x, g: F.grid_sample(x, g, align_corners=False),
    SMALL_IMAGES,
    (4, 32, 32, 2),
)

# Attention and recurrence -----------------------------------------------------------------------

attention = Family(ROWS, "attention")
HEADS = (4, 12, 128, 64)
sdpa = F.scaled_dot_product_attention
attention.both("sdpa", sdpa, HEADS, HEADS, HEADS)
attention.both("sdpa causal", lambda *t: sdpa(*t, is_causal=True), HEADS, HEADS, HEADS)
attention.both("sdpa 1024", sdpa, *[(1, 8, 1024, 64)] * 3)
attention.both(
    "sdpa mask", lambda q, k, v, m: sdpa(q, k, v, m.detach()), HEADS, HEADS, HEADS, (4, 1, 128, 128)
)

recurrent = Family(ROWS, "recurrent")
SEQUENCE = (16, 32, 128)  # batch, time, features
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    name = kind.__name__.lower()
    recurrent.both(name, kind(128, 128, batch_first=True), SEQUENCE)
recurrent.both("lstm 2 layers", nn.LSTM(128, 128, 2, batch_first=True), SEQUENCE)
recurrent.both("lstm both ways", nn.LSTM(128, 128, batch_first=True, bidirectional=True), SEQUENCE)
recurrent.both("lstm_cell", nn.LSTMCell(256, 256), (128, 256))
recurrent.both("gru_cell", nn.GRUCell(256, 256), (128, 256))

# Losses -----------------------------------------------------------------------------------------

loss = Family(ROWS, "loss")


def labelled(batch, classes, *rest):
    return lambda: [torch.randn(batch, classes, *rest), ints(classes, batch, *rest)]


loss.both("cross_entropy", F.cross_entropy, make=labelled(512, 1000))
loss.both("cross_entropy 50257", F.cross_entropy, make=labelled(128, 50257))
loss.both("cross_entropy images", F.cross_entropy, make=labelled(8, 21, 64, 64))
loss.both(
    "cross_entropy smooth",
    lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    make=labelled(512, 1000),
)
loss.both("nll_loss", F.nll_loss, make=labelled(4096, 100))
for op in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss):
    loss.both(op.__name__, op, (512, 768), (512, 768))
loss.both(
    "soft_margin_loss",
    lambda x, y: F.soft_margin_loss(x, y.float()),
    make=lambda: [torch.randn(512, 768), 2 * ints(2, 512, 768) - 1],
)
loss.both(
    "bce_with_logits",
    F.binary_cross_entropy_with_logits,
    make=lambda: [torch.randn(512, 768), torch.rand(512, 768)],
)
loss.both(
    "kl_div",
    F.kl_div,
    make=lambda: [torch.randn(512, 768).log_softmax(-1), torch.rand(512, 768).softmax(-1)],
)
loss.both("cosine_similarity", F.cosine_similarity, (512, 768), (512, 768))
loss.both(
    "ctc_loss",
    lambda x, y: F.ctc_loss(x.log_softmax(-1), y.detach(), [100] * 16, [20] * 16),
    make=lambda: [torch.randn(100, 16, 64), 1 + ints(63, 16, 20)],
)
