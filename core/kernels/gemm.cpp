// SPDX-License-Identifier: Apache-2.0
// Planning and the cache-blocking loops of the matrix product.
#include "kernels/gemm.h"

#include <algorithm>

namespace tessera::kernels {

namespace {

GemmFormat format_of(DType dtype) {
  if (dtype == DType::F16) return GemmFormat::kF16;
  if (dtype != DType::BF16) return GemmFormat::kF32;
  return host_has_bf16_dots() ? GemmFormat::kPairs : GemmFormat::kBF16;
}

// Reduction steps in one packed element.
int64_t steps_of(const GemmPlan& p) {
  return p.format == GemmFormat::kPairs ? 2 : 1;
}

// Costs in nanoseconds per element; only their ratios matter, for choosing an orientation and a
// split.
constexpr double kPerFma = 0.0175;      // one lane of a fused multiply-add
constexpr double kPerCopy = 0.08;       // packing in the order of memory
constexpr double kPerTranspose = 0.15;  // packing across it
constexpr double kPerTurn = 0.4;        // storing a block of C across its memory
// A cache line that two threads write. Rows of C rarely begin on a line, so a split of its columns
// makes one per row (measured: the gradient of a 100 x 972 layer with its update took 142 us split
// by columns, 25 split by rows).
constexpr double kPerContestedLine = 300;

int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}
int64_t ceil_div(int64_t n, int64_t d) {
  return (n + d - 1) / d;
}

// Row addresses this far apart fall into few sets of the first-level cache, and a tile reads a
// dozen at once.
bool conflicting(int64_t stride) {
  return stride * 4 % 4096 == 0;
}

double rows_pack_cost(const GemmPlan& p) {
  if (!p.pack_rows) return 0;
  return p.r_stride == 1 ? kPerCopy : kPerTranspose;
}

double cols_pack_cost(const GemmPlan& p) {
  if (!p.pack_cols) return 0;
  return p.v_stride == 1 ? kPerCopy : kPerTranspose;
}

double cost(const GemmPlan& p, int64_t rows, int64_t cols) {
  const GemmKernels& g = gemm_kernels();
  const auto r = static_cast<double>(rows), w = static_cast<double>(round_up(cols, g.vector));
  const auto k = static_cast<double>(p.k);
  if (p.dots) return r * static_cast<double>(cols) * (k + 128) * kPerFma * 16 / g.vector;
  const double passes = static_cast<double>(ceil_div(cols, p.col_block));
  double t = r * w * k * kPerFma * 16 / g.vector / static_cast<double>(steps_of(p));
  t += r * k * rows_pack_cost(p) * passes + w * k * cols_pack_cost(p);
  if (p.through_tile && (!p.sink || p.swapped)) t += r * w * kPerTurn;
  // A vector operand packed for several blocks of k at once goes to the third-level cache and back.
  if (p.pack_cols && p.k_super > p.k_block) t += w * k * kPerTranspose;
  return t;
}

}  // namespace

