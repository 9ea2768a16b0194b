// SPDX-License-Identifier: Apache-2.0
// Planning and the cache-blocking loops of the matrix product.
#include "kernels/gemm.h"

#include <algorithm>

#include "kernels/isa.h"

namespace tessera::kernels {

namespace v3 {
extern const GemmKernels gemm_table;
extern const GemmPacking gemm_packing;
}  // namespace v3
namespace v4 {
extern const GemmKernels gemm_table;
extern const GemmPacking gemm_packing;
}  // namespace v4

const GemmKernels& gemm_kernels() {
  static const GemmKernels& table = cpu_has_avx512() ? v4::gemm_table : v3::gemm_table;
  return table;
}

const GemmPacking& gemm_packing() {
  static const GemmPacking& table = cpu_has_avx512() ? v4::gemm_packing : v3::gemm_packing;
  return table;
}

namespace {

GemmFormat format_of(DType dtype) {
  if (dtype == DType::F16) return GemmFormat::kF16;
  if (dtype != DType::BF16) return GemmFormat::kF32;
  return cpu_has_avx512_bf16() ? GemmFormat::kPairs : GemmFormat::kBF16;
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

double lanes_pack_cost(const GemmPlan& p) {
  if (!p.pack_lanes) return 0;
  return p.l_stride == 1 ? kPerCopy : kPerTranspose;
}

double cost(const GemmPlan& p, int64_t rows, int64_t lanes) {
  const GemmKernels& g = gemm_kernels();
  const auto r = static_cast<double>(rows), l = static_cast<double>(round_up(lanes, g.vector));
  const auto k = static_cast<double>(p.k);
  if (p.dots) return r * static_cast<double>(lanes) * (k + 128) * kPerFma * 16 / g.vector;
  const double passes = static_cast<double>(ceil_div(lanes, p.lane_block));
  double t = r * l * k * kPerFma * 16 / g.vector / static_cast<double>(steps_of(p));
  t += r * k * rows_pack_cost(p) * passes + l * k * lanes_pack_cost(p);
  if (p.through_tile && (!p.sink || p.swapped)) t += r * l * kPerTurn;
  // A lanes operand packed for several blocks of k at once goes to the third-level cache and back.
  if (p.pack_lanes && p.k_super > p.k_block) t += l * k * kPerTranspose;
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
    p.rows = s.m, p.lanes = s.n;
    p.r_stride = s.a_rs, p.rk_stride = s.a_cs, p.l_stride = s.b_cs, p.lk_stride = s.b_rs;
    p.out_rs = s.c_rs, p.out_ls = s.c_cs;
  } else {
    p.rows = s.n, p.lanes = s.m;
    p.r_stride = s.b_cs, p.rk_stride = s.b_rs, p.l_stride = s.a_rs, p.lk_stride = s.a_cs;
    p.out_rs = s.c_cs, p.out_ls = s.c_rs;
  }
  // The stride of a dimension of size one means nothing; choose what suits.
  if (p.rows == 1 && p.rk_stride != 1) p.r_stride = 1;
  if (p.lanes == 1) p.l_stride = 1;
  if (p.k == 1) {
    p.lk_stride = std::max(p.lanes, p.l_stride);
    if (p.r_stride != 1) p.rk_stride = 1;
  }
  p.through_tile = sink || (p.out_ls != 1 && p.lanes != 1);
  p.tile_rows = p.lanes <= g.vector ? g.tall_rows : g.tile_rows;

  const bool convert = p.format != GemmFormat::kF32;
  p.dots = !convert && p.lanes <= g.vector / 2 && p.k >= 2 * g.vector && p.rk_stride == 1 &&
           p.lk_stride == 1 && p.r_stride != 1;
  if (p.dots) {
    p.through_tile = sink;
    p.k_block = p.k_super = p.k;
    p.lane_block = g.tile_lanes;
    p.row_block = std::min<int64_t>(round_up(p.rows, 4), 512);
    p.tile_ld = swapped ? round_up(p.row_block, 16) : p.lane_block;
    return p;
  }

  // Packing pays when a packed element is used often, and is needed where neither stride is one.
  const bool row_unit = p.r_stride == 1, row_k_unit = p.rk_stride == 1;
  const bool reused = p.lanes >= 8 * g.vector;
  if (convert || (!row_unit && !row_k_unit))
    p.pack_rows = true;
  else if (row_unit)
    p.pack_rows = reused && p.k > 64 && p.rk_stride > g.tall_rows;
  else
    p.pack_rows = reused && conflicting(p.r_stride) && p.rows > 8;
  p.pack_lanes =
      convert || p.l_stride != 1 || (p.rows >= 256 && p.k > 32 && p.lanes > g.tile_lanes);

  // Up to 1024 reduction steps in one go: a strip of the lanes operand then streams from the
  // second-level cache at a fraction of its speed. Longer ones are cut, and packed piece by piece
  // if C can hold the partial sums.
  const int64_t k = std::max<int64_t>(p.k, 1);
  p.k_block = k <= 1024 ? k : round_up(ceil_div(k, ceil_div(k, 512)), 4);
  p.k_super = !p.pack_lanes ? k : std::min(k, p.through_tile ? p.k_block * 8 : p.k_block);
  p.lane_block = std::min<int64_t>(round_up(std::max<int64_t>(p.lanes, 1), g.tile_lanes),
                                   p.pack_rows ? 768 : 384);
  const int64_t budget = p.through_tile ? (p.k <= 64 ? 12 * 1024 : 32 * 1024) : 64 * 1024;
  p.row_block = std::max<int64_t>(budget / p.lane_block / p.tile_rows * p.tile_rows, p.tile_rows);
  p.row_block = std::min(p.row_block, round_up(std::max<int64_t>(p.rows, 1), p.tile_rows));
  p.tile_ld = swapped ? round_up(p.row_block, 16) : p.lane_block;
  return p;
}

namespace {

// How the team cuts the rectangle: `rows` x `lanes` parts.
struct Grid {
  int rows = 1, lanes = 1;
};

Grid make_grid(const GemmPlan& p, int threads) {
  Grid best;
  double best_cost = -1;
  for (int r = 1; r <= threads; ++r) {
    if (threads % r != 0) continue;
    const int l = threads / r;
    const int64_t lanes = round_up(ceil_div(p.lanes, l), gemm_kernels().vector);
    const int across = p.swapped ? r : l;  // parts of one row of C
    double c = cost(p, ceil_div(p.rows, r), std::min(lanes, p.lanes));
    c += static_cast<double>((across - 1) * p.shape.m) * kPerContestedLine / threads;
    if (best_cost < 0 || c < best_cost) best = {r, l}, best_cost = c;
  }
  return best;
}

struct Scratch {
  int64_t lanes_at = 0, rows_at = 0, tile_at = 0, turned_at = 0, floats = 0;
};

Scratch scratch_layout(const GemmPlan& p, const Grid& grid) {
  Scratch s;
  auto take = [&](int64_t n) {
    const int64_t at = s.floats;
    s.floats += round_up(n, 16);
    return at;
  };
  if (p.pack_lanes) s.lanes_at = take(p.k_super * p.lane_block);
  if (p.pack_rows) s.rows_at = take(p.k_block * round_up(p.row_block, p.tile_rows) + 16);
  if (p.through_tile) {
    const int64_t rows = p.k_super < p.k ? ceil_div(p.rows, grid.rows) + 1 : p.row_block;
    s.tile_at = take(rows * p.lane_block);
    if (p.sink && p.swapped) s.turned_at = take(p.lane_block * p.tile_ld);
  }
  return s;
}

}  // namespace

GemmPlan make_gemm_plan(const GemmShape& shape, bool sink) {
  GemmPlan straight = make_gemm_plan(shape, sink, false),
           swapped = make_gemm_plan(shape, sink, true);
  return cost(straight, straight.rows, straight.lanes) <= cost(swapped, swapped.rows, swapped.lanes)
             ? straight
             : swapped;
}

int64_t gemm_scratch_bytes(const GemmPlan& p, int threads) {
  return scratch_layout(p, make_grid(p, threads)).floats * static_cast<int64_t>(sizeof(float));
}

void run_gemm(const GemmPlan& p, const void* a, const void* b, float* c, int thread, int threads,
              void* scratch, const GemmSink* sink) {
  const GemmKernels& g = gemm_kernels();
  const GemmPack& pack = gemm_packing().pack[static_cast<int>(p.format)];
  const int64_t steps = steps_of(p), size = size_of(p.shape.dtype);
  const Grid grid = make_grid(p, threads);
  const Scratch at = scratch_layout(p, grid);
  auto* memory = static_cast<float*>(scratch);
  const auto* r_bytes = static_cast<const std::byte*>(p.swapped ? b : a);
  const auto* l_bytes = static_cast<const std::byte*>(p.swapped ? a : b);
  const auto* l_base = reinterpret_cast<const float*>(l_bytes);  // if it is read in place

  const int part_r = thread / grid.lanes, part_l = thread % grid.lanes;
  const int64_t row_begin = p.rows * part_r / grid.rows,
                row_end = p.rows * (part_r + 1) / grid.rows;
  const int64_t vectors = ceil_div(p.lanes, g.vector);
  const int64_t lane_begin = vectors * part_l / grid.lanes * g.vector;
  const int64_t lane_end = std::min(vectors * (part_l + 1) / grid.lanes * g.vector, p.lanes);

  GemmBlock blk;
  blk.tile_rows = p.tile_rows;
  blk.pairs = p.format == GemmFormat::kPairs;
  // Lane blocks are cut evenly so that the last is not a sliver.
  const int64_t lane_blocks = ceil_div(lane_end - lane_begin, p.lane_block);
  const int64_t lane_step =
      lane_blocks > 0 ? round_up(ceil_div(lane_end - lane_begin, lane_blocks), g.tile_lanes) : 1;
  const int64_t row_blocks = ceil_div(row_end - row_begin, p.row_block);
  for (int64_t lane0 = lane_begin; lane0 < lane_end; lane0 += lane_step) {
    const int64_t lanes = std::min(lane_step, lane_end - lane0);
    for (int64_t super = 0; super == 0 || super < p.k; super += p.k_super) {
      const int64_t super_end = std::min(super + p.k_super, p.k);
      const int64_t depth = super_end - super, l_panel = ceil_div(depth, steps) * g.tile_lanes;
      if (p.pack_lanes)
        pack.lanes(l_bytes + (lane0 * p.l_stride + super * p.lk_stride) * size, p.l_stride,
                   p.lk_stride, lanes, depth, memory + at.lanes_at, l_panel);
      for (int64_t rb = 0; rb < row_blocks; ++rb) {
        const int64_t row0 = row_begin + (row_end - row_begin) * rb / row_blocks;
        const int64_t row1 = row_begin + (row_end - row_begin) * (rb + 1) / row_blocks;
        float* tile =
            memory + at.tile_at + (p.k_super < p.k ? (row0 - row_begin) * p.lane_block : 0);
        for (int64_t k0 = super; k0 == 0 || k0 < super_end; k0 += p.k_block) {
          const int64_t k_part = std::min(p.k_block, super_end - k0);
          const std::byte* r = r_bytes + (row0 * p.r_stride + k0 * p.rk_stride) * size;
          blk.k = ceil_div(k_part, steps);
          blk.rows = row1 - row0;
          blk.lanes = lanes;
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
          if (p.pack_lanes) {
            blk.l = memory + at.lanes_at + (k0 - super) / steps * g.tile_lanes;
            blk.l_panel = l_panel;
          } else {
            blk.l = l_base + lane0 + k0 * p.lk_stride;
            blk.lk_stride = p.lk_stride;
          }
          if (p.through_tile) {
            blk.c = tile;
            blk.ldc = p.lane_block;
          } else {
            blk.c = c + row0 * p.out_rs + lane0;
            blk.ldc = p.out_rs;
          }
          if (p.dots)
            g.dots(blk.r, p.r_stride, l_base + lane0 * p.l_stride, p.l_stride, blk.rows, lanes, p.k,
                   p.through_tile ? tile : c + row0 * p.out_rs + lane0 * p.out_ls,
                   p.through_tile ? p.lane_block : p.out_rs, p.through_tile ? 1 : p.out_ls);
          else
            g.block(blk);
        }
        if (!p.through_tile || super_end < p.k) continue;
        if (!p.sink) {
          gemm_packing().transpose(tile, p.lane_block, c + row0 * p.out_rs + lane0 * p.out_ls,
                                   p.out_ls, row1 - row0, lanes);
        } else if (!p.swapped) {
          sink->run(sink->arg, tile - (row0 * p.tile_ld + lane0), row0, row1, lane0, lane0 + lanes);
        } else {
          float* turned = memory + at.turned_at;
          gemm_packing().transpose(tile, p.lane_block, turned, p.tile_ld, row1 - row0, lanes);
          sink->run(sink->arg, turned - (lane0 * p.tile_ld + row0), lane0, lane0 + lanes, row0,
                    row1);
        }
      }
    }
  }
}

}  // namespace tessera::kernels
