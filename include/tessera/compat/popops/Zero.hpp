// SPDX-License-Identifier: Apache-2.0
// Tensors of zeros.
#pragma once

#include "Fill.hpp"

namespace popops {

inline void zero(poplar::Graph& graph, const poplar::Tensor& t, poplar::program::Sequence& prog,
                 const poplar::DebugContext& = {}) {
  fill(graph, t, prog, 0);
}

}  // namespace popops
