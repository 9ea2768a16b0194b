// SPDX-License-Identifier: Apache-2.0
// A small matrix product for any element type, for code whose operands are in cache: rows of C and
// B are contiguous and padded to whole vectors, A has any strides. Included by *_isa.cpp files
// only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

template <typename T>
struct Wide {
  typedef T Vector __attribute__((vector_size(64)));
  static constexpr int64_t kWidth = 64 / sizeof(T);
  static TESSERA_INLINE Vector load(const T* p) {
    Vector v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static TESSERA_INLINE void store(T* p, Vector v) { std::memcpy(p, &v, sizeof v); }
};

// kRows rows and kVectors vectors of C: c = start + sign * a * b, start being c or zero.
template <typename T, bool kSubtract, int kRows, int kVectors, typename A>
TESSERA_INLINE void plain_tile(const A* a, int64_t a_rs, int64_t a_cs, const T* b, int64_t ldb,
                               T* c, int64_t ldc, int64_t k) {
  using W = Wide<T>;
  typename W::Vector sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = kSubtract ? W::load(c + r * ldc + v * W::kWidth) : typename W::Vector{};
  for (int64_t p = 0; p < k; ++p) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const T x = static_cast<T>(a[r * a_rs + p * a_cs]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const auto y = W::load(b + p * ldb + v * W::kWidth);
        if constexpr (kSubtract)
          sum[r][v] -= x * y;
        else
          sum[r][v] += x * y;
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) W::store(c + r * ldc + v * W::kWidth, sum[r][v]);
}

// m rows and n columns (a multiple of the vector width) of C; k > 0 unless it accumulates.
template <typename T, bool kSubtract, typename A>
inline void plain_product(const A* a, int64_t a_rs, int64_t a_cs, const T* b, int64_t ldb, T* c,
                          int64_t ldc, int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kWidth = Wide<T>::kWidth;
  int64_t j = 0;
  for (; j + 2 * kWidth <= n; j += 2 * kWidth) {
    int64_t i = 0;
    for (; i + 4 <= m; i += 4)
      plain_tile<T, kSubtract, 4, 2>(a + i * a_rs, a_rs, a_cs, b + j, ldb, c + i * ldc + j, ldc, k);
    for (; i < m; ++i)
      plain_tile<T, kSubtract, 1, 2>(a + i * a_rs, a_rs, a_cs, b + j, ldb, c + i * ldc + j, ldc, k);
  }
  for (; j < n; j += kWidth) {
    int64_t i = 0;
    for (; i + 4 <= m; i += 4)
      plain_tile<T, kSubtract, 4, 1>(a + i * a_rs, a_rs, a_cs, b + j, ldb, c + i * ldc + j, ldc, k);
    for (; i < m; ++i)
      plain_tile<T, kSubtract, 1, 1>(a + i * a_rs, a_rs, a_cs, b + j, ldb, c + i * ldc + j, ldc, k);
  }
}

}  // namespace tessera::kernels::TESSERA_ISA
