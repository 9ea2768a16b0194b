// SPDX-License-Identifier: Apache-2.0
// Linear tile mappings.
#pragma once

#include <algorithm>
#include <vector>

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"

namespace poputil {

// Grains of elements over tiles, as even as can be: one interval a tile, only the tiles that have
// one.
inline std::vector<std::vector<poplar::Interval>> calcLinearTileMapping(
    const poplar::Graph& graph, std::vector<std::size_t> shape, unsigned minElementsPerTile,
    unsigned grainSize) {
  std::size_t elements = 1;
  for (std::size_t d : shape) elements *= d;
  if (elements == 0) return {};
  const std::size_t tiles = graph.getTarget().getNumTiles();
  const std::size_t grain = std::max(1u, grainSize);
  const std::size_t grains = (elements + grain - 1) / grain;
  const std::size_t least = (std::max(1u, minElementsPerTile) + grain - 1) / grain;
  const std::size_t per_tile = std::max(least, (grains + tiles - 1) / tiles);
  const std::size_t used = (grains + per_tile - 1) / per_tile;
  std::vector<std::vector<poplar::Interval>> out(used);
  for (std::size_t t = 0; t < used; ++t) {
    const std::size_t begin = t * grains / used * grain;
    const std::size_t end = std::min(elements, (t + 1) * grains / used * grain);
    out[t].emplace_back(begin, end);
  }
  return out;
}
inline std::vector<std::vector<poplar::Interval>> calcLinearTileMapping(const poplar::Graph& graph,
                                                                        const poplar::Tensor& t) {
  const unsigned bytes = poplar::detail::type_text(t.elementType()).bytes;
  const unsigned grain = std::max(1u, 8u / std::max(1u, bytes));
  return calcLinearTileMapping(graph, t.shape(), 128u / std::max(1u, bytes), grain);
}

inline void mapTensorLinearly(poplar::Graph& graph, const poplar::Tensor& t,
                              unsigned minElementsPerTile, unsigned grainSize) {
  graph.setTileMapping(t, calcLinearTileMapping(graph, t.shape(), minElementsPerTile, grainSize));
}
inline void mapTensorLinearly(poplar::Graph& graph, const poplar::Tensor& t) {
  graph.setTileMapping(t, calcLinearTileMapping(graph, t));
}

// From tile `offset` on, or downwards from it.
inline std::size_t mapTensorLinearlyWithOffset(poplar::Graph& graph, const poplar::Tensor& t,
                                               unsigned minElementsPerTile, unsigned grainSize,
                                               unsigned offset = 0, bool ascendingOrder = true) {
  const auto plain = calcLinearTileMapping(graph, t.shape(), minElementsPerTile, grainSize);
  const std::size_t tiles = graph.getTarget().getNumTiles();
  std::vector<std::vector<poplar::Interval>> out(tiles);
  std::size_t next = offset;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const std::size_t tile =
        ascendingOrder ? (offset + i) % tiles : (offset + tiles - i % tiles) % tiles;
    out[tile] = plain[i];
    next = ascendingOrder ? (tile + 1) % tiles : (tile + tiles - 1) % tiles;
  }
  graph.setTileMapping(t, out);
  return next;
}
inline std::size_t mapTensorLinearlyWithOffset(poplar::Graph& graph, const poplar::Tensor& t,
                                               unsigned offset = 0, bool ascendingOrder = true) {
  const unsigned bytes = std::max(1u, poplar::detail::type_text(t.elementType()).bytes);
  return mapTensorLinearlyWithOffset(graph, t, 128u / bytes, std::max(1u, 8u / bytes), offset,
                                     ascendingOrder);
}
inline unsigned getTileImbalance(const poplar::Graph&, const poplar::Tensor&, unsigned = 0,
                                 unsigned = 0) {
  return 0;
}
inline poplar::Tensor cloneToIpu(poplar::Graph& graph, const poplar::Tensor& t, unsigned,
                                 const poplar::DebugContext& dc = {}) {
  return graph.clone(t, dc);
}
inline poplar::Tensor copyToIpu(poplar::Graph&, const poplar::Tensor& t, poplar::program::Sequence&,
                                unsigned, const poplar::DebugContext& = {}) {
  return t;
}

}  // namespace poputil
