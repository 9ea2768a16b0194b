// SPDX-License-Identifier: Apache-2.0
// Register tiles, packing and transposition of the matrix product, compiled per instruction set.
#include <algorithm>
#include <utility>

#include "kernels/gemm.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

namespace {

#ifdef __AVX512F__
typedef f32x16 Vec;
constexpr int kVec = 16, kTileRows = 12, kTallRows = 16;
typedef __mmask16 Mask;
TESSERA_INLINE Mask mask_of(int64_t n) {
  return tail_mask(n);
}
TESSERA_INLINE Vec load_v(const float* p) {
  return load(p);
}
TESSERA_INLINE Vec load_v(const float* p, Mask m) {
  return reinterpret_cast<Vec>(_mm512_maskz_loadu_ps(m, p));
}
TESSERA_INLINE void store_v(float* p, Vec v) {
  store(p, v);
}
TESSERA_INLINE void store_v(float* p, Vec v, Mask m) {
  _mm512_mask_storeu_ps(p, m, reinterpret_cast<__m512>(v));
}
TESSERA_INLINE Vec splat(float x) {
  return reinterpret_cast<Vec>(_mm512_set1_ps(x));
}
TESSERA_INLINE Vec fma_v(Vec a, Vec b, Vec c) {
  return fma(a, b, c);
}
#else
typedef f32x8 Vec;
constexpr int kVec = 8, kTileRows = 6, kTallRows = 8;
typedef __m256i Mask;
TESSERA_INLINE Mask mask_of(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
TESSERA_INLINE Vec load_v(const float* p) {
  return reinterpret_cast<Vec>(_mm256_loadu_ps(p));
}
TESSERA_INLINE Vec load_v(const float* p, Mask m) {
  return reinterpret_cast<Vec>(_mm256_maskload_ps(p, m));
}
TESSERA_INLINE void store_v(float* p, Vec v) {
  _mm256_storeu_ps(p, reinterpret_cast<__m256>(v));
}
TESSERA_INLINE void store_v(float* p, Vec v, Mask m) {
  _mm256_maskstore_ps(p, m, reinterpret_cast<__m256>(v));
}
TESSERA_INLINE Vec splat(float x) {
  return reinterpret_cast<Vec>(_mm256_set1_ps(x));
}
TESSERA_INLINE Vec fma_v(Vec a, Vec b, Vec c) {
  return reinterpret_cast<Vec>(_mm256_fmadd_ps(
      reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
}
#endif

constexpr int kTileLanes = 2 * kVec;

struct Tile {
  const float* r;
  int64_t r_step;  // RowUnit: per k; otherwise per row
  const float* l;
  int64_t l_step;
  int64_t k;
  float* c;
  int64_t ldc;
  int64_t last;  // lanes in the last vector
  bool accumulate;
};

// Rows x Vecs vectors of C. RowUnit: rows of the broadcast operand are adjacent (packed panels,
// column-major); otherwise k is, and row addresses are formed from one pointer per three rows so
// that they stay in registers.
template <int Rows, int Vecs, bool RowUnit, bool MaskLoad>
void tile(const Tile& t) {
  Vec acc[Rows][Vecs];
#pragma GCC unroll 32
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) acc[i][v] = Vec{};
  const Mask mask = mask_of(t.last);
  const float* l = t.l;
  const int64_t l_step = t.l_step, r_step = t.r_step;
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
      b[v] = MaskLoad && v == Vecs - 1 ? load_v(l + v * kVec, mask) : load_v(l + v * kVec);
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i) {
      Vec a = splat(RowUnit ? r[0][i] : r[i / 3][i % 3 * r_step + u]);
#pragma GCC unroll 2
      for (int v = 0; v < Vecs; ++v) acc[i][v] = fma_v(a, b[v], acc[i][v]);
    }
    l += l_step;
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
template <int Vecs, bool RowUnit, bool MaskLoad, int... I>
constexpr TileRow tile_row(std::integer_sequence<int, I...>) {
  return {{tile<I + 1, Vecs, RowUnit, MaskLoad>...}};
}
template <int Vecs, bool RowUnit, bool MaskLoad>
constexpr TileRow tile_row() {
  return tile_row<Vecs, RowUnit, MaskLoad>(std::make_integer_sequence < int,
                                           Vecs == 1 ? kTallRows : kTileRows > ());
}
// By vectors - 1, rows adjacent, masked loads.
constexpr TileRow kTiles[2][2][2] = {{{tile_row<1, false, false>(), tile_row<1, false, true>()},
                                      {tile_row<1, true, false>(), tile_row<1, true, true>()}},
                                     {{tile_row<2, false, false>(), tile_row<2, false, true>()},
                                      {tile_row<2, true, false>(), tile_row<2, true, true>()}}};

void block(const GemmBlock& b) {
  const bool row_unit = b.r_panel != 0 || b.r_stride == 1;
  const int64_t row_tiles = (b.rows + b.tile_rows - 1) / b.tile_rows;
  Tile t;
  t.r_step = b.r_panel != 0 ? b.tile_rows : row_unit ? b.rk_stride : b.r_stride;
  t.l_step = b.l_panel != 0 ? kTileLanes : b.lk_stride;
  t.k = b.k;
  t.ldc = b.ldc;
  t.accumulate = b.accumulate;
  for (int64_t i = 0; i < row_tiles; ++i) {
    const int64_t row0 = b.rows * i / row_tiles, rows = b.rows * (i + 1) / row_tiles - row0;
    t.r = b.r + (b.r_panel != 0 ? i * b.r_panel : row0 * b.r_stride);
    for (int64_t lane = 0, p = 0; lane < b.lanes; lane += kTileLanes, ++p) {
      const int64_t width = std::min<int64_t>(kTileLanes, b.lanes - lane);
      const int vecs = width > kVec ? 2 : 1;
      t.last = width - (vecs - 1) * kVec;
      t.l = b.l_panel != 0 ? b.l + p * b.l_panel : b.l + lane;
      t.c = b.c + row0 * b.ldc + lane;
      const bool masked = b.l_panel == 0 && t.last != kVec;
      kTiles[vecs - 1][row_unit][masked].fn[rows - 1](t);
    }
  }
}

template <int Rows, int Lanes>
void dot_tile(const float* r, int64_t r_stride, const float* l, int64_t l_stride, int64_t k,
              float* c, int64_t c_rs, int64_t c_ls) {
  f32x16 acc[Rows][Lanes] = {};
  auto step = [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    f32x16 b[Lanes];
#pragma GCC unroll 4
    for (int y = 0; y < Lanes; ++y)
      b[y] = n == 16 ? load(l + y * l_stride + i) : load_n(l + y * l_stride + i, n);
#pragma GCC unroll 4
    for (int x = 0; x < Rows; ++x) {
      f32x16 a = n == 16 ? load(r + x * r_stride + i) : load_n(r + x * r_stride + i, n);
#pragma GCC unroll 4
      for (int y = 0; y < Lanes; ++y) acc[x][y] = fma(a, b[y], acc[x][y]);
    }
  };
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) step(i, 16);
  if (i < k) step(i, k - i);
  for (int x = 0; x < Rows; ++x)
    for (int y = 0; y < Lanes; ++y) c[x * c_rs + y * c_ls] = horizontal_sum(acc[x][y]);
}

using DotFn = void (*)(const float*, int64_t, const float*, int64_t, int64_t, float*, int64_t,
                       int64_t);
constexpr DotFn kDots[4][4] = {{dot_tile<1, 1>, dot_tile<1, 2>, dot_tile<1, 3>, dot_tile<1, 4>},
                               {dot_tile<2, 1>, dot_tile<2, 2>, dot_tile<2, 3>, dot_tile<2, 4>},
                               {dot_tile<3, 1>, dot_tile<3, 2>, dot_tile<3, 3>, dot_tile<3, 4>},
                               {dot_tile<4, 1>, dot_tile<4, 2>, dot_tile<4, 3>, dot_tile<4, 4>}};

void dots(const float* r, int64_t r_stride, const float* l, int64_t l_stride, int64_t rows,
          int64_t lanes, int64_t k, float* c, int64_t c_rs, int64_t c_ls) {
  for (int64_t i = 0; i < rows; i += 4) {
    const int64_t height = std::min<int64_t>(4, rows - i);
    for (int64_t j = 0; j < lanes; j += 4)
      kDots[height - 1][std::min<int64_t>(4, lanes - j) - 1](r + i * r_stride, r_stride,
                                                             l + j * l_stride, l_stride, k,
                                                             c + i * c_rs + j * c_ls, c_rs, c_ls);
  }
}

#ifdef __AVX512F__
// 16 rows of up to 16 columns, transposed in registers; rows beyond `rows` count as zero. Shuffles
// are spelled as language built-ins because the intrinsics warn (see kAllLanes).
TESSERA_INLINE void load_transposed(const float* src, int64_t ld, int64_t rows, int64_t cols,
                                    f32x16 out[16]) {
  const Mask m = mask_of(cols);
  f32x16 a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = i < rows ? load_v(src + i * ld, m) : f32x16{};
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28,
                                   13, 29);
    b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27,
                                       14, 30, 15, 31);
  }
  auto low_pairs = [](f32x16 x, f32x16 y) {
    return __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  };
  auto high_pairs = [](f32x16 x, f32x16 y) {
    return __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30,
                                   31);
  };
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    a[i] = low_pairs(b[i], b[i + 2]);
    a[i + 1] = high_pairs(b[i], b[i + 2]);
    a[i + 2] = low_pairs(b[i + 1], b[i + 3]);
    a[i + 3] = high_pairs(b[i + 1], b[i + 3]);
  }
  // Now a[4g + c], quarter q, holds column 4q + c of rows 4g .. 4g+3.
  auto even_quarters = [](f32x16 x, f32x16 y) {
    return __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  };
  auto odd_quarters = [](f32x16 x, f32x16 y) {
    return __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30,
                                   31);
  };
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    f32x16 x0 = even_quarters(a[c], a[4 + c]), x1 = odd_quarters(a[c], a[4 + c]);
    f32x16 y0 = even_quarters(a[8 + c], a[12 + c]), y1 = odd_quarters(a[8 + c], a[12 + c]);
    out[c] = even_quarters(x0, y0);
    out[8 + c] = odd_quarters(x0, y0);
    out[4 + c] = even_quarters(x1, y1);
    out[12 + c] = odd_quarters(x1, y1);
  }
}
#endif

