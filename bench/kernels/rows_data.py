# SPDX-License-Identifier: Apache-2.0
"""Ops that move data: lookups, scatters, joins, pads, copies."""

import torch
import torch.nn.functional as F  # noqa: N812

from bench.kernels.table import Family, ints

ROWS = []
HALF = torch.float16

# Lookups and scatters ----------------------------------------------------------------------------

embedding = Family(ROWS, "embedding", 1)
TABLE = (30522, 768)


def lookup(ids, table=TABLE):
    return lambda: [ints(table[0], *ids), torch.randn(table)]


embedding.row("embedding", F.embedding, make=lookup((4, 128)), target=0.9)
embedding.row("embedding", F.embedding, make=lookup((32, 512)), target=0.9)
embedding.row("embedding short rows", F.embedding, make=lookup((64, 256), (1000, 32)), target=0.9)
embedding.row(
    "embedding f16",
    F.embedding,
    target=0.9,
    make=lambda: [ints(1000, 32, 128), torch.randn(1000, 768).half()],
)


def embedding_gradient(ids, table):
    return lambda: [torch.randn(*ids, table[1]), ints(table[0], *ids)]


for ids, table in (
    ((4, 128), TABLE),
    ((16, 512), (1000, 64)),
    ((32, 512), (50257, 768)),
    ((8, 1024), (2, 768)),
):
    embedding.row(
        f"embedding_backward {table[0]}",
        lambda g, i, n=table[0]: torch.ops.aten.embedding_dense_backward(g, i, n, -1, False),
        make=embedding_gradient(ids, table),
    )
embedding.both("embedding_bag", F.embedding_bag, make=lookup((256, 16), (10000, 64)), target=0.9)

gather = Family(ROWS, "gather")
POINTS = (4096, 256)


def indexed(size, index_shape, high, *more):
    return lambda: [torch.randn(size), ints(high, *index_shape), *(torch.randn(m) for m in more)]


for dim, high in ((0, 4096), (1, 256)):
    gather.row(
        f"gather dim {dim}",
        lambda x, i, dim=dim: x.gather(dim, i),
        make=indexed(POINTS, POINTS, high),
    )
    gather.row(
        f"index_select dim {dim}",
        lambda x, i, dim=dim: x.index_select(dim, i),
        make=indexed(POINTS, (high,), high),
    )
    gather.row(
        f"scatter_add dim {dim}",
        lambda x, i, s, dim=dim: x.scatter_add(dim, i, s),
        make=indexed(POINTS, POINTS, high, POINTS),
    )
    gather.row(
        f"index_add dim {dim}",
        lambda x, i, s, dim=dim: x.index_add(dim, i, s),
        make=indexed(POINTS, (high,), high, POINTS),
    )
    gather.row(
        f"scatter value dim {dim}",
        lambda x, i, dim=dim: x.scatter(dim, i, 1.0),
        make=indexed(POINTS, POINTS, high),
    )
    gather.row(
        f"scatter_reduce amax dim {dim}",
        lambda x, i, s, dim=dim: x.scatter_reduce(dim, i, s, "amax"),
        make=indexed(POINTS, POINTS, high, POINTS),
    )


def distinct(size):
    return lambda: [
        torch.randn(size),
        torch.stack([torch.randperm(size[1]) for _ in range(size[0])]),
        torch.randn(size),
    ]


gather.row("scatter", lambda x, i, s: x.scatter(1, i, s), make=distinct(POINTS))
gather.row(
    "gather +bwd", lambda x, i: x.gather(1, i), backward=True, make=indexed(POINTS, POINTS, 256)
)
gather.row(
    "index_select +bwd",
    lambda x, i: x.index_select(0, i),
    backward=True,
    make=indexed(POINTS, (4096,), 4096),
)
gather.row("index rows", lambda x, i: x[i], make=indexed(POINTS, (4096,), 4096))
gather.row("index pairs", lambda x, i: x[i, i % 256], make=indexed(POINTS, (20000,), 4096))
gather.row(
    "index_put add",
    lambda x, i, s: x.index_put((i,), s, accumulate=True),
    make=indexed(POINTS, (4096,), 4096, POINTS),
)
gather.row("index_fill", lambda x, i: x.index_fill(0, i, 0.0), make=indexed(POINTS, (99,), 4096))
gather.row(
    "index_copy",
    lambda x, i, s: x.index_copy(0, i, s),
    make=lambda: [torch.randn(POINTS), torch.randperm(4096), torch.randn(POINTS)],
)
gather.row(
    "take_along_dim", lambda x, i: x.take_along_dim(i, 1), make=indexed(POINTS, (4096, 64), 256)
)
gather.row(
    "masked_scatter",
    lambda x, m, s: x.masked_scatter(m, s),
    make=lambda: [torch.randn(POINTS), torch.rand(POINTS) < 0.5, torch.randn(POINTS)],
)
gather.row("one_hot", lambda i: F.one_hot(i, 100), make=lambda: [ints(100, 4096)])
gather.row(
    "bucketize", torch.bucketize, make=lambda: [torch.rand(100_000), torch.linspace(0, 1, 256)]
)

