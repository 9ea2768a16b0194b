// SPDX-License-Identifier: Apache-2.0
// Views as address arithmetic: the strided alias a view op makes of its operand's memory.
#pragma once

#include <optional>
#include <string>

#include "base/attrs.h"
#include "base/tensor.h"
#include "ops/op.h"

namespace tessera {

// "[2, 3]", for messages.
std::string text_of(const Dims& dims);

// Dim in [0, rank) from one that may count from the end; a scalar has one dim for this purpose.
int64_t wrap_dim(int64_t dim, int64_t rank);

// Start, step and length of a slice of a dim of `size` after ATen's wrapping and clamping.
struct SliceRange {
  int64_t start = 0, step = 1, length = 0;
};
SliceRange slice_range(int64_t size, const Arg& start, const Arg& end, int64_t step);

// The result of view op `op` with logical shape `out_shape`, aliasing `in`; nothing if no strides
// can express it (a `view` across dims that are not contiguous), in which case the
// operand must be copied first.
std::optional<TensorRef> apply_view(Op op, const Args& args, const TensorRef& in,
                                    const Dims& out_shape);

}  // namespace tessera