GemmPlan make_gemm_plan(const GemmShape& s, bool sink, bool swapped) {
  const GemmKernels& g = gemm_kernels();
  GemmPlan p;
  p.shape = s;
  p.sink = sink;
  p.swapped = swapped;
  p.format = format_of(s.dtype);
  p.k = s.k;
  if (!swapped) {
    p.rows = s.m, p.cols = s.n;
    p.r_stride = s.a_rs, p.rk_stride = s.a_cs, p.v_stride = s.b_cs, p.vk_stride = s.b_rs;
    p.out_rs = s.c_rs, p.out_cs = s.c_cs;
  } else {
    p.rows = s.n, p.cols = s.m;
    p.r_stride = s.b_cs, p.rk_stride = s.b_rs, p.v_stride = s.a_rs, p.vk_stride = s.a_cs;
    p.out_rs = s.c_cs, p.out_cs = s.c_rs;
  }
  // The stride of a dimension of size one means nothing; choose what suits.
  if (p.rows == 1 && p.rk_stride != 1) p.r_stride = 1;
  if (p.cols == 1) p.v_stride = 1;
  if (p.k == 1) {
    p.vk_stride = std::max(p.cols, p.v_stride);
    if (p.r_stride != 1) p.rk_stride = 1;
  }
  p.through_tile = sink || (p.out_cs != 1 && p.cols != 1);
  p.tile_rows = p.cols <= g.vector ? g.tall_rows : g.tile_rows;

  const bool convert = p.format != GemmFormat::kF32;
  p.dots = !convert && p.cols <= g.vector / 2 && p.k >= 2 * g.vector && p.rk_stride == 1 &&
           p.vk_stride == 1 && p.r_stride != 1;
  if (p.dots) {
    p.through_tile = sink;
    p.k_block = p.k_super = p.k;
    p.col_block = g.tile_cols;
    p.row_block = std::min<int64_t>(round_up(p.rows, 4), 512);
    p.tile_ld = swapped ? round_up(p.row_block, 16) : p.col_block;
    return p;
  }

  // Packing pays when a packed element is used often, and is needed where neither stride is one.
  const bool row_unit = p.r_stride == 1, row_k_unit = p.rk_stride == 1;
  const bool reused = p.cols >= 8 * g.vector;
  if (convert || (!row_unit && !row_k_unit))
    p.pack_rows = true;
  else if (row_unit)
    p.pack_rows = reused && p.k > 64 && p.rk_stride > g.tall_rows;
  else
    p.pack_rows = reused && conflicting(p.r_stride) && p.rows > 8;
  p.pack_cols = convert || p.v_stride != 1 || (p.rows >= 256 && p.k > 32 && p.cols > g.tile_cols);

  // Up to 1024 reduction steps in one go: a strip of the vector operand then streams from the
  // second-level cache at a fraction of its speed. Longer ones are cut, and packed piece by piece
  // if C can hold the partial sums.
  const int64_t k = std::max<int64_t>(p.k, 1);
  p.k_block = k <= 1024 ? k : round_up(ceil_div(k, ceil_div(k, 512)), 4);
  p.k_super = !p.pack_cols ? k : std::min(k, p.through_tile ? p.k_block * 8 : p.k_block);
  p.col_block = std::min<int64_t>(round_up(std::max<int64_t>(p.cols, 1), g.tile_cols),
                                  p.pack_rows ? 768 : 384);
  const int64_t budget = p.through_tile ? (p.k <= 64 ? 12 * 1024 : 32 * 1024) : 64 * 1024;
  p.row_block = std::max<int64_t>(budget / p.col_block / p.tile_rows * p.tile_rows, p.tile_rows);
  p.row_block = std::min(p.row_block, round_up(std::max<int64_t>(p.rows, 1), p.tile_rows));
  p.tile_ld = swapped ? round_up(p.row_block, 16) : p.col_block;
  return p;
}

namespace {

// How the team cuts the rectangle: `rows` x `cols` parts.
struct Grid {
  int rows = 1, cols = 1;
};

Grid make_grid(const GemmPlan& p, int threads) {
  Grid best;
  double best_cost = -1;
  for (int r = 1; r <= threads; ++r) {
    if (threads % r != 0) continue;
    const int parts = threads / r;
    const int64_t cols = round_up(ceil_div(p.cols, parts), gemm_kernels().vector);
    const int across = p.swapped ? r : parts;  // parts of one row of C
    double c = cost(p, ceil_div(p.rows, r), std::min(cols, p.cols));
    c += static_cast<double>((across - 1) * p.shape.m) * kPerContestedLine / threads;
    if (best_cost < 0 || c < best_cost) best = {r, parts}, best_cost = c;
  }
  return best;
}

struct Scratch {
  int64_t cols_at = 0, rows_at = 0, tile_at = 0, turned_at = 0, floats = 0;
};

Scratch scratch_layout(const GemmPlan& p, const Grid& grid) {
  Scratch s;
  auto take = [&](int64_t n) {
    const int64_t at = s.floats;
    s.floats += round_up(n, 16);
    return at;
  };
  if (p.pack_cols) s.cols_at = take(p.k_super * p.col_block);
  if (p.pack_rows) s.rows_at = take(p.k_block * round_up(p.row_block, p.tile_rows) + 16);
  if (p.through_tile) {
    const int64_t rows = p.k_super < p.k ? ceil_div(p.rows, grid.rows) + 1 : p.row_block;
    s.tile_at = take(rows * p.col_block);
    if (p.sink && p.swapped) s.turned_at = take(p.col_block * p.tile_ld);
  }
  return s;
}

}  // namespace

GemmPlan make_gemm_plan(const GemmShape& shape, bool sink) {
  GemmPlan straight = make_gemm_plan(shape, sink, false),
           swapped = make_gemm_plan(shape, sink, true);
  return cost(straight, straight.rows, straight.cols) <= cost(swapped, swapped.rows, swapped.cols)
             ? straight
             : swapped;
}

int64_t gemm_scratch_bytes(const GemmPlan& p, int threads) {
  return scratch_layout(p, make_grid(p, threads)).floats * static_cast<int64_t>(sizeof(float));
}

