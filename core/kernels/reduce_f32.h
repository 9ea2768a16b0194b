// SPDX-License-Identifier: Apache-2.0
// Vector code of f32 reductions: pieces of a row into one value, rows into a row of values. Part of
// reduce_isa.cpp, compiled once per instruction set.
#pragma once

#include "kernels/reduce.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

// Halves, quarters, ... of a vector combined by f.
template <typename F>
TESSERA_INLINE float across_lanes(f32x16 v, F f) {
  const f32x8 a = f(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                    __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  const f32x4 b =
      f(__builtin_shufflevector(a, a, 0, 1, 2, 3), __builtin_shufflevector(a, a, 4, 5, 6, 7));
  const f32x4 c = f(b, f32x4(__builtin_shufflevector(b, b, 2, 3, 0, 1)));
  return f(c, f32x4(__builtin_shufflevector(c, c, 1, 0, 3, 2)))[0];
}

template <ReduceKind kind>
struct VectorOp;
template <>
struct VectorOp<ReduceKind::kSum> {
  using Part = double;
  static TESSERA_INLINE f32x16 identity() { return f32x16{}; }
  static TESSERA_INLINE f32x16 apply(f32x16 a, f32x16 b) { return a + b; }
  static TESSERA_INLINE float across(f32x16 v) { return horizontal_sum(v); }
};
template <>
struct VectorOp<ReduceKind::kProd> {
  using Part = double;
  static TESSERA_INLINE f32x16 identity() { return broadcast(1.0f); }
  static TESSERA_INLINE f32x16 apply(f32x16 a, f32x16 b) { return a * b; }
};
template <>
struct VectorOp<ReduceKind::kMax> {
  using Part = float;
  static TESSERA_INLINE f32x16 identity() { return broadcast(-__builtin_inff()); }
  // One instruction that gives b if either is NaN, then a if that is NaN.
  static TESSERA_INLINE f32x16 apply(f32x16 a, f32x16 b) { return a != a ? a : max(a, b); }
  static TESSERA_INLINE float across(f32x16 v) {
    return across_lanes(v, [](auto a, auto b) { return (b > a) | (b != b) ? b : a; });
  }
};
template <>
struct VectorOp<ReduceKind::kMin> {
  using Part = float;
  static TESSERA_INLINE f32x16 identity() { return broadcast(__builtin_inff()); }
  static TESSERA_INLINE f32x16 apply(f32x16 a, f32x16 b) { return a != a ? a : min(a, b); }
  static TESSERA_INLINE float across(f32x16 v) {
    return across_lanes(v, [](auto a, auto b) { return (b < a) | (b != b) ? b : a; });
  }
};

constexpr int64_t kBlock = 1024;  // elements summed in f32 before going to f64

template <ReduceKind kind>
TESSERA_INLINE f32x16 vector_block(const float* x, int64_t len) {
  using V = VectorOp<kind>;
  f32x16 a = V::identity(), b = a, c = a, d = a;
  int64_t i = 0;
  for (; i + 64 <= len; i += 64) {
    a = V::apply(a, load(x + i));
    b = V::apply(b, load(x + i + 16));
    c = V::apply(c, load(x + i + 32));
    d = V::apply(d, load(x + i + 48));
  }
  for (; i + 16 <= len; i += 16) a = V::apply(a, load(x + i));
  if (i < len) {
    const i32x16 in = iota_i() < broadcast_i(static_cast<int32_t>(len - i));
    b = V::apply(b, select(in, load_n(x + i, len - i), V::identity()));
  }
  return V::apply(V::apply(a, b), V::apply(c, d));
}

typedef double f64x16 __attribute__((vector_size(128)));
typedef double f64x8 __attribute__((vector_size(64)));
typedef double f64x4 __attribute__((vector_size(32)));

// Maximum or minimum that ignores NaN, and a sum that is NaN if any element is: half the work of
// checking each.
template <ReduceKind kind>
TESSERA_INLINE bool extreme_without_nan(const float* x, int64_t len, float* result) {
  auto pick = [](auto a, auto b) {
    if constexpr (kind == ReduceKind::kMax)
      return a > b ? a : b;
    else
      return a < b ? a : b;
  };
  const f32x16 none = VectorOp<kind>::identity();
  f32x16 m0 = none, m1 = none, m2 = none, m3 = none, s0{}, s1{}, s2{}, s3{};
  auto take = [&](f32x16 v, f32x16 & m, f32x16 & s) __attribute__((always_inline)) {
    m = pick(v, m);
    s += v;
  };
  int64_t i = 0;
  for (; i + 64 <= len; i += 64) {
    take(load(x + i), m0, s0);
    take(load(x + i + 16), m1, s1);
    take(load(x + i + 32), m2, s2);
    take(load(x + i + 48), m3, s3);
  }
  for (; i + 16 <= len; i += 16) take(load(x + i), m0, s0);
  if (i < len) {
    const f32x16 v = load_n(x + i, len - i);
    m1 = pick(select(iota_i() < broadcast_i(static_cast<int32_t>(len - i)), v, none), m1);
    s1 += v;
  }
  *result = across_lanes(pick(pick(m0, m1), pick(m2, m3)), pick);
  const f32x16 s = (s0 + s1) + (s2 + s3);
  const float check = across_lanes(s, [](auto a, auto b) { return a + b; });
  return check == check;
}

// A few factors in f32, which hardly overflows, all others in f64.
TESSERA_INLINE double product(const float* x, int64_t len) {
  f64x8 low = f64x8{} + 1.0, high = low;
  auto take = [&](f32x16 v) __attribute__((always_inline)) {
    low *= __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7), f64x8);
    high *=
        __builtin_convertvector(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15), f64x8);
  };
  int64_t i = 0;
  for (; len > 128 && i + 64 <= len; i += 64)
    take((load(x + i) * load(x + i + 16)) * (load(x + i + 32) * load(x + i + 48)));
  f32x16 rest = broadcast(1.0f);
  for (; i + 16 <= len; i += 16) rest *= load(x + i);
  if (i < len) {
    const i32x16 in = iota_i() < broadcast_i(static_cast<int32_t>(len - i));
    rest *= select(in, load_n(x + i, len - i), broadcast(1.0f));
  }
  take(rest);
  const f64x8 a = low * high;
  const f64x4 b =
      __builtin_shufflevector(a, a, 0, 1, 2, 3) * __builtin_shufflevector(a, a, 4, 5, 6, 7);
  return (b[0] * b[2]) * (b[1] * b[3]);
}

