// SPDX-License-Identifier: Apache-2.0
// Register tiles of the matrix product, compiled per instruction set.
#include <algorithm>
#include <utility>

#include "kernels/gemm.h"
#include "kernels/gemm_vector.h"

namespace tessera::kernels::TESSERA_ISA {

namespace {

struct Tile {
  const float* r;
  int64_t r_step;  // RowUnit: per k; otherwise per row
  const float* v;
  int64_t v_step;
  int64_t k;
  float* c;
  int64_t ldc;
  int64_t last;  // lanes in the last vector
  bool accumulate;
};

// Rows x Vecs vectors of C. RowUnit: rows of the broadcast operand are adjacent (packed panels,
// column-major); otherwise k is, and row addresses are formed from one pointer per three rows so
// that they stay in registers.
template <int Rows, int Vecs, bool RowUnit, bool MaskLoad, bool Pairs = false>
void tile(const Tile& t) {
  Vec acc[Rows][Vecs];
#pragma GCC unroll 32
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) acc[i][v] = Vec{};
  const Mask mask = mask_of(t.last);
  const float* from = t.v;
  const int64_t v_step = t.v_step, r_step = t.r_step;
  constexpr int kGroups = (Rows + 2) / 3;
  const float* r[RowUnit ? 1 : kGroups];
#pragma GCC unroll 8
  for (int g = 0; g < (RowUnit ? 1 : kGroups); ++g) r[g] = t.r + 3 * g * r_step;

    // The tile of C is wanted in a few thousand cycles.
#pragma GCC unroll 32
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) __builtin_prefetch(t.c + i * t.ldc + v * kVec, 1);

  auto step = [&](int u) __attribute__((always_inline)) {
    Vec b[Vecs];
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v)
      b[v] = MaskLoad && v == Vecs - 1 ? load_v(from + v * kVec, mask) : load_v(from + v * kVec);
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i) {
      Vec a = splat(RowUnit ? r[0][i] : r[i / 3][i % 3 * r_step + u]);
#pragma GCC unroll 2
      for (int v = 0; v < Vecs; ++v) {
#ifdef __AVX512F__
        // Both products of a pair of bf16 are added. Spelled in assembler because this file is
        // compiled for processors without it too; the plan asks for it only where it exists.
        if constexpr (Pairs)
          asm("vdpbf16ps %2, %1, %0" : "+v"(acc[i][v]) : "v"(b[v]), "v"(a));
        else
#endif
          acc[i][v] = fma_v(a, b[v], acc[i][v]);
      }
    }
    from += v_step;
  };
  int64_t k = t.k;
  if constexpr (RowUnit) {
#pragma GCC unroll 2
    for (; k > 0; --k) {
      step(0);
      r[0] += r_step;
    }
  } else {
    for (; k >= 4; k -= 4) {
      step(0);
      step(1);
      step(2);
      step(3);
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; ++g) r[g] += 4;
    }
    for (; k > 0; --k) {
      step(0);
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; ++g) ++r[g];
    }
  }
  if (t.accumulate) {
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < Vecs; ++v) {
        const float* c = t.c + i * t.ldc + v * kVec;
        acc[i][v] += v == Vecs - 1 ? load_v(c, mask) : load_v(c);
      }
  }
#pragma GCC unroll 32
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) {
      float* c = t.c + i * t.ldc + v * kVec;
      if (v == Vecs - 1)
        store_v(c, acc[i][v], mask);
      else
        store_v(c, acc[i][v]);
    }
}

using TileFn = void (*)(const Tile&);
struct TileRow {
  TileFn fn[kTallRows];
};
template <int Vecs, bool RowUnit, bool MaskLoad, bool Pairs, int... I>
constexpr TileRow tile_row(std::integer_sequence<int, I...>) {
  return {{tile<I + 1, Vecs, RowUnit, MaskLoad, Pairs>...}};
}
template <int Vecs, bool RowUnit, bool MaskLoad, bool Pairs = false>
constexpr TileRow tile_row() {
  return tile_row<Vecs, RowUnit, MaskLoad, Pairs>(std::make_integer_sequence < int,
                                                  Vecs == 1 ? kTallRows : kTileRows > ());
}
// By vectors - 1, rows adjacent, masked loads.
constexpr TileRow kTiles[2][2][2] = {{{tile_row<1, false, false>(), tile_row<1, false, true>()},
                                      {tile_row<1, true, false>(), tile_row<1, true, true>()}},
                                     {{tile_row<2, false, false>(), tile_row<2, false, true>()},
                                      {tile_row<2, true, false>(), tile_row<2, true, true>()}}};

