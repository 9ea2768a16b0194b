// SPDX-License-Identifier: Apache-2.0
// Changes of the element type.
#pragma once

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"

namespace popops {

inline poplar::Tensor cast(poplar::Graph& graph, const poplar::Tensor& src,
                           const poplar::Type& type, poplar::program::Sequence& prog,
                           const poplar::DebugContext& = {}) {
  poplar::program::detail::Draft d(TESSERA_DO_CAST);
  d.in = {src.handle()};
  d.ints = {type.id()};
  const tessera_view* result = nullptr;
  prog.add(d.make(graph.recorder(), &result));
  return poplar::Tensor(result);
}

// As a program of its own.
inline poplar::program::Program cast(poplar::Graph& graph, const poplar::Tensor& src,
                                     const poplar::Tensor& dst, const poplar::DebugContext& = {}) {
  poplar::program::detail::Draft d(TESSERA_DO_CAST);
  d.in = {src.handle()};
  d.out = {dst.handle()};
  poplar::program::Sequence s;
  s.add(d.make(graph.recorder()));
  return s;
}

}  // namespace popops
