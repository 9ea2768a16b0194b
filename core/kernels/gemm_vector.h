// SPDX-License-Identifier: Apache-2.0
// The vectors of the matrix product and its packing: one register of this instruction set, with
// masked loads and stores. Included by gemm_*isa.cpp only.
#pragma once

#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

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

constexpr int kTileCols = 2 * kVec;

}  // namespace tessera::kernels::TESSERA_ISA