# Joins and pads ----------------------------------------------------------------------------------

join = Family(ROWS, "join")
BLOCK = (64, 128, 96)
for dim in (0, 1, 2):
    join.row(f"cat dim {dim}", lambda *t, dim=dim: torch.cat(t, dim), BLOCK, BLOCK, BLOCK)
    join.row(f"stack dim {dim}", lambda *t, dim=dim: torch.stack(t, dim), BLOCK, BLOCK)
join.row("cat channels", lambda *t: torch.cat(t, 1), (8, 64, 56, 56), (8, 64, 56, 56))
join.row("cat of 64", lambda x: torch.cat(list(x), 0), BLOCK)
join.row("cat f16", lambda *t: torch.cat(t, -1), BLOCK, BLOCK, dtype=HALF)
join.row("cat int64", lambda *t: torch.cat(t, -1), make=lambda: [ints(9, *BLOCK), ints(9, *BLOCK)])
join.row("stack last", lambda *t: torch.stack(t, -1), BLOCK, BLOCK)
join.both("cat relu", lambda *t: torch.cat(t, 1).relu(), BLOCK, BLOCK)
for mode in ("constant", "reflect", "replicate", "circular"):
    join.both(f"pad {mode}", lambda x, mode=mode: F.pad(x, (2, 2, 2, 2), mode), (8, 32, 56, 56))
join.row("pad last of 2", lambda x: F.pad(x, (0, 1)), (4096, 255))
join.row("pad first dim", lambda x: F.pad(x, (0, 0, 1, 1)), (4096, 256))
join.row(
    "slice_scatter", lambda x, y: torch.slice_scatter(x, y, 1, 0, 128), (4096, 256), (4096, 128)
)
join.row("slice assign", lambda x: x.clone().index_fill_(1, torch.arange(8), 0.0), (4096, 256))

# Copies ------------------------------------------------------------------------------------------

copies = Family(ROWS, "copy")
copies.row("clone", torch.clone, (4096, 768))
copies.row("transpose 2d", lambda x: x.t().contiguous(), (1024, 1024))
copies.row("transpose 2d wide", lambda x: x.t().contiguous(), (512, 5000))
copies.row("transpose 2d thin", lambda x: x.t().contiguous(), (100_000, 8))
copies.row("transpose heads", lambda x: x.transpose(1, 2).contiguous(), (4, 128, 12, 64))
copies.row("to channels last", lambda x: x.permute(0, 2, 3, 1).contiguous(), (8, 64, 56, 56))
copies.row("to channels first", lambda x: x.permute(0, 3, 1, 2).contiguous(), (8, 56, 56, 64))
copies.row("rgb to channels last", lambda x: x.permute(0, 2, 3, 1).contiguous(), (8, 3, 224, 224))
copies.row("reverse dims", lambda x: x.permute(2, 1, 0).contiguous(), BLOCK)
copies.row("transpose f16", lambda x: x.t().contiguous(), (1024, 1024), dtype=HALF)
copies.row("transpose int64", lambda x: x.t().contiguous(), make=lambda: [ints(9, 1024, 1024)])
copies.row(
    "transpose bool", lambda x: x.t().contiguous(), make=lambda: [torch.rand(1024, 1024) < 0.5]
)
copies.row("slice", lambda x: x[:, 64:128].contiguous(), (4096, 256))
copies.row("every second", lambda x: x[:, ::2].contiguous(), (4096, 256))
copies.row("expand", lambda x: x[:, None].expand(-1, 16, -1).contiguous(), (1024, 64))
copies.row("repeat", lambda x: x.repeat(4, 4), (256, 256))
copies.row("repeat_interleave", lambda x: x.repeat_interleave(4, 1), (512, 256))
copies.row("tile last", lambda x: x.tile(1, 8), (2048, 64))
copies.row("flip last", lambda x: x.flip(-1), (1024, 1024))
copies.row("flip first", lambda x: x.flip(0), (1024, 1024))
copies.row("roll", lambda x: x.roll((3, 5), (0, 1)), (1024, 1024))
# Eager's rot90 is a view of a flip; programs return row-major results.
copies.row("rot90", lambda x: x.rot90(1, (0, 1)).contiguous(), (1024, 1024))
copies.row("flip transposed", lambda x: x.t().flip(0).contiguous(), (1024, 1024))
copies.row("tril", torch.tril, (1024, 1024))
copies.row("triu", torch.triu, (12, 256, 256))
copies.row("diagonal", lambda x: x.diagonal(dim1=-2, dim2=-1).contiguous(), (256, 64, 64))
copies.row("diag_embed", torch.diag_embed, (256, 64))
copies.row("unfold windows", lambda x: x.unfold(1, 16, 8).contiguous(), (512, 1024))
copies.row("split 3", lambda x: [t.contiguous() for t in x.split(256, -1)], (2048, 768))
copies.row(
    "meshgrid",
    lambda x, y: [t.clone() for t in torch.meshgrid(x, y, indexing="ij")],
    (1000,),
    (1000,),
)
copies.row("full", lambda x: torch.full_like(x, 1.5), (4096, 768))
copies.row("arange", lambda x: torch.arange(1_000_000) + x, ())
