// SPDX-License-Identifier: Apache-2.0
// Greedy placement: largest buffers first, each at the lowest offset free over its whole life.
// Within a few percent of the lower bound (the largest sum of live bytes) on the graphs we have,
// and fast.
#include <algorithm>
#include <numeric>

#include "plan/planner.h"

namespace tessera {

int64_t assign_offsets(const std::vector<Lifetime>& buffers, std::vector<int64_t>& offsets) {
  std::vector<int> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return buffers[a].bytes > buffers[b].bytes; });
  offsets.assign(buffers.size(), 0);
  std::vector<int> placed;  // sorted by offset
  int64_t total = 0;
  for (int i : order) {
    const Lifetime& b = buffers[i];
    if (b.bytes == 0) continue;
    int64_t need = whole_lines(b.bytes), at = 0;
    for (int j : placed) {
      const Lifetime& other = buffers[j];
      if (other.last < b.first || b.last < other.first) continue;
      if (offsets[j] >= at + need) break;
      at = std::max(at, offsets[j] + whole_lines(other.bytes));
    }
    offsets[i] = at;
    total = std::max(total, at + need);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](int a, int c) { return offsets[a] < offsets[c]; }),
                  i);
  }
  return total;
}

}  // namespace tessera
