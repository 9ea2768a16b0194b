// SPDX-License-Identifier: Apache-2.0
// The largest and smallest of each row, and where they are.
#pragma once

#include <utility>

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"

namespace popnn {

namespace detail {
inline std::pair<poplar::Tensor, poplar::Tensor> extreme(poplar::Graph& graph,
                                                         const poplar::Tensor& in,
                                                         poplar::program::Sequence& prog,
                                                         bool least) {
  poplar::program::detail::Draft d(TESSERA_DO_ARG_EXTREME);
  d.in = {in.handle()};
  d.ints = {least ? 1 : 0};
  const tessera_view* results[2] = {nullptr, nullptr};
  prog.add(d.make(graph.recorder(), results));
  return {poplar::Tensor(results[0]), poplar::Tensor(results[1])};
}
}  // namespace detail

inline std::pair<poplar::Tensor, poplar::Tensor> maxAndArgMax(poplar::Graph& graph,
                                                              const poplar::Tensor& in,
                                                              poplar::program::Sequence& prog,
                                                              const poplar::DebugContext& = {}) {
  return detail::extreme(graph, in, prog, false);
}
inline std::pair<poplar::Tensor, poplar::Tensor> minAndArgMin(poplar::Graph& graph,
                                                              const poplar::Tensor& in,
                                                              poplar::program::Sequence& prog,
                                                              const poplar::DebugContext& = {}) {
  return detail::extreme(graph, in, prog, true);
}
inline poplar::Tensor argMax(poplar::Graph& graph, const poplar::Tensor& in,
                             poplar::program::Sequence& prog, const poplar::DebugContext& = {}) {
  return detail::extreme(graph, in, prog, false).second;
}
inline poplar::Tensor argMin(poplar::Graph& graph, const poplar::Tensor& in,
                             poplar::program::Sequence& prog, const poplar::DebugContext& = {}) {
  return detail::extreme(graph, in, prog, true).second;
}

}  // namespace popnn