template <ReduceKind kind>
TESSERA_INLINE typename VectorOp<kind>::Part vector_piece(const float* x, int64_t len) {
  using V = VectorOp<kind>;
  if constexpr (kind == ReduceKind::kProd) {
    return product(x, len);
  } else {
    if constexpr (kind != ReduceKind::kSum) {
      float result;
      if (extreme_without_nan<kind>(x, len, &result)) return result;
    }
    if (kind != ReduceKind::kSum || len <= kBlock) return V::across(vector_block<kind>(x, len));
    f64x16 total{};
    for (int64_t i = 0; i < len; i += kBlock)
      total += __builtin_convertvector(
          vector_block<kind>(x + i, len - i < kBlock ? len - i : kBlock), f64x16);
    double sum = 0;
    for (int i = 0; i < 16; ++i) sum += total[i];
    return static_cast<typename V::Part>(sum);
  }
}

TESSERA_INLINE bool any_nan(f32x16 v) {
#ifdef __AVX512F__
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(v), reinterpret_cast<__m512>(v),
                            _CMP_UNORD_Q) != 0;
#else
  int any = 0;
  for (int half = 0; half < 2; ++half) {
    __m256 h;
    std::memcpy(&h, reinterpret_cast<const char*>(&v) + 32 * half, sizeof h);
    any |= _mm256_movemask_ps(_mm256_cmp_ps(h, h, _CMP_UNORD_Q));
  }
  return any != 0;
#endif
}

// Eight rows as a tree. For extremes a sum tells whether there is a NaN to be careful about.
template <ReduceKind kind, typename G>
TESSERA_INLINE f32x16 eight_rows(const float* p, int64_t row_step, G get) {
  using V = VectorOp<kind>;
  const f32x16 r[8] = {get(p),
                       get(p + row_step),
                       get(p + 2 * row_step),
                       get(p + 3 * row_step),
                       get(p + 4 * row_step),
                       get(p + 5 * row_step),
                       get(p + 6 * row_step),
                       get(p + 7 * row_step)};
  auto tree = [&](auto f) __attribute__((always_inline)) {
    return f(f(f(r[0], r[1]), f(r[2], r[3])), f(f(r[4], r[5]), f(r[6], r[7])));
  };
  auto exact = [](f32x16 a, f32x16 b) __attribute__((always_inline)) {
    return V::apply(a, b);
  };
  if constexpr (kind == ReduceKind::kMax || kind == ReduceKind::kMin) {
    const f32x16 sum =
        tree([](f32x16 a, f32x16 b) __attribute__((always_inline)) { return a + b; });
    if (!any_nan(sum))
      return tree([](f32x16 a, f32x16 b) __attribute__((always_inline)) {
        return kind == ReduceKind::kMax ? max(a, b) : min(a, b);
      });
  }
  return tree(exact);
}

// acc[w] combined with `rows` rows, eight at a time.
template <ReduceKind kind>
TESSERA_INLINE void tile_rows(const float* x, int64_t rows, int64_t row_step, int64_t width,
                              float* acc) {
  using V = VectorOp<kind>;
  const int64_t tail = width % 16, full = width - tail;
  auto whole = [](const float* p) __attribute__((always_inline)) {
    return load(p);
  };
  auto part = [=](const float* p) __attribute__((always_inline)) {
    return load_n(p, tail);
  };
  int64_t r = 0;
  for (; r + 8 <= rows; r += 8, x += 8 * row_step) {
    for (int64_t w = 0; w < full; w += 16)
      store(acc + w, V::apply(load(acc + w), eight_rows<kind>(x + w, row_step, whole)));
    if (tail)
      store(acc + full, V::apply(load(acc + full), eight_rows<kind>(x + full, row_step, part)));
  }
  for (; r < rows; ++r, x += row_step) {
    for (int64_t w = 0; w < full; w += 16) store(acc + w, V::apply(load(acc + w), load(x + w)));
    if (tail) store(acc + full, V::apply(load(acc + full), load_n(x + full, tail)));
  }
}

}  // namespace tessera::kernels::TESSERA_ISA
