// SPDX-License-Identifier: Apache-2.0
// Counting elements into bins: even bins over a range of floats, or one bin per integer.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// n elements `step` apart.
struct CountRow {
  const void* x;
  int64_t step, n;
};

struct HistogramFns {
  // Widens [low, high] to the elements; false if one is not finite.
  bool (*range)(const CountRow& row, double* low, double* high);
  // Elements outside of [low, high] and NaN do not count.
  void (*count)(const CountRow& row, double low, double high, int64_t bins, int64_t* counts);
};
// f32 and f64.
const HistogramFns* histogram_fns(DType dtype);

// counts[x] += 1; returns n, or the first element that is not in [0, bins).
int64_t count_values(const CountRow& row, DType dtype, int64_t bins, int64_t* counts);

}  // namespace tessera::kernels