constexpr TileRow kPairTiles[2] = {tile_row<1, true, false, true>(),
                                   tile_row<2, true, false, true>()};

void block(const GemmBlock& b) {
  const bool row_unit = b.r_panel != 0 || b.r_stride == 1;
  const int64_t row_tiles = (b.rows + b.tile_rows - 1) / b.tile_rows;
  Tile t;
  t.r_step = b.r_panel != 0 ? b.tile_rows : row_unit ? b.rk_stride : b.r_stride;
  t.v_step = b.v_panel != 0 ? kTileCols : b.vk_stride;
  t.k = b.k;
  t.ldc = b.ldc;
  t.accumulate = b.accumulate;
  for (int64_t i = 0; i < row_tiles; ++i) {
    const int64_t row0 = b.rows * i / row_tiles, rows = b.rows * (i + 1) / row_tiles - row0;
    t.r = b.r + (b.r_panel != 0 ? i * b.r_panel : row0 * b.r_stride);
    for (int64_t col = 0, p = 0; col < b.cols; col += kTileCols, ++p) {
      const int64_t width = std::min<int64_t>(kTileCols, b.cols - col);
      const int vecs = width > kVec ? 2 : 1;
      t.last = width - (vecs - 1) * kVec;
      t.v = b.v_panel != 0 ? b.v + p * b.v_panel : b.v + col;
      t.c = b.c + row0 * b.ldc + col;
      const bool masked = b.v_panel == 0 && t.last != kVec;
      const TileRow& tiles = b.pairs ? kPairTiles[vecs - 1] : kTiles[vecs - 1][row_unit][masked];
      tiles.fn[rows - 1](t);
    }
  }
}

template <int Rows, int Cols>
void dot_tile(const float* r, int64_t r_stride, const float* v, int64_t v_stride, int64_t k,
              float* c, int64_t c_rs, int64_t c_cs) {
  f32x16 acc[Rows][Cols] = {};
  auto step = [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    f32x16 b[Cols];
#pragma GCC unroll 4
    for (int y = 0; y < Cols; ++y)
      b[y] = n == 16 ? load(v + y * v_stride + i) : load_n(v + y * v_stride + i, n);
#pragma GCC unroll 4
    for (int x = 0; x < Rows; ++x) {
      f32x16 a = n == 16 ? load(r + x * r_stride + i) : load_n(r + x * r_stride + i, n);
#pragma GCC unroll 4
      for (int y = 0; y < Cols; ++y) acc[x][y] = fma(a, b[y], acc[x][y]);
    }
  };
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) step(i, 16);
  if (i < k) step(i, k - i);
  for (int x = 0; x < Rows; ++x)
    for (int y = 0; y < Cols; ++y) c[x * c_rs + y * c_cs] = horizontal_sum(acc[x][y]);
}

using DotFn = void (*)(const float*, int64_t, const float*, int64_t, int64_t, float*, int64_t,
                       int64_t);
constexpr DotFn kDots[4][4] = {{dot_tile<1, 1>, dot_tile<1, 2>, dot_tile<1, 3>, dot_tile<1, 4>},
                               {dot_tile<2, 1>, dot_tile<2, 2>, dot_tile<2, 3>, dot_tile<2, 4>},
                               {dot_tile<3, 1>, dot_tile<3, 2>, dot_tile<3, 3>, dot_tile<3, 4>},
                               {dot_tile<4, 1>, dot_tile<4, 2>, dot_tile<4, 3>, dot_tile<4, 4>}};

void dots(const float* r, int64_t r_stride, const float* v, int64_t v_stride, int64_t rows,
          int64_t cols, int64_t k, float* c, int64_t c_rs, int64_t c_cs) {
  for (int64_t i = 0; i < rows; i += 4) {
    const int64_t height = std::min<int64_t>(4, rows - i);
    for (int64_t j = 0; j < cols; j += 4)
      kDots[height - 1][std::min<int64_t>(4, cols - j) - 1](r + i * r_stride, r_stride,
                                                            v + j * v_stride, v_stride, k,
                                                            c + i * c_rs + j * c_cs, c_rs, c_cs);
  }
}

}  // namespace

const GemmKernels gemm_table{kVec, kTileCols, kTileRows, kTallRows, block, dots};

}  // namespace tessera::kernels::TESSERA_ISA
