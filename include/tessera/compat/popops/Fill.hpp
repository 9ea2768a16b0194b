// SPDX-License-Identifier: Apache-2.0
// Tensors of one value.
#pragma once

#include <vector>

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"

namespace popops {

template <typename T>
void fill(poplar::Graph& graph, const poplar::Tensor& t, poplar::program::Sequence& prog, T value,
          const poplar::DebugContext& = {}) {
  poplar::program::detail::Draft d(TESSERA_DO_FILL);
  d.out = {t.handle()};
  d.reals = {static_cast<double>(value)};
  d.ints = {static_cast<int64_t>(value)};
  prog.add(d.make(graph.recorder()));
}

// Parts of the flattened tensor.
template <typename T>
void fill(poplar::Graph& graph, poplar::Tensor t, const std::vector<poplar::Interval>& regions,
          unsigned tile, poplar::program::Sequence& prog, T value,
          const poplar::DebugContext& = {}) {
  (void)tile;
  for (const poplar::Interval& i : regions) fill(graph, t.flatten().slice(i), prog, value);
}

}  // namespace popops
