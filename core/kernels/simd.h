// SPDX-License-Identifier: Apache-2.0
// Sixteen-lane vectors for the ahead-of-time kernels: GCC vector types plus the few operations the
// language lacks (tails, math polynomials, horizontal results, half precision). Everything is
// forced inline and lives in the namespace of the instruction set being compiled, so that v3 and v4
// builds of one source never mix.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/dispatch.h"

// 64-byte vectors only ever pass between inlined functions; their ABI does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace tessera::kernels::TESSERA_ISA {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));

constexpr int kLanes = 16;
// The unmasked forms of some AVX-512 intrinsics make g++ 12 warn of an uninitialised variable in
// its own header; the zero-masked forms with this mask compile to the same instruction.
constexpr uint16_t kAllLanes = 0xffff;

TESSERA_INLINE f32x16 broadcast(float x) {
  return f32x16{} + x;
}
TESSERA_INLINE i32x16 broadcast_i(int32_t x) {
  return i32x16{} + x;
}
TESSERA_INLINE i32x16 iota_i() {
  return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

TESSERA_INLINE f32x16 load(const float* p) {
  f32x16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
TESSERA_INLINE void store(float* p, f32x16 v) {
  std::memcpy(p, &v, sizeof v);
}
TESSERA_INLINE void store_i(int32_t* p, i32x16 v) {
  std::memcpy(p, &v, sizeof v);
}

// Lanes below n (0..16) set.
TESSERA_INLINE uint16_t tail_mask(int64_t n) {
  return static_cast<uint16_t>(n >= 16 ? 0xffffu : (1u << n) - 1u);
}

// First n elements (0..16), zeros after them; memory past n is not touched.
TESSERA_INLINE f32x16 load_n(const float* p, int64_t n) {
#ifdef __AVX512F__
  return reinterpret_cast<f32x16>(_mm512_maskz_loadu_ps(tail_mask(n), p));
#else
  f32x16 v{};
  std::memcpy(&v, p, static_cast<size_t>(n) * sizeof(float));
  return v;
#endif
}
TESSERA_INLINE void store_n(float* p, f32x16 v, int64_t n) {
#ifdef __AVX512F__
  _mm512_mask_storeu_ps(p, tail_mask(n), reinterpret_cast<__m512>(v));
#else
  std::memcpy(p, &v, static_cast<size_t>(n) * sizeof(float));
#endif
}

// a * b + c in one rounding. GCC contracts a * b + c by itself, this says that it matters.
TESSERA_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#ifdef __AVX512F__
  return reinterpret_cast<f32x16>(_mm512_fmadd_ps(
      reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#else
  return a * b + c;
#endif
}

// Lane-wise choice; masks are what comparisons of vectors give (all ones or zero per lane).
TESSERA_INLINE f32x16 select(i32x16 mask, f32x16 a, f32x16 b) {
  return mask ? a : b;
}
TESSERA_INLINE i32x16 select(i32x16 mask, i32x16 a, i32x16 b) {
  return mask ? a : b;
}
TESSERA_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return a > b ? a : b;
}
TESSERA_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return a < b ? a : b;
}
// As torch: a NaN on either side wins.
TESSERA_INLINE f32x16 max_nan(f32x16 a, f32x16 b) {
  return (a > b) | (a != a) ? a : b;
}
TESSERA_INLINE f32x16 abs(f32x16 a) {
  return reinterpret_cast<f32x16>(reinterpret_cast<i32x16>(a) & 0x7fffffff);
}
TESSERA_INLINE f32x16 sqrt(f32x16 a) {
#ifdef __AVX512F__
  return reinterpret_cast<f32x16>(_mm512_maskz_sqrt_ps(kAllLanes, reinterpret_cast<__m512>(a)));
#else
  f32x16 r;
  for (int i = 0; i < 16; ++i) r[i] = __builtin_sqrtf(a[i]);
  return r;
#endif
}
// Nearest, ties to even.
TESSERA_INLINE f32x16 rint(f32x16 a) {
#ifdef __AVX512F__
  return reinterpret_cast<f32x16>(_mm512_maskz_roundscale_ps(
      kAllLanes, reinterpret_cast<__m512>(a), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  f32x16 r;
  for (int i = 0; i < 16; ++i) r[i] = __builtin_rintf(a[i]);
  return r;
#endif
}
TESSERA_INLINE f32x16 to_float(i32x16 a) {
  return __builtin_convertvector(a, f32x16);
}
TESSERA_INLINE i32x16 to_int(f32x16 a) {
  return __builtin_convertvector(a, i32x16);
}  // truncates

// Horizontal results; the order of the additions is fixed (halves, quarters, ...).
TESSERA_INLINE float horizontal_sum(f32x16 v) {
  f32x8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
            __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  f32x4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  return (b[0] + b[2]) + (b[1] + b[3]);
}
TESSERA_INLINE float horizontal_max(f32x16 v) {
  f32x8 lo = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
  f32x8 hi = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  f32x8 a = lo > hi ? lo : hi;
  f32x4 l = __builtin_shufflevector(a, a, 0, 1, 2, 3),
        h = __builtin_shufflevector(a, a, 4, 5, 6, 7);
  f32x4 b = l > h ? l : h;
  float x = b[0] > b[2] ? b[0] : b[2], y = b[1] > b[3] ? b[1] : b[3];
  return x > y ? x : y;
}

// 2^n * x for whole n, with gradual underflow.
TESSERA_INLINE f32x16 scale_by_power(f32x16 x, f32x16 n) {
#ifdef __AVX512F__
  return reinterpret_cast<f32x16>(
      _mm512_maskz_scalef_ps(kAllLanes, reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(n)));
#else
  i32x16 whole = to_int(n), half = whole >> 1, rest = whole - half;
  f32x16 a = reinterpret_cast<f32x16>((half + 127) << 23),
         b = reinterpret_cast<f32x16>((rest + 127) << 23);
  return x * a * b;
#endif
}

// exp, error below 1.1 ulp over the whole range; inf, 0 and NaN as in the C library.
TESSERA_INLINE f32x16 exp(f32x16 x) {
  // Clamped so that 2^n is representable; NaN passes through because both comparisons are false for
  // it.
  f32x16 c = x < broadcast(-104.0f) ? broadcast(-104.0f) : x;
  c = c > broadcast(89.0f) ? broadcast(89.0f) : c;
  f32x16 n = rint(c * 1.44269504088896341f);
  f32x16 r = fma(n, broadcast(-0.693359375f), c);
  r = fma(n, broadcast(2.12194440e-4f), r);
  f32x16 p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
#ifdef __AVX512F__
  return scale_by_power(p, n);
#else
  f32x16 safe = n == n ? n : f32x16{};  // converting NaN to int is undefined
  return scale_by_power(p, safe);
#endif
}

// Natural logarithm, error below 1 ulp or so; 0 -> -inf, negative -> NaN, inf and NaN pass through.
TESSERA_INLINE f32x16 log(f32x16 x) {
  i32x16 tiny = x < broadcast(1.17549435e-38f);
  f32x16 y = tiny ? x * 8388608.0f : x;
  i32x16 bits = reinterpret_cast<i32x16>(y);
  i32x16 e = ((bits >> 23) & 255) - 126;
  f32x16 m = reinterpret_cast<f32x16>((bits & 0x007fffff) | 0x3f000000);  // [0.5, 1)
  i32x16 low = m < broadcast(0.707106781186547524f);
  m = low ? m + m : m;
  f32x16 ef = to_float(e + low) - (tiny ? broadcast(23.0f) : f32x16{});
  f32x16 f = m - 1.0f, z = f * f;
  f32x16 p = broadcast(7.0376836292e-2f);
  p = fma(p, f, broadcast(-1.1514610310e-1f));
  p = fma(p, f, broadcast(1.1676998740e-1f));
  p = fma(p, f, broadcast(-1.2420140846e-1f));
  p = fma(p, f, broadcast(1.4249322787e-1f));
  p = fma(p, f, broadcast(-1.6668057665e-1f));
  p = fma(p, f, broadcast(2.0000714765e-1f));
  p = fma(p, f, broadcast(-2.4999993993e-1f));
  p = fma(p, f, broadcast(3.3333331174e-1f));
  f32x16 r = p * f * z;
  r = fma(ef, broadcast(-2.12194440e-4f), r);
  r = fma(z, broadcast(-0.5f), r);
  r = fma(ef, broadcast(0.693359375f), f + r);
  f32x16 inf = broadcast(__builtin_inff());
  r = x == inf ? inf : r;
  r = x == f32x16{} ? -inf : r;
  return (x < f32x16{}) | (x != x) ? broadcast(__builtin_nanf("")) : r;
}

// Half precision in memory, f32 in registers; stores round to nearest even.
TESSERA_INLINE f32x16 load_f16(const uint16_t* p) {
#ifdef __AVX512F__
  return reinterpret_cast<f32x16>(
      _mm512_maskz_cvtph_ps(kAllLanes, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#else
  f32x8 lo = reinterpret_cast<f32x8>(
      _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  f32x8 hi = reinterpret_cast<f32x8>(
      _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8))));
  return __builtin_shufflevector(lo, hi, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
}
TESSERA_INLINE void store_f16(uint16_t* p, f32x16 v) {
#ifdef __AVX512F__
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(p),
      _mm512_maskz_cvtps_ph(kAllLanes, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#else
  __m256 lo = reinterpret_cast<__m256>(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7));
  __m256 hi = reinterpret_cast<__m256>(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                   _mm256_cvtps_ph(hi, _MM_FROUND_TO_NEAREST_INT));
#endif
}
TESSERA_INLINE float f16_to_f32(uint16_t h) {
  return _cvtsh_ss(h);
}
TESSERA_INLINE uint16_t f32_to_f16(float f) {
  return static_cast<uint16_t>(_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT));
}
TESSERA_INLINE float bf16_to_f32(uint16_t h) {
  uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
TESSERA_INLINE uint16_t f32_to_bf16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if (f != f) return static_cast<uint16_t>((u >> 16) | 0x40);  // stay a NaN
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
TESSERA_INLINE f32x16 load_bf16(const uint16_t* p) {
  typedef uint16_t u16x16 __attribute__((vector_size(32)));
  u16x16 h;
  std::memcpy(&h, p, sizeof h);
  return reinterpret_cast<f32x16>(__builtin_convertvector(h, u32x16) << 16);
}
TESSERA_INLINE void store_bf16(uint16_t* p, f32x16 v) {
  typedef uint16_t u16x16 __attribute__((vector_size(32)));
  u32x16 u = reinterpret_cast<u32x16>(v);
  u32x16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  u32x16 nan = (u >> 16) | 0x40u;
  u16x16 h = __builtin_convertvector(v == v ? rounded : nan, u16x16);
  std::memcpy(p, &h, sizeof h);
}
// Tails of the half-precision forms: first n elements.
TESSERA_INLINE f32x16 load_f16_n(const uint16_t* p, int64_t n) {
  alignas(32) uint16_t t[16] = {};
  std::memcpy(t, p, static_cast<size_t>(n) * 2);
  return load_f16(t);
}
TESSERA_INLINE void store_f16_n(uint16_t* p, f32x16 v, int64_t n) {
  alignas(32) uint16_t t[16];
  store_f16(t, v);
  std::memcpy(p, t, static_cast<size_t>(n) * 2);
}
TESSERA_INLINE f32x16 load_bf16_n(const uint16_t* p, int64_t n) {
  alignas(32) uint16_t t[16] = {};
  std::memcpy(t, p, static_cast<size_t>(n) * 2);
  return load_bf16(t);
}
TESSERA_INLINE void store_bf16_n(uint16_t* p, f32x16 v, int64_t n) {
  alignas(32) uint16_t t[16];
  store_bf16(t, v);
  std::memcpy(p, t, static_cast<size_t>(n) * 2);
}

}  // namespace tessera::kernels::TESSERA_ISA
