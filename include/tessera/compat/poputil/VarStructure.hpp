// SPDX-License-Identifier: Apache-2.0
// How elements lie in memory: every tensor is row-major here.
#pragma once

#include <utility>
#include <vector>

#include "../poplar/Graph.hpp"

namespace poputil {

using GroupingInfo = std::pair<unsigned, unsigned>;

inline unsigned detectInnermostGrouping(const poplar::Graph&, const poplar::Tensor& t) {
  return t.rank() ? static_cast<unsigned>(t.dim(t.rank() - 1)) : 1;
}
inline std::vector<GroupingInfo> detectDimGroupings(const poplar::Graph&, const poplar::Tensor& t) {
  if (t.rank() == 0) return {};
  return {{t.rank() - 1, static_cast<unsigned>(t.dim(t.rank() - 1))}};
}
inline poplar::Tensor createPartitionableTensor(poplar::Graph& graph, const poplar::Type& type,
                                                const std::vector<std::size_t>& shape,
                                                const std::vector<std::size_t>&,
                                                const poplar::DebugContext& dc = {}) {
  return graph.addVariable(type, shape, dc);
}

}  // namespace poputil
