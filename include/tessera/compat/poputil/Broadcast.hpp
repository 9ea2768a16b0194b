// SPDX-License-Identifier: Apache-2.0
// Broadcasting by numpy's rules.
#pragma once

#include <vector>

#include "../poplar/Tensor.hpp"

namespace poputil {

inline void expandToMatchRanks(poplar::Tensor& a, poplar::Tensor& b) {
  const auto grow = [](const poplar::Tensor& t, unsigned rank) {
    std::vector<std::size_t> s = t.shape();
    while (s.size() < rank) s.insert(s.begin(), 1);
    return t.reshape(s);
  };
  a = grow(a, b.rank());
  b = grow(b, a.rank());
}
inline void broadcastToMatch(poplar::Tensor& a, const std::vector<std::size_t>& shape) {
  std::vector<std::size_t> s = a.shape();
  while (s.size() < shape.size()) s.insert(s.begin(), 1);
  a = a.reshape(s);
  for (unsigned d = 0; d < s.size(); ++d) {
    if (s[d] == shape[d]) continue;
    if (s[d] != 1) throw poplar::graph_error("cannot broadcast " + a.shapeToString());
    a = a.broadcast(static_cast<unsigned>(shape[d]), d);
  }
}
inline void broadcastToMatch(poplar::Tensor& a, poplar::Tensor& b) {
  expandToMatchRanks(a, b);
  std::vector<std::size_t> s = a.shape();
  for (unsigned d = 0; d < s.size(); ++d)
    if (s[d] == 1) s[d] = b.dim(d);
  broadcastToMatch(a, s);
  broadcastToMatch(b, s);
}
inline void broadcastToMatch(poplar::Tensor& a, poplar::Tensor& b, poplar::Tensor& c) {
  broadcastToMatch(a, b);
  broadcastToMatch(b, c);
  broadcastToMatch(a, b);
}

}  // namespace poputil
