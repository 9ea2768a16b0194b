// SPDX-License-Identifier: Apache-2.0
#include "ir/types.h"

#include <fmt/ranges.h>

namespace tessera {

Dims TensorType::strides() const {
  if (order.empty()) return dense_strides(shape);
  Dims out(shape.size());
  int64_t step = 1;
  for (int d : order) {
    out[d] = step;
    step *= shape[d];
  }
  return out;
}

std::string to_string(const TensorType& t) {
  std::string text = fmt::format("{}[{}]", name_of(t.dtype), fmt::join(t.shape, ","));
  if (!t.order.empty()) text += fmt::format("{{{}}}", fmt::join(t.order, ","));
  return text;
}

}  // namespace tessera
