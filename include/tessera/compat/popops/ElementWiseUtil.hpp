// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ElementWise.hpp"

namespace popops {

inline poplar::Tensor createOutputForElementWiseOp(poplar::Graph& graph,
                                                   const std::vector<poplar::Tensor>& inputs,
                                                   const poplar::Type& type,
                                                   const poplar::DebugContext& dc = {}) {
  return graph.clone(type, inputs.at(0), dc);
}

}  // namespace popops
