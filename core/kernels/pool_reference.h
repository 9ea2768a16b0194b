// SPDX-License-Identifier: Apache-2.0
// Pooling by its definition, for element types and memory orders that the vector kernels do not
// take. One plane at a time.
#pragma once

#include <cstdint>

#include "kernels/pool.h"

namespace tessera::kernels {

template <typename T>
struct PoolReference {
  static void max(const PoolRows& h, const PoolAxis& w, PoolPlane<const T> x, PoolPlane<T> y,
                  PoolPlane<int64_t> index);
  static void max_grad(const PoolRows& h, const PoolAxis& w, PoolPlane<const T> gy,
                       PoolPlane<const int64_t> index, PoolPlane<T> gx);
  static void avg(const PoolRows& h, const PoolAxis& w, int64_t divisor, PoolPlane<const T> x,
                  PoolPlane<T> y);
  static void avg_grad(const PoolRows& h, const PoolAxis& w, int64_t divisor, PoolPlane<const T> gy,
                       PoolPlane<T> gx);
};

extern template struct PoolReference<float>;
extern template struct PoolReference<double>;
extern template struct PoolReference<int64_t>;
extern template struct PoolReference<int32_t>;
extern template struct PoolReference<int16_t>;
extern template struct PoolReference<int8_t>;
extern template struct PoolReference<uint8_t>;

}  // namespace tessera::kernels
