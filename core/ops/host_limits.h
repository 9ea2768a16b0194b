// SPDX-License-Identifier: Apache-2.0
// Calls that torch runs faster than our kernels; capture leaves them to it, as host calls.
#pragma once

#include <cstddef>

#include "base/tensor.h"
#include "ops/op.h"

namespace tessera {

// Whether torch is faster for an op with this many results on an operand of this shape.
bool host_is_faster(Op op, const Dims& shape, size_t results);

}  // namespace tessera