void transpose(const float* src, int64_t src_ld, float* dst, int64_t dst_ld, int64_t rows,
               int64_t cols) {
#ifdef __AVX512F__
  for (int64_t i = 0; i < rows; i += 16) {
    const int64_t height = std::min<int64_t>(16, rows - i);
    const Mask m = mask_of(height);
    for (int64_t j = 0; j < cols; j += 16) {
      const int64_t width = std::min<int64_t>(16, cols - j);
      f32x16 v[16];
      load_transposed(src + i * src_ld + j, src_ld, height, width, v);
      float* d = dst + j * dst_ld + i;
#pragma GCC unroll 16
      for (int c = 0; c < 16; ++c)
        if (c < width) store_v(d + c * dst_ld, v[c], m);
    }
  }
#else
  for (int64_t i = 0; i < rows; i += 8)
    for (int64_t j = 0; j < cols; ++j)
      for (int64_t r = i; r < std::min(i + 8, rows); ++r) dst[j * dst_ld + r] = src[r * src_ld + j];
#endif
}

void pack_lanes(const float* src, int64_t l_stride, int64_t k_stride, int64_t lanes, int64_t k,
                float* dst, int64_t panel) {
  if (l_stride == 1) {
    // A few rows at a time over all panels: reads follow the memory, writes stay in runs of some
    // lines.
    constexpr int64_t kRun = 8;
    for (int64_t i0 = 0; i0 < k; i0 += kRun) {
      const int64_t i1 = std::min(i0 + kRun, k);
      for (int64_t lane = 0, p = 0; lane < lanes; lane += kTileLanes, ++p) {
        const int64_t width = std::min<int64_t>(kTileLanes, lanes - lane);
        const int64_t w0 = std::min<int64_t>(kVec, width), w1 = width - w0;
        const Mask m0 = mask_of(w0), m1 = mask_of(w1);
        for (int64_t i = i0; i < i1; ++i) {
          const float* s = src + i * k_stride + lane;
          float* d = dst + p * panel + i * kTileLanes;
          store_v(d, load_v(s, m0));
          store_v(d + kVec, w1 > 0 ? load_v(s + kVec, m1) : Vec{});
        }
      }
    }
    return;
  }
  for (int64_t lane = 0; lane < lanes;
       lane += kTileLanes, dst += panel, src += kTileLanes * l_stride) {
    const int64_t width = std::min<int64_t>(kTileLanes, lanes - lane);
    if (k_stride == 1) {
#ifdef __AVX512F__
      for (int64_t i = 0; i < k; i += 16) {
        const int64_t depth = std::min<int64_t>(16, k - i);
#pragma GCC unroll 1
        for (int half = 0; half < 2; ++half) {
          f32x16 v[16];
          load_transposed(src + half * 16 * l_stride + i, l_stride, width - half * 16, depth, v);
          float* d = dst + i * kTileLanes + half * 16;
#pragma GCC unroll 16
          for (int c = 0; c < 16; ++c)
            if (c < depth) store_v(d + c * kTileLanes, v[c]);
        }
      }
#else
      if (width < kTileLanes) std::fill(dst, dst + k * kTileLanes, 0.0f);
      transpose(src, l_stride, dst, kTileLanes, width, k);
#endif
    } else {
      for (int64_t i = 0; i < k; ++i)
        for (int64_t j = 0; j < kTileLanes; ++j)
          dst[i * kTileLanes + j] = j < width ? src[j * l_stride + i * k_stride] : 0.0f;
    }
  }
}

