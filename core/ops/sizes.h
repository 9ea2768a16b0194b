// SPDX-License-Identifier: Apache-2.0
// Arithmetic on sizes that come from text: too large is an error or the largest number, never a
// wrapped one.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "base/tensor.h"

namespace tessera {

inline int64_t times(int64_t a, int64_t b) {
  int64_t out = 0;
  user_check(!__builtin_mul_overflow(a, b, &out), "[size] {} times {} is out of range", a, b);
  return out;
}

inline int64_t checked_product(const Dims& dims) {
  int64_t out = 1;
  for (int64_t d : dims) out = times(out, d);
  return out;
}

// Operations of a call: only reports and schedules read them.
inline int64_t operations(std::initializer_list<int64_t> factors) {
  double out = 1;
  for (int64_t f : factors) out *= static_cast<double>(f);
  return static_cast<int64_t>(std::min(out, 1e15));
}

}  // namespace tessera
