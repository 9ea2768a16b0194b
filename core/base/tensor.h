// SPDX-License-Identifier: Apache-2.0
// A tensor as a kernel sees it: element type, shape, strides in elements, and where its first
// element is.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace tessera {

using Dims = std::vector<int64_t>;

inline int64_t product(const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

// Row-major strides of a shape.
inline Dims dense_strides(const Dims& shape) {
  Dims strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

// Plain data: part of a saved program. `region` names a base pointer of the running program (arena,
// state, one per input and output); `offset` is in bytes from it.
struct TensorRef {
  DType dtype = DType::F32;
  Dims shape;
  Dims strides;
  int32_t region = 0;
  int64_t offset = 0;

  int64_t count() const { return product(shape); }
  int64_t bytes() const { return count() * size_of(dtype); }
  // True if elements lie row-major without gaps (dimensions of size 1 may have any stride).
  bool contiguous() const {
    int64_t step = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      if (shape[i] != 1 && strides[i] != step) return false;
      step *= shape[i];
    }
    return true;
  }
};

}  // namespace tessera
