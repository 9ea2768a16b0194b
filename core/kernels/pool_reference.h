// SPDX-License-Identifier: Apache-2.0
// Pooling by its definition, for element types and memory orders that the vector kernels do not
// take. One plane at a time.
#pragma once

#include <cstdint>

#include "kernels/pool.h"

namespace tessera::kernels {

// Half-precision elements as they lie in memory.
struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

template <typename T>
struct PoolReference {
  static void max(const PoolAxis& h, const PoolAxis& w, PoolPlane<const T> x, PoolPlane<T> y,
                  PoolPlane<int64_t> index);
  static void max_grad(const PoolAxis& h, const PoolAxis& w, PoolPlane<const T> gy,
                       PoolPlane<const int64_t> index, PoolPlane<T> gx);
  static void avg(const PoolAxis& h, const PoolAxis& w, int64_t divisor, PoolPlane<const T> x,
                  PoolPlane<T> y);
  static void avg_grad(const PoolAxis& h, const PoolAxis& w, int64_t divisor, PoolPlane<const T> gy,
                       PoolPlane<T> gx);
};

extern template struct PoolReference<float>;
extern template struct PoolReference<double>;
extern template struct PoolReference<int64_t>;
extern template struct PoolReference<int32_t>;
extern template struct PoolReference<Half>;
extern template struct PoolReference<BFloat>;

}  // namespace tessera::kernels
