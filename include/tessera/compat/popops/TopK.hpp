// SPDX-License-Identifier: Apache-2.0
// The k largest or smallest along the last dim.
#pragma once

#include <utility>

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"
#include "SortOrder.hpp"

namespace popops {

struct TopKParams {
  TopKParams(unsigned k, bool largest, SortOrder sortOrder, bool stable = false)
      : k(k), largest(largest), sortOrder(sortOrder), stableSort(stable) {}
  unsigned k;
  bool largest;
  SortOrder sortOrder;
  bool stableSort;
};

// Values and indices; ascending order is the descending one turned round.
inline std::pair<poplar::Tensor, poplar::Tensor> topKWithPermutation(
    poplar::Graph& graph, poplar::program::Sequence& prog, const poplar::Tensor& t,
    const TopKParams& params, const poplar::DebugContext& = {}) {
  poplar::program::detail::Draft d(TESSERA_DO_TOP_K);
  d.in = {t.handle()};
  d.ints = {params.k, params.largest ? 1 : 0, 1};
  const tessera_view* results[2] = {nullptr, nullptr};
  prog.add(d.make(graph.recorder(), results));
  poplar::Tensor values(results[0]), indices(results[1]);
  const bool down = params.sortOrder == SortOrder::DESCENDING;
  if (params.sortOrder != SortOrder::NONE && down != params.largest) {
    values = values.reverse(t.rank() - 1);
    indices = indices.reverse(t.rank() - 1);
  }
  return {values, indices};
}
inline poplar::Tensor topK(poplar::Graph& graph, poplar::program::Sequence& prog,
                           const poplar::Tensor& t, const TopKParams& params,
                           const poplar::DebugContext& dc = {}) {
  return topKWithPermutation(graph, prog, t, params, dc).first;
}

}  // namespace popops