void run_gemm(const GemmPlan& p, const void* a, const void* b, float* c, int thread, int threads,
              void* scratch, const GemmSink* sink) {
  const GemmKernels& g = gemm_kernels();
  const GemmPack& pack = pack_kernels().from[static_cast<int>(p.format)];
  const int64_t steps = steps_of(p), size = size_of(p.shape.dtype);
  const Grid grid = make_grid(p, threads);
  const Scratch at = scratch_layout(p, grid);
  auto* memory = static_cast<float*>(scratch);
  const auto* r_bytes = static_cast<const std::byte*>(p.swapped ? b : a);
  const auto* v_bytes = static_cast<const std::byte*>(p.swapped ? a : b);
  const auto* v_base = reinterpret_cast<const float*>(v_bytes);  // if it is read in place

  const int part_r = thread / grid.cols, part_c = thread % grid.cols;
  const int64_t row_begin = p.rows * part_r / grid.rows,
                row_end = p.rows * (part_r + 1) / grid.rows;
  const int64_t vectors = ceil_div(p.cols, g.vector);
  const int64_t col_begin = vectors * part_c / grid.cols * g.vector;
  const int64_t col_end = std::min(vectors * (part_c + 1) / grid.cols * g.vector, p.cols);

  GemmBlock blk;
  blk.tile_rows = p.tile_rows;
  blk.pairs = p.format == GemmFormat::kPairs;
  // Column blocks are cut evenly so that the last is not a sliver.
  const int64_t col_blocks = ceil_div(col_end - col_begin, p.col_block);
  const int64_t col_step =
      col_blocks > 0 ? round_up(ceil_div(col_end - col_begin, col_blocks), g.tile_cols) : 1;
  const int64_t row_blocks = ceil_div(row_end - row_begin, p.row_block);
  for (int64_t col0 = col_begin; col0 < col_end; col0 += col_step) {
    const int64_t cols = std::min(col_step, col_end - col0);
    for (int64_t super = 0; super == 0 || super < p.k; super += p.k_super) {
      const int64_t super_end = std::min(super + p.k_super, p.k);
      const int64_t depth = super_end - super, v_panel = ceil_div(depth, steps) * g.tile_cols;
      if (p.pack_cols)
        pack.cols(v_bytes + (col0 * p.v_stride + super * p.vk_stride) * size, p.v_stride,
                  p.vk_stride, cols, depth, memory + at.cols_at, v_panel);
      for (int64_t rb = 0; rb < row_blocks; ++rb) {
        const int64_t row0 = row_begin + (row_end - row_begin) * rb / row_blocks;
        const int64_t row1 = row_begin + (row_end - row_begin) * (rb + 1) / row_blocks;
        float* tile =
            memory + at.tile_at + (p.k_super < p.k ? (row0 - row_begin) * p.col_block : 0);
        for (int64_t k0 = super; k0 == 0 || k0 < super_end; k0 += p.k_block) {
          const int64_t k_part = std::min(p.k_block, super_end - k0);
          const std::byte* r = r_bytes + (row0 * p.r_stride + k0 * p.rk_stride) * size;
          blk.k = ceil_div(k_part, steps);
          blk.rows = row1 - row0;
          blk.cols = cols;
          blk.accumulate = k0 > 0;
          blk.r = reinterpret_cast<const float*>(r);
          blk.r_stride = p.r_stride;
          blk.rk_stride = p.rk_stride;
          if (p.pack_rows) {
            blk.r_panel = blk.k * p.tile_rows;
            pack.rows(r, p.r_stride, p.rk_stride, blk.rows, k_part, p.tile_rows,
                      memory + at.rows_at, blk.r_panel);
            blk.r = memory + at.rows_at;
          }
          if (p.pack_cols) {
            blk.v = memory + at.cols_at + (k0 - super) / steps * g.tile_cols;
            blk.v_panel = v_panel;
          } else {
            blk.v = v_base + col0 + k0 * p.vk_stride;
            blk.vk_stride = p.vk_stride;
          }
          if (p.through_tile) {
            blk.c = tile;
            blk.ldc = p.col_block;
          } else {
            blk.c = c + row0 * p.out_rs + col0;
            blk.ldc = p.out_rs;
          }
          if (p.dots)
            g.dots(blk.r, p.r_stride, v_base + col0 * p.v_stride, p.v_stride, blk.rows, cols, p.k,
                   p.through_tile ? tile : c + row0 * p.out_rs + col0 * p.out_cs,
                   p.through_tile ? p.col_block : p.out_rs, p.through_tile ? 1 : p.out_cs);
          else
            g.block(blk);
        }
        if (!p.through_tile || super_end < p.k) continue;
        if (!p.sink) {
          pack_kernels().transpose(tile, p.col_block, c + row0 * p.out_rs + col0 * p.out_cs,
                                   p.out_cs, row1 - row0, cols);
        } else if (!p.swapped) {
          sink->run(sink->arg, tile - (row0 * p.tile_ld + col0), row0, row1, col0, col0 + cols);
        } else {
          float* turned = memory + at.turned_at;
          pack_kernels().transpose(tile, p.col_block, turned, p.tile_ld, row1 - row0, cols);
          sink->run(sink->arg, turned - (col0 * p.tile_ld + row0), col0, col0 + cols, row0, row1);
        }
      }
    }
  }
}

}  // namespace tessera::kernels
