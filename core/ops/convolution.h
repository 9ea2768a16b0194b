// SPDX-License-Identifier: Apache-2.0
// What the layout pass asks the convolution family: the memory order in which a convolution and its
// gradients run fastest.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace tessera {

enum class ConvOrder : uint8_t {
  kChwn,          // batch innermost, so in the vector lanes; order {0,3,2,1}
  kChannelsLast,  // N,H,W,C: order {1,3,2,0}
  kAny,           // no preference (not a 2-D convolution): row-major will do
};

ConvOrder preferred_conv_order(const Dims& x_shape, const Dims& w_shape, const Dims& stride,
                               int64_t groups);

// True if the tensor is dense with its dims in this order, minor to major; dims of size 1 may have
// any stride.
bool is_dense_in_order(const TensorRef& t, const std::vector<int>& order);
// True if it is dense and row-major but for dim `inner`, which is the innermost; -1: just
// row-major.
bool is_dense_with_inner(const TensorRef& t, int inner);

}  // namespace tessera
