# SPDX-License-Identifier: Apache-2.0
"""Pointwise ops, reductions, scans, sorting and matrix products."""

import torch
import torch.nn.functional as F  # noqa: N812

from bench.kernels.table import Family, floats, ints

ROWS = []
SIZES = [(128, 128), (512, 768), (4096, 768), (4096, 2560)]
SMALL, MIDDLE, LARGE, HUGE = SIZES
HALF, BFLOAT = torch.float16, torch.bfloat16

# Pointwise -----------------------------------------------------------------------------------

single = Family(ROWS, "pointwise")
for size in SIZES:
    single.row("add", torch.add, size, size)
    single.row("relu", torch.relu, size)
for op in (torch.mul, torch.div, torch.maximum, torch.lt, torch.atan2, torch.remainder):
    single.row(op.__name__, op, MIDDLE, MIDDLE)
for op in (
    torch.exp,
    torch.log1p,
    torch.sqrt,
    torch.rsqrt,
    torch.sin,
    torch.tanh,
    torch.sigmoid,
    torch.erf,
    torch.erfinv,
    torch.lgamma,
    torch.digamma,
    torch.round,
    torch.abs,
    torch.isnan,
):
    single.row(op.__name__, op, MIDDLE)
for op in (torch.special.airy_ai, torch.special.modified_bessel_k0, torch.special.bessel_j0):
    single.row(op.__name__.removeprefix("special_"), op, SMALL, target=0.5)
for op in (F.gelu, F.silu, F.elu, F.softplus, F.hardswish, F.mish, F.leaky_relu, F.logsigmoid):
    single.both(op.__name__, op, MIDDLE)
single.row("pow 3", lambda x: x**3, MIDDLE)
single.row("pow tensor", lambda x, y: x.abs() ** y, MIDDLE, MIDDLE)
single.row("where", lambda x, y: torch.where(x > 0, x, y), MIDDLE, MIDDLE)
single.row("clamp", lambda x: x.clamp(-1, 1), LARGE)
single.row(
    "masked_fill",
    lambda x, m: x.masked_fill(m, 0.0),
    make=lambda: [torch.randn(MIDDLE), torch.rand(MIDDLE) < 0.5],
)
single.row("add f16", torch.add, MIDDLE, MIDDLE, dtype=HALF)
single.row("gelu f16", F.gelu, MIDDLE, dtype=HALF)
single.row("exp in bf16", lambda x: x.bfloat16().exp().float(), MIDDLE)
for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
    single.row(
        f"or {str(dtype)[6:]}",
        torch.bitwise_or,
        make=lambda dtype=dtype: [ints(2, *MIDDLE).to(dtype), ints(2, *MIDDLE).to(dtype)],
    )
