// SPDX-License-Identifier: Apache-2.0
// Layouts of the device: here a tensor is dense whatever its layout.
#pragma once

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"

namespace popops {
namespace rearrange {

inline poplar::Tensor regroupTensor(poplar::Graph&, const poplar::Tensor& t,
                                    poplar::program::Sequence&, const poplar::DebugContext& = {}) {
  return t;
}
inline poplar::Tensor regroupIfBeneficial(poplar::Graph&, const poplar::Tensor& in,
                                          const poplar::Tensor& ref, poplar::program::Sequence&,
                                          const poplar::DebugContext& = {}) {
  (void)ref;
  return in;
}
inline poplar::Tensor regroupIfBeneficial(poplar::Graph&, const poplar::Tensor& in,
                                          std::size_t preferredGrouping, poplar::program::Sequence&,
                                          const poplar::DebugContext& = {}) {
  (void)preferredGrouping;
  return in;
}
inline poplar::Tensor partialTranspose(poplar::Graph& graph, const poplar::Tensor& in,
                                       poplar::program::Sequence& prog,
                                       const poplar::DebugContext& = {}) {
  const unsigned n = in.rank();
  const poplar::Tensor view = in.dimShufflePartial({n - 2, n - 1}, {n - 1, n - 2});
  poplar::Tensor out = graph.addVariable(in.elementType(), view.shape());
  prog.add(poplar::program::Copy(view, out));
  return out;
}

}  // namespace rearrange
}  // namespace popops
