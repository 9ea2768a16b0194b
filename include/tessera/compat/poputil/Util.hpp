// SPDX-License-Identifier: Apache-2.0
// Helpers of programs that make vertices: ranges of elements shared out among workers.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"

namespace poputil {

// Position of the flat index in a tensor of the shape.
template <typename T>
std::vector<T> unflattenIndex(const std::vector<T>& shape, std::size_t index) {
  std::vector<T> out(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    out[i] = static_cast<T>(index % shape[i]);
    index /= shape[i];
  }
  return out;
}
template <typename T>
std::size_t flattenIndex(const std::vector<T>& shape, const std::vector<T>& indices) {
  std::size_t out = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) out = out * shape[i] + indices[i];
  return out;
}
template <typename Shape>
std::size_t intervalSequenceNumElements(const std::vector<Shape>& seq) {
  std::size_t n = 0;
  for (const auto& i : seq) n += i.size();
  return n;
}

// The regions over at most maxPartitions lists of about the same number of grains.
inline std::vector<std::vector<poplar::Interval>> splitRegions(
    const std::vector<poplar::Interval>& regions, unsigned grainSize, unsigned maxPartitions,
    unsigned minElementsPerPartition = 0, unsigned maxElementsPerPartition = 0,
    unsigned maxElementsPerRegion = 0) {
  (void)maxElementsPerPartition;
  const std::size_t most =
      maxElementsPerRegion ? maxElementsPerRegion : static_cast<std::size_t>(-1);
  const std::size_t grain = std::max(1u, grainSize);
  std::size_t grains = 0;
  for (const auto& r : regions) grains += (r.size() + grain - 1) / grain;
  if (grains == 0) return {};
  const std::size_t least = (std::max(1u, minElementsPerPartition) + grain - 1) / grain;
  const std::size_t wanted = std::max<std::size_t>(1, std::max(1u, maxPartitions));
  const std::size_t per = std::max(least, (grains + wanted - 1) / wanted);
  std::vector<std::vector<poplar::Interval>> out;
  std::size_t room = 0;
  for (const auto& r : regions) {
    for (std::size_t at = r.begin(); at < r.end();) {
      if (room == 0) {
        out.emplace_back();
        room = per;
      }
      const std::size_t size = std::min({r.end() - at, room * grain, most});
      out.back().emplace_back(at, at + size);
      room -= std::min(room, (size + grain - 1) / grain);
      at += size;
    }
  }
  return out;
}
inline std::vector<std::vector<poplar::Interval>> splitRegionsBetweenWorkers(
    const poplar::Target& target, const std::vector<poplar::Interval>& regions, unsigned grainSize,
    unsigned minElementsPerPartition = 0, unsigned maxElementsPerPartition = 0,
    unsigned maxElementsPerRegion = 0) {
  return splitRegions(regions, grainSize, target.getNumWorkerContexts(), minElementsPerPartition,
                      maxElementsPerPartition, maxElementsPerRegion);
}

inline poplar::Tensor duplicate(poplar::Graph& graph, const poplar::Tensor& in,
                                poplar::program::Sequence& prog,
                                const poplar::DebugContext& dc = {}) {
  poplar::Tensor out = graph.clone(in, dc);
  prog.add(poplar::program::Copy(in, out));
  return out;
}

}  // namespace poputil
