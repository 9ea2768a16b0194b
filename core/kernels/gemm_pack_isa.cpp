// SPDX-License-Identifier: Apache-2.0
// Packing and transposition for the matrix product. Operands in half precision are converted on the
// way into the packed panels; for processors that multiply bf16, two reduction steps are packed
// into one lane of 32 bits instead.
#include <algorithm>

#include "kernels/gemm.h"
#include "kernels/gemm_vector.h"

namespace tessera::kernels::TESSERA_ISA {

namespace {

#ifdef __AVX512F__
TESSERA_INLINE __m256i load_halves(const uint16_t* p, Mask m) {
  return _mm256_maskz_loadu_epi16(m, p);
}
TESSERA_INLINE u32x16 widen_bits(const uint16_t* p, Mask m) {
  return reinterpret_cast<u32x16>(_mm512_maskz_cvtepu16_epi32(kAllLanes, load_halves(p, m)));
}
#endif

// How an operand is read: kSteps reduction steps per packed element. `across` gives one packed step
// of neighbouring columns, `along` 16 packed steps of one column, `n` its elements that exist.
struct ReadF32 {
  using T = float;
  static constexpr int kSteps = 1;
  static TESSERA_INLINE Vec across(const T* p, int64_t, int64_t, int64_t, Mask m) {
    return load_v(p, m);
  }
  static TESSERA_INLINE f32x16 along(const T* p, int64_t n) {
    return n >= 16 ? load(p) : load_n(p, n);
  }
  static TESSERA_INLINE float one(const T* p, int64_t, int64_t) { return *p; }
};

struct ReadF16 {
  using T = uint16_t;
  static constexpr int kSteps = 1;
#ifdef __AVX512F__
  static TESSERA_INLINE Vec across(const T* p, int64_t, int64_t, int64_t, Mask m) {
    return reinterpret_cast<Vec>(_mm512_maskz_cvtph_ps(kAllLanes, load_halves(p, m)));
  }
  static TESSERA_INLINE f32x16 along(const T* p, int64_t n) {
    return across(p, 0, 0, 0, mask_of(n));
  }
#else
  static TESSERA_INLINE Vec across(const T* p, int64_t, int64_t, int64_t width, Mask) {
    alignas(16) uint16_t t[8] = {};
    if (width < 8) std::copy(p, p + width, t), p = t;
    return reinterpret_cast<Vec>(
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static TESSERA_INLINE f32x16 along(const T* p, int64_t n) {
    return n >= 16 ? load_f16(p) : load_f16_n(p, n);
  }
#endif
  static TESSERA_INLINE float one(const T* p, int64_t, int64_t) {
    return f16_to_f32(*p);
  }
};

struct ReadBF16 {
  using T = uint16_t;
  static constexpr int kSteps = 1;
#ifdef __AVX512F__
  static TESSERA_INLINE Vec across(const T* p, int64_t, int64_t, int64_t, Mask m) {
    return reinterpret_cast<Vec>(widen_bits(p, m) << 16);
  }
  static TESSERA_INLINE f32x16 along(const T* p, int64_t n) {
    return across(p, 0, 0, 0, mask_of(n));
  }
#else
  static TESSERA_INLINE Vec across(const T* p, int64_t, int64_t, int64_t width, Mask) {
    alignas(16) uint16_t t[8] = {};
    if (width < 8) std::copy(p, p + width, t), p = t;
    const __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return reinterpret_cast<Vec>(_mm256_slli_epi32(u, 16));
  }
  static TESSERA_INLINE f32x16 along(const T* p, int64_t n) {
    return n >= 16 ? load_bf16(p) : load_bf16_n(p, n);
  }
#endif
  static TESSERA_INLINE float one(const T* p, int64_t, int64_t) {
    return bf16_to_f32(*p);
  }
};

#ifdef __AVX512F__
// Bits of two bf16, the earlier step in the low half, carried in an f32.
struct ReadPairs {
  using T = uint16_t;
  static constexpr int kSteps = 2;
  static TESSERA_INLINE Vec across(const T* p, int64_t k_stride, int64_t left, int64_t, Mask m) {
    const u32x16 low = widen_bits(p, m);
    return reinterpret_cast<Vec>(left > 1 ? low | widen_bits(p + k_stride, m) << 16 : low);
  }
  static TESSERA_INLINE f32x16 along(const T* p, int64_t n) {
    const __mmask32 m = n >= 32 ? ~0u : (1u << std::max<int64_t>(n, 0)) - 1;
    return reinterpret_cast<f32x16>(_mm512_maskz_loadu_epi16(m, p));
  }
  static TESSERA_INLINE float one(const T* p, int64_t k_stride, int64_t left) {
    const uint32_t u = p[0] | (left > 1 ? static_cast<uint32_t>(p[k_stride]) << 16 : 0);
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  }
};

// 16 rows of up to 16 packed steps (`n` elements), transposed in registers; rows beyond `rows`
// count as zero. Shuffles are spelled as language built-ins because the intrinsics warn (see
// kAllLanes).
template <typename R>
TESSERA_INLINE void load_transposed(const typename R::T* src, int64_t ld, int64_t rows, int64_t n,
                                    f32x16 out[16]) {
  f32x16 a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = i < rows ? R::along(src + i * ld, n) : f32x16{};
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

// dst[q * dst_ld + i] = packed step q of row i.
template <typename R>
void turn(const typename R::T* src, int64_t src_ld, float* dst, int64_t dst_ld, int64_t rows,
          int64_t k) {
  constexpr int64_t kRun = 16 * R::kSteps;
#ifdef __AVX512F__
  for (int64_t i = 0; i < rows; i += 16) {
    const int64_t height = std::min<int64_t>(16, rows - i);
    const Mask m = mask_of(height);
    for (int64_t j = 0; j < k; j += kRun) {
      const int64_t steps = (std::min(kRun, k - j) + R::kSteps - 1) / R::kSteps;
      f32x16 v[16];
      load_transposed<R>(src + i * src_ld + j, src_ld, height, k - j, v);
      float* d = dst + j / R::kSteps * dst_ld + i;
#pragma GCC unroll 16
      for (int c = 0; c < 16; ++c)
        if (c < steps) store_v(d + c * dst_ld, v[c], m);
    }
  }
#else
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < k; j += kRun) {
      alignas(64) float row[16];
      store(row, R::along(src + i * src_ld + j, k - j));
      for (int64_t c = 0; c < std::min(kRun, k - j); ++c) dst[(j + c) * dst_ld + i] = row[c];
    }
#endif
}

template <typename R>
void pack_cols(const void* from, int64_t v_stride, int64_t k_stride, int64_t cols, int64_t k,
               float* dst, int64_t panel) {
  const auto* src = static_cast<const typename R::T*>(from);
  const int64_t steps = (k + R::kSteps - 1) / R::kSteps;
  if (v_stride == 1) {
    // A few rows at a time over all panels: reads follow the memory, writes stay in runs of some
    // lines.
    constexpr int64_t kRun = 8;
    for (int64_t i0 = 0; i0 < steps; i0 += kRun) {
      const int64_t i1 = std::min(i0 + kRun, steps);
      for (int64_t col = 0, p = 0; col < cols; col += kTileCols, ++p) {
        const int64_t width = std::min<int64_t>(kTileCols, cols - col);
        const int64_t w0 = std::min<int64_t>(kVec, width), w1 = width - w0;
        const Mask m0 = mask_of(w0), m1 = mask_of(w1);
        for (int64_t i = i0; i < i1; ++i) {
          const int64_t at = i * R::kSteps;
          const auto* s = src + at * k_stride + col;
          float* d = dst + p * panel + i * kTileCols;
          store_v(d, R::across(s, k_stride, k - at, w0, m0));
          store_v(d + kVec, w1 > 0 ? R::across(s + kVec, k_stride, k - at, w1, m1) : Vec{});
        }
      }
    }
    return;
  }
  for (int64_t col = 0; col < cols; col += kTileCols, dst += panel, src += kTileCols * v_stride) {
    const int64_t width = std::min<int64_t>(kTileCols, cols - col);
    if (k_stride == 1) {
#ifdef __AVX512F__
      for (int64_t i = 0; i < steps; i += 16) {
        const int64_t depth = std::min<int64_t>(16, steps - i), at = i * R::kSteps;
#pragma GCC unroll 1
        for (int half = 0; half < 2; ++half) {
          f32x16 v[16];
          load_transposed<R>(src + half * 16 * v_stride + at, v_stride, width - half * 16, k - at,
                             v);
          float* d = dst + i * kTileCols + half * 16;
#pragma GCC unroll 16
          for (int c = 0; c < 16; ++c)
            if (c < depth) store_v(d + c * kTileCols, v[c]);
        }
      }
#else
      if (width < kTileCols) std::fill(dst, dst + steps * kTileCols, 0.0f);
      turn<R>(src, v_stride, dst, kTileCols, width, k);
#endif
    } else {
      for (int64_t i = 0; i < steps; ++i)
        for (int64_t j = 0; j < kTileCols; ++j) {
          const int64_t at = i * R::kSteps;
          dst[i * kTileCols + j] =
              j < width ? R::one(src + j * v_stride + at * k_stride, k_stride, k - at) : 0.0f;
        }
    }
  }
}

template <typename R>
void pack_rows(const void* from, int64_t r_stride, int64_t k_stride, int64_t rows, int64_t k,
               int tile_rows, float* dst, int64_t panel) {
  const int64_t steps = (k + R::kSteps - 1) / R::kSteps;
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  for (int64_t t = 0; t < tiles; ++t, dst += panel) {
    const int64_t row0 = rows * t / tiles, height = rows * (t + 1) / tiles - row0;
    const auto* s = static_cast<const typename R::T*>(from) + row0 * r_stride;
    if (r_stride == 1 && tile_rows <= kVec) {
      const Mask m = mask_of(height);
      for (int64_t i = 0; i < steps; ++i) {
        const int64_t at = i * R::kSteps;
        store_v(dst + i * tile_rows, R::across(s + at * k_stride, k_stride, k - at, height, m), m);
      }
    } else if (k_stride == 1) {
      turn<R>(s, r_stride, dst, tile_rows, height, k);
    } else {
      for (int64_t i = 0; i < steps; ++i)
        for (int64_t r = 0; r < height; ++r) {
          const int64_t at = i * R::kSteps;
          dst[i * tile_rows + r] = R::one(s + r * r_stride + at * k_stride, k_stride, k - at);
        }
    }
  }
}

template <typename R>
constexpr GemmPack kPack{pack_cols<R>, pack_rows<R>};

}  // namespace

const PackKernels pack_table{{kPack<ReadF32>, kPack<ReadF16>, kPack<ReadBF16>,
#ifdef __AVX512F__
                              kPack<ReadPairs>
#else
                                {}
#endif
                             },
                             turn<ReadF32>};

}  // namespace tessera::kernels::TESSERA_ISA
