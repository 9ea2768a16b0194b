// SPDX-License-Identifier: Apache-2.0
// PyTorch's rules for operands of different shapes and types.
#pragma once

#include <optional>

#include "base/dtype.h"
#include "base/tensor.h"

namespace tessera {

// The shape that two shapes broadcast to, nothing if they do not.
std::optional<Dims> broadcast(const Dims& a, const Dims& b);

// The type that two tensors promote to.
DType promote(DType a, DType b);

}  // namespace tessera
