// SPDX-License-Identifier: Apache-2.0
// See histogram.h.
#include "kernels/histogram.h"

#include <cmath>

namespace tessera::kernels {
namespace {

template <typename T>
bool range(const CountRow& r, double* low, double* high) {
  const T* x = static_cast<const T*>(r.x);
  T lo = static_cast<T>(*low), hi = static_cast<T>(*high), nan = 0;
  for (int64_t i = 0; i < r.n; ++i) {
    const T v = x[i * r.step];
    lo = v < lo ? v : lo;
    hi = v > hi ? v : hi;
    nan += v - v;  // NaN for infinities too
  }
  *low = lo;
  *high = hi;
  return nan == 0;
}

template <typename T>
void count(const CountRow& r, double low, double high, int64_t bins, int64_t* counts) {
  const T* x = static_cast<const T*>(r.x);
  const T lo = static_cast<T>(low), hi = static_cast<T>(high), width = hi - lo;
  for (int64_t i = 0; i < r.n; ++i) {
    const T v = x[i * r.step];
    if (!(v >= lo && v <= hi)) continue;
    const auto bin = static_cast<int64_t>((v - lo) * static_cast<T>(bins) / width);
    ++counts[bin < bins ? bin : bins - 1];
  }
}

template <typename T>
int64_t count_integers(const CountRow& r, int64_t bins, int64_t* counts) {
  const T* x = static_cast<const T*>(r.x);
  for (int64_t i = 0; i < r.n; ++i) {
    const auto v = static_cast<int64_t>(x[i * r.step]);
    if (v < 0 || v >= bins) return i;
    ++counts[v];
  }
  return r.n;
}

}  // namespace

const HistogramFns* histogram_fns(DType dtype) {
  static constexpr HistogramFns f32{range<float>, count<float>}, f64{range<double>, count<double>};
  return dtype == DType::F32 ? &f32 : dtype == DType::F64 ? &f64 : nullptr;
}

int64_t count_values(const CountRow& row, DType dtype, int64_t bins, int64_t* counts) {
  switch (dtype) {
    case DType::I64:
      return count_integers<int64_t>(row, bins, counts);
    case DType::I32:
      return count_integers<int32_t>(row, bins, counts);
    case DType::I16:
      return count_integers<int16_t>(row, bins, counts);
    case DType::I8:
      return count_integers<int8_t>(row, bins, counts);
    default:
      return count_integers<uint8_t>(row, bins, counts);
  }
}

}  // namespace tessera::kernels
