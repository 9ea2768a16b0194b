// SPDX-License-Identifier: Apache-2.0
// Type of a value: element type, logical shape and, where a pass chose one, the physical order of
// its dims.
#pragma once

#include <string>

#include "base/dtype.h"
#include "base/tensor.h"

namespace tessera {

// No machine has more; below it, products of a few sizes fit 64 bits.
constexpr int64_t kMaxTensorBytes = int64_t{1} << 47;

struct TensorType {
  DType dtype = DType::F32;
  Dims shape;
  // Dims from minor to major, written `f32[16,8,9,9]{0,3,2,1}`; empty means row-major. Only the
  // memory order: shapes, attributes and results always speak of the logical dims.
  std::vector<int> order;

  int rank() const { return static_cast<int>(shape.size()); }
  int64_t count() const { return product(shape); }
  int64_t bytes() const { return count() * size_of(dtype); }
  // Strides in elements of the dense tensor in its order.
  Dims strides() const;
  bool same_logical(const TensorType& o) const { return dtype == o.dtype && shape == o.shape; }
  bool operator==(const TensorType&) const = default;
};

std::string to_string(const TensorType& t);

}  // namespace tessera