void pack_rows(const float* src, int64_t r_stride, int64_t k_stride, int64_t rows, int64_t k,
               int tile_rows, float* dst, int64_t panel) {
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  for (int64_t t = 0; t < tiles; ++t, dst += panel) {
    const int64_t row0 = rows * t / tiles, height = rows * (t + 1) / tiles - row0;
    const float* s = src + row0 * r_stride;
    if (r_stride == 1) {
      if (tile_rows <= kVec) {
        const Mask m = mask_of(height);
        for (int64_t i = 0; i < k; ++i)
          store_v(dst + i * tile_rows, load_v(s + i * k_stride, m), m);
      } else {
        for (int64_t i = 0; i < k; ++i)
          for (int64_t r = 0; r < height; ++r) dst[i * tile_rows + r] = s[i * k_stride + r];
      }
    } else if (k_stride == 1) {
      transpose(s, r_stride, dst, tile_rows, height, k);
    } else {
      for (int64_t i = 0; i < k; ++i)
        for (int64_t r = 0; r < height; ++r)
          dst[i * tile_rows + r] = s[r * r_stride + i * k_stride];
    }
  }
}

}  // namespace

extern const GemmKernels gemm_table;
const GemmKernels gemm_table{kVec, kTileLanes, kTileRows, kTallRows, block,
                             dots, pack_lanes, pack_rows, transpose};

}  // namespace tessera::kernels::TESSERA_ISA