single.row("add int64", torch.add, make=lambda: [ints(99, *MIDDLE), ints(99, *MIDDLE)])
single.row("div floor int64", lambda x: x // 7, make=lambda: [ints(999, *MIDDLE)])

casts = Family(ROWS, "cast")
for source, target in (
    (torch.float32, HALF),
    (HALF, torch.float32),
    (torch.float32, BFLOAT),
    (torch.float32, torch.int64),
    (torch.int64, torch.float32),
    (torch.float32, torch.int32),
    (torch.uint8, torch.float32),
    (torch.bool, torch.float32),
    (torch.float32, torch.bool),
):
    casts.row(
        f"{str(source)[6:]} to {str(target)[6:]}",
        lambda x, to=target: x.to(to),
        make=lambda source=source: [ints(2, *LARGE).to(source)],
    )

shaped = Family(ROWS, "broadcast")
shaped.row("row vector", torch.add, LARGE, (768,))
shaped.row("column vector", torch.mul, LARGE, (4096, 1))
shaped.row("channels", torch.add, (16, 64, 56, 56), (64, 1, 1))
shaped.row("outer", torch.mul, (2048, 1), (1, 2048))
shaped.row("scalar tensor", torch.mul, LARGE, ())
shaped.row("transposed operand", lambda x, y: x + y.t(), (1024, 1024), (1024, 1024))
# Our results are always in row-major order, so must eager's be.
shaped.row("both transposed", lambda x, y: (x.t() + y.t()).contiguous(), *[(1024, 1024)] * 2)
shaped.row("sliced operand", lambda x: x[:, ::2] + 1, LARGE)
shaped.row(
    "channels last operand", lambda x: (x.permute(0, 3, 1, 2) + 1).contiguous(), (16, 56, 56, 64)
)
shaped.row("bias +bwd", torch.add, LARGE, (768,), backward=True)

chains = Family(ROWS, "chain", 2.5)


def bias_gelu_dropout_add(x, bias, mask, residual):
    return residual + mask * 1.11 * F.gelu(x + bias)


def adam(p, g, m, v):
    m = m * 0.9 + g * 0.1
    v = v * 0.999 + g * g * 0.001
    return p - 1e-3 * m / (v.abs().sqrt() + 1e-8)


def five(x, y):
    return ((x + y) * x - y).relu() * 0.5


for size in SIZES:
    chains.row("add mul sub relu mul", five, size, size)
chains.row("sigmoid tanh mix", lambda x, y: x.sigmoid() * y.tanh() + x * y, MIDDLE, MIDDLE)
chains.row("bias gelu mask add", bias_gelu_dropout_add, LARGE, (768,), LARGE, LARGE)
chains.row("adam", adam, MIDDLE, MIDDLE, MIDDLE, MIDDLE)
chains.row("five f16", five, MIDDLE, MIDDLE, dtype=HALF)
chains.row("five in bf16", lambda x, y: five(x.bfloat16(), y.bfloat16()), MIDDLE, MIDDLE)
chains.row(
    "five int64",
    lambda x, y: ((x + y) * x - y).clamp(min=0) + 3,
    make=lambda: [ints(99, *MIDDLE), ints(99, *MIDDLE)],
)
chains.row("five +bwd", five, MIDDLE, MIDDLE, backward=True)

# Reductions ------------------------------------------------------------------------------------

reduce = Family(ROWS, "reduce")
CUBE = (64, 128, 96)
for name, op in (
    ("sum", torch.sum),
    ("mean", torch.mean),
    ("amax", torch.amax),
    ("argmax", torch.argmax),
    ("prod", torch.prod),
    ("var", torch.var),
    ("logsumexp", torch.logsumexp),
):
    for dim in (0, 1, 2):
        reduce.row(f"{name} dim {dim}", lambda x, op=op, dim=dim: op(x, dim=dim), CUBE)
for op in (torch.sum, torch.amax, torch.argmax, torch.prod, torch.std, torch.norm):
    reduce.row(f"{op.__name__} all", op, MIDDLE)
for size in (SMALL, LARGE, HUGE):
    reduce.row("sum all", torch.sum, size)
    reduce.row("sum rows", lambda x: x.sum(1), size)
    reduce.row("sum columns", lambda x: x.sum(0), size)
reduce.row("sum dims 0 2", lambda x: x.sum((0, 2)), CUBE)
reduce.row("sum dims 0 2 3", lambda x: x.sum((0, 2, 3)), (16, 64, 56, 56))
reduce.row("mean dims 2 3", lambda x: x.mean((2, 3)), (16, 64, 56, 56))
reduce.row("max dim with index", lambda x: x.max(-1), CUBE)
reduce.row("any", lambda x: x.any(-1), make=lambda: [torch.rand(LARGE) < 0.01])
reduce.row("sum int64", lambda x: x.sum(-1), make=lambda: [ints(99, *MIDDLE)])
reduce.row("sum bool", torch.sum, make=lambda: [torch.rand(LARGE) < 0.5])
reduce.row("sum f16", lambda x: x.sum(-1), MIDDLE, dtype=HALF)
reduce.row("sum f16 columns", lambda x: x.sum(0), MIDDLE, dtype=HALF)
reduce.row("square sum", lambda x: (x * x).sum(-1), LARGE)
reduce.row("norm rows +bwd", lambda x: x.norm(dim=-1), MIDDLE, backward=True)
reduce.row("var +bwd", lambda x: x.var(-1), MIDDLE, backward=True)
reduce.row("amax +bwd", lambda x: x.amax(-1), MIDDLE, backward=True)

# Scans and sorting -----------------------------------------------------------------------------

scan = Family(ROWS, "scan")
for op in (torch.cumsum, torch.cumprod, torch.logcumsumexp, torch.cummax):
    for dim in (0, 1):
        scan.row(f"{op.__name__} dim {dim}", lambda x, op=op, dim=dim: op(x, dim), MIDDLE)
scan.row("cumsum +bwd", lambda x: x.cumsum(1), MIDDLE, backward=True)
scan.row("cumsum int64", lambda x: x.cumsum(1), make=lambda: [ints(9, *MIDDLE)])

order = Family(ROWS, "sort")
order.row("sort rows", torch.sort, MIDDLE)
order.row("sort columns", lambda x: x.sort(0), MIDDLE)
# Eager's order of equal elements is open; ours is stable.
order.row("sort long row", torch.sort, (1_000_000,), random=True)
order.row("sort int64", torch.sort, make=lambda: [ints(1000, *MIDDLE)], random=True)
order.row("argsort stable", lambda x: x.argsort(stable=True), MIDDLE)
order.row("topk 5", lambda x: x.topk(5), MIDDLE)
order.row("topk 50 of 50257", lambda x: x.topk(50), (8, 50257))
order.row("kthvalue", lambda x: x.kthvalue(10), MIDDLE)
order.row("median", lambda x: x.median(-1), MIDDLE)
order.row("sort +bwd", lambda x: x.sort(-1)[0], MIDDLE, backward=True)

# Matrix products -------------------------------------------------------------------------------

matmul = Family(ROWS, "matmul")
matmul.row("mm", torch.mm, (128, 128), (128, 128))
matmul.row("mm", torch.mm, (512, 768), (768, 768))
matmul.row("mm", torch.mm, (1024, 1024), (1024, 1024))
matmul.row("mm thin", torch.mm, (16, 1024), (1024, 1024))
matmul.row("mm long", torch.mm, (64, 8192), (8192, 64))
matmul.row("mm transposed left", lambda a, b: a.t() @ b, (512, 768), (512, 768))
matmul.row("mm transposed right", lambda a, b: a @ b.t(), (512, 768), (768, 768))
matmul.row("mm in bf16", lambda a, b: a.bfloat16() @ b.bfloat16(), (256, 256), (256, 256))
matmul.row("mm f16", torch.mm, (256, 256), (256, 256), dtype=HALF)
matmul.row("mv", torch.mv, (2048, 2048), (2048,))
matmul.row("dot", torch.dot, (1_000_000,), (1_000_000,))
matmul.row("outer", torch.outer, (1024,), (1024,))
matmul.row("addmm", torch.addmm, (768,), (512, 768), (768, 768))
matmul.row("bmm", torch.bmm, (48, 128, 64), (48, 64, 128))
matmul.row("bmm small", torch.bmm, (512, 16, 16), (512, 16, 16))
matmul.row("baddbmm", torch.baddbmm, (48, 128, 128), (48, 128, 64), (48, 64, 128))
matmul.row("matmul broadcast", torch.matmul, (8, 64, 256), (256, 256))
matmul.both("linear", F.linear, (512, 768), (768, 768), (768,))
matmul.row("linear relu", lambda *t: F.linear(*t).relu(), (512, 768), (3072, 768), (3072,))
matmul.row(
    "einsum bhid,bhjd",
    lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b),
    (4, 12, 128, 64),
    (4, 12, 128, 64),
)
matmul.row("bilinear", F.bilinear, (64, 64), (64, 64), (32, 64, 64))
matmul.row("cdist", torch.cdist, (256, 64), (256, 64))

# Random numbers --------------------------------------------------------------------------------

random = Family(ROWS, "random")
random.row("dropout", lambda x: F.dropout(x, 0.1), LARGE, random=True)
random.row("dropout +bwd", lambda x: F.dropout(x, 0.1), LARGE, random=True, backward=True)
for name in ("rand_like", "randn_like", "bernoulli"):
    make = (lambda: [torch.rand(LARGE)]) if name == "bernoulli" else (lambda: floats(LARGE))
    random.row(name, getattr(torch, name), make=make, random=True)
random.row("exponential", lambda x: torch.empty_like(x).exponential_(), MIDDLE, random=True)
random.row("randint", lambda x: torch.randint_like(x, 10), MIDDLE, random=True)
random.row(
    "multinomial",
    lambda x: torch.multinomial(x, 1),
    random=True,
    make=lambda: [torch.rand(64, 1000)],
)
