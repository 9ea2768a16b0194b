// SPDX-License-Identifier: Apache-2.0
// Rows of resampling, compiled per instruction set.
#include <algorithm>

#include "kernels/resample.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

namespace {

// Element types as loads and stores of f32 lanes.
struct AsF32 {
  using Memory = float;
  static TESSERA_INLINE f32x16 get(const Memory* p) { return load(p); }
  static TESSERA_INLINE f32x16 get_n(const Memory* p, int64_t n) { return load_n(p, n); }
  static TESSERA_INLINE void put(Memory* p, f32x16 v) { store(p, v); }
  static TESSERA_INLINE void put_n(Memory* p, f32x16 v, int64_t n) { store_n(p, v, n); }
};
struct AsF16 {
  using Memory = uint16_t;
  static TESSERA_INLINE f32x16 get(const Memory* p) { return load_f16(p); }
  static TESSERA_INLINE f32x16 get_n(const Memory* p, int64_t n) { return load_f16_n(p, n); }
  static TESSERA_INLINE void put(Memory* p, f32x16 v) { store_f16(p, v); }
  static TESSERA_INLINE void put_n(Memory* p, f32x16 v, int64_t n) { store_f16_n(p, v, n); }
};
struct AsBF16 {
  using Memory = uint16_t;
  static TESSERA_INLINE f32x16 get(const Memory* p) { return load_bf16(p); }
  static TESSERA_INLINE f32x16 get_n(const Memory* p, int64_t n) { return load_bf16_n(p, n); }
  static TESSERA_INLINE void put(Memory* p, f32x16 v) { store_bf16(p, v); }
  static TESSERA_INLINE void put_n(Memory* p, f32x16 v, int64_t n) { store_bf16_n(p, v, n); }
};

template <typename T>
TESSERA_INLINE f32x16 sum_at(const typename T::Memory* x, const int64_t* offset,
                             const float* weight, int taps, int64_t n) {
  auto get = [&](int t) __attribute__((always_inline)) {
    return n == kLanes ? T::get(x + offset[t]) : T::get_n(x + offset[t], n);
  };
  f32x16 sum = get(0) * weight[0];
  for (int t = 1; t < taps; ++t) sum = fma(get(t), broadcast(weight[t]), sum);
  return sum;
}

template <typename T>
void add_rows_of(const typename T::Memory* x, const int64_t* offset, const float* weight, int taps,
                 int64_t n, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    store(to + i, sum_at<T>(x + i, offset, weight, taps, kLanes));
  if (i < n) store_n(to + i, sum_at<T>(x + i, offset, weight, taps, n - i), n - i);
}

void add_rows(DType type, const void* x, const int64_t* offset, const float* weight, int taps,
              int64_t n, float* to) {
  if (taps == 0) {
    std::fill_n(to, n, 0.0f);
    return;
  }
  if (type == DType::F16)
    add_rows_of<AsF16>(static_cast<const uint16_t*>(x), offset, weight, taps, n, to);
  else if (type == DType::BF16)
    add_rows_of<AsBF16>(static_cast<const uint16_t*>(x), offset, weight, taps, n, to);
  else
    add_rows_of<AsF32>(static_cast<const float*>(x), offset, weight, taps, n, to);
}

// The 16 inputs of one tap; lanes without it are zero.
TESSERA_INLINE f32x16 pick(const RowTap& tap, const float* row) {
#ifdef __AVX512F__
  const float* p = row + tap.base;
  const __m512i index = _mm512_loadu_si512(tap.index);
  if (tap.reach <= 16)
    return reinterpret_cast<f32x16>(_mm512_maskz_permutexvar_ps(
        tap.lanes, index, reinterpret_cast<__m512>(tap.whole ? load(p) : load_n(p, tap.reach))));
  if (tap.reach <= 32)
    return reinterpret_cast<f32x16>(
        _mm512_maskz_permutex2var_ps(tap.lanes, reinterpret_cast<__m512>(load(p)), index,
                                     reinterpret_cast<__m512>(load_n(p + 16, tap.reach - 16))));
  return reinterpret_cast<f32x16>(
      _mm512_mask_i32gather_ps(_mm512_setzero_ps(), tap.lanes, index, p, 4));
#else
  f32x16 v{};
  for (int l = 0; l < kLanes; ++l)
    if (tap.lanes >> l & 1) v[l] = row[tap.base + tap.index[l]];
  return v;
#endif
}

template <typename T>
TESSERA_INLINE void spread_row(const RowPlan& plan, const float* row, typename T::Memory* to) {
  for (const RowPiece& p : plan.pieces) {
    typename T::Memory* out = to + p.first;
    if (p.taps == 0) {
      const float* from = row + p.from;
      int64_t i = 0;
      for (; i + kLanes <= p.count; i += kLanes) T::put(out + i, load(from + i));
      if (i < p.count) T::put_n(out + i, load_n(from + i, p.count - i), p.count - i);
      continue;
    }
    const RowTap* tap = plan.taps.data() + p.tap;
    f32x16 sum = pick(*tap, row);
    if (!tap->ones) sum = sum * load(tap->weight);
    for (int t = 1; t < p.taps; ++t) sum = fma(pick(tap[t], row), load(tap[t].weight), sum);
    if (p.count == kLanes)
      T::put(out, sum);
    else
      T::put_n(out, sum, p.count);
  }
}

template <typename T>
void spread_of(const RowPlan& plan, const float* rows, const int64_t* offset, int64_t count,
               typename T::Memory* to) {
  for (int64_t r = 0; r < count; ++r) spread_row<T>(plan, rows + offset[r], to + r * plan.out);
}

void spread(DType type, const RowPlan& plan, const float* rows, const int64_t* offset,
            int64_t count, void* to) {
  if (type == DType::F16)
    spread_of<AsF16>(plan, rows, offset, count, static_cast<uint16_t*>(to));
  else if (type == DType::BF16)
    spread_of<AsBF16>(plan, rows, offset, count, static_cast<uint16_t*>(to));
  else
    spread_of<AsF32>(plan, rows, offset, count, static_cast<float*>(to));
}

template <typename T>
void spread_inner_of(const AxisMap& map, const float* row, int64_t inner, typename T::Memory* to) {
  for (int64_t o = 0; o < map.out; ++o, to += inner) {
    const int32_t first = map.begin[o], last = map.begin[o + 1];
    auto sum = [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      f32x16 v{};
      for (int32_t t = first; t < last; ++t) {
        const float* p = row + map.index[t] * inner + i;
        v = fma(n == kLanes ? load(p) : load_n(p, n), broadcast(map.weight[t]), v);
      }
      return v;
    };
    int64_t i = 0;
    for (; i + kLanes <= inner; i += kLanes) T::put(to + i, sum(i, kLanes));
    if (i < inner) T::put_n(to + i, sum(i, inner - i), inner - i);
  }
}

void spread_inner(DType type, const AxisMap& map, const float* row, int64_t inner, void* to) {
  if (type == DType::F16)
    spread_inner_of<AsF16>(map, row, inner, static_cast<uint16_t*>(to));
  else if (type == DType::BF16)
    spread_inner_of<AsBF16>(map, row, inner, static_cast<uint16_t*>(to));
  else
    spread_inner_of<AsF32>(map, row, inner, static_cast<float*>(to));
}

}  // namespace

const ResampleKernels resample_table{add_rows, spread, spread_inner};

}  // namespace tessera::kernels::TESSERA_ISA
