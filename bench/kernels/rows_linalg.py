# SPDX-License-Identifier: Apache-2.0
"""Linear algebra, products of integers, and samplers."""

import torch

from bench.kernels.table import Family, ints

ROWS = []
MATRICES = [(4096, 4, 4), (512, 16, 16), (16, 64, 64), (128, 128), (4, 128, 128), (384, 384)]


def positive(shape):
    a = torch.randn(shape)
    return a @ a.mT / shape[-1] + torch.eye(shape[-1])


def right(shape, columns=8):
    return torch.randn(*shape[:-1], columns)


dense = Family(ROWS, "linalg")
for shape in MATRICES:
    one, two = (lambda s=shape: [positive(s)]), (lambda s=shape: [positive(s), right(s)])
    dense.row("cholesky", torch.linalg.cholesky, make=one)
    dense.row("lu_factor", lambda a: torch.linalg.lu_factor(a)[0], make=one)
    dense.row("inv", torch.linalg.inv, make=one)
    dense.row("det", torch.linalg.det, make=one)
    dense.row("solve", torch.linalg.solve, make=two)
    dense.row(
        "solve_triangular", lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), make=two
    )
    dense.row("qr", torch.linalg.qr, make=one)
    dense.row("svdvals", torch.linalg.svdvals, make=one)
    dense.row("eigvalsh", torch.linalg.eigvalsh, make=one)
    dense.row("pinv", torch.linalg.pinv, make=one)
    dense.row("matrix_exp", torch.linalg.matrix_exp, make=one)
dense.row("cholesky +bwd", torch.linalg.cholesky, make=lambda: [positive((16, 64, 64))],
          backward=True)  # fmt: skip
dense.row("cross", torch.linalg.cross, (16384, 3), (16384, 3))
dense.row("trace", torch.trace, (512, 512))

whole = Family(ROWS, "int matmul")
for dtype in (torch.int64, torch.int32, torch.int8):
    whole.row(
        str(dtype)[6:],
        torch.mm,
        make=lambda d=dtype: [ints(9, 128, 256).to(d), ints(9, 256, 192).to(d)],
    )

drawn = Family(ROWS, "random")
drawn.row("randperm", lambda x: torch.randperm(100000), (1,), random=True)
for replacement in (True, False):
    drawn.row(
        f"multinomial {'with' if replacement else 'without'} replacement",
        lambda w, r=replacement: torch.multinomial(w, 16, r),
        make=lambda: [torch.rand(256, 1000)],
        random=True,
    )

half = Family(ROWS, "half")
for dtype in (torch.float16, torch.bfloat16):
    kind = str(dtype).removeprefix("torch.")
    half.row(f"mm {kind}", torch.mm, (1024, 1024), (1024, 1024), dtype=dtype)
    half.row(f"layer_norm {kind}", lambda x: torch.layer_norm(x, (768,)), (1024, 768), dtype=dtype)
