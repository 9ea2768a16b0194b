// SPDX-License-Identifier: Apache-2.0
// Sorting along a dim, from the smallest.
#pragma once

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"

namespace popops {

inline poplar::Tensor sort(poplar::Graph& graph, const poplar::Tensor& t, unsigned dim,
                           poplar::program::Sequence& prog, const poplar::DebugContext& = {}) {
  poplar::program::detail::Draft d(TESSERA_DO_SORT);
  d.in = {t.handle()};
  d.ints = {dim};
  const tessera_view* result = nullptr;
  prog.add(d.make(graph.recorder(), &result));
  return poplar::Tensor(result);
}
inline poplar::Tensor sortKeyValue(poplar::Graph& graph, const poplar::Tensor& k,
                                   const poplar::Tensor& v, unsigned dim,
                                   poplar::program::Sequence& prog,
                                   const poplar::DebugContext& = {}) {
  poplar::program::detail::Draft d(TESSERA_DO_SORT);
  d.in = {k.handle(), v.handle()};
  d.ints = {dim};
  const tessera_view* result = nullptr;
  prog.add(d.make(graph.recorder(), &result));
  return poplar::Tensor(result);
}

}  // namespace popops
