// SPDX-License-Identifier: Apache-2.0
// Sums and maps over contiguous rows, for the normalisations. A long sum is taken in blocks that
// are added up in double, so that its error does not grow with the length.
#pragma once

#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

constexpr int64_t kRowBlock = 4096;  // elements of one float accumulation

TESSERA_INLINE i32x16 first_lanes(int64_t n) {
  return iota_i() < broadcast_i(static_cast<int32_t>(n));
}

// Sum over one row piece of term(i, n): the vector at element i of which n lanes count.
template <typename Term>
TESSERA_INLINE float sum_piece(int64_t begin, int64_t end, Term term) {
  f32x16 s0{}, s1{}, s2{}, s3{};
  int64_t i = begin;
  for (; i + 64 <= end; i += 64) {
    s0 += term(i, 16);
    s1 += term(i + 16, 16);
    s2 += term(i + 32, 16);
    s3 += term(i + 48, 16);
  }
  for (; i + 16 <= end; i += 16) s0 += term(i, 16);
  if (i < end) s1 += select(first_lanes(end - i), term(i, end - i), f32x16{});
  return horizontal_sum((s0 + s1) + (s2 + s3));
}

// Loads that know at compile time of full vectors: the callers pass 16 as a constant there.
TESSERA_INLINE f32x16 load_some(const float* p, int64_t n) {
  return __builtin_constant_p(n) && n == 16 ? load(p) : load_n(p, n);
}

template <typename Term>
TESSERA_INLINE double sum_row(int64_t len, Term term) {
  if (len <= kRowBlock) return sum_piece(0, len, term);
  double total = 0;
  for (int64_t i = 0; i < len; i += kRowBlock)
    total += sum_piece(i, i + kRowBlock < len ? i + kRowBlock : len, term);
  return total;
}

template <typename F>
TESSERA_INLINE void map_row(int64_t len, float* y, F f) {
  int64_t i = 0;
  for (; i + 32 <= len; i += 32) {
    const f32x16 a = f(i, 16), b = f(i + 16, 16);
    store(y + i, a);
    store(y + i + 16, b);
  }
  for (; i + 16 <= len; i += 16) store(y + i, f(i, 16));
  if (i < len) store_n(y + i, f(i, len - i), len - i);
}

// The next rows are fetched while this one is finished from the first-level cache; memory would be
// idle else.
TESSERA_INLINE void fetch(const float* p) {
  __builtin_prefetch(p, 0, 2);
}

struct Moments {
  float mean, var;
};

// Mean and variance of all rows. The mean of the first pass has lost a few of its last digits.
// Where they matter, because the values lie close together far from zero, a third pass measures
// around it.
TESSERA_INLINE Moments moments_of(const float* x, int64_t rows, int64_t step, int64_t len) {
  const double inv = 1.0 / (static_cast<double>(rows) * static_cast<double>(len));
  auto sum_rows = [=](auto term) __attribute__((always_inline)) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const float* p = x + r * step;
      sum += sum_row(len, [=](int64_t i, int64_t n) { return term(load_some(p + i, n)); });
    }
    return sum;
  };
  const auto m = static_cast<float>(sum_rows([](f32x16 v) { return v; }) * inv);
  const f32x16 mv = broadcast(m);
  const double var = sum_rows([=](f32x16 v) { return (v - mv) * (v - mv); }) * inv;
  if (!(16 * var < static_cast<double>(m) * static_cast<double>(m)))
    return {m, static_cast<float>(var)};
  const double shift = sum_rows([=](f32x16 v) { return v - mv; }) * inv;
  const double exact = var - shift * shift;
  return {static_cast<float>(static_cast<double>(m) + shift),
          static_cast<float>(exact > 0 ? exact : 0)};
}

}  // namespace tessera::kernels::TESSERA_ISA
