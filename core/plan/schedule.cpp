// SPDX-License-Identifier: Apache-2.0
// List scheduling in capture order, except that a node which frees at least as much memory as it
// takes runs as soon as it can: weight updates then follow their gradient instead of keeping every
// gradient alive to the end.
#include <algorithm>
#include <numeric>
#include <set>

#include "plan/planner.h"

namespace tessera {

std::vector<int> schedule(const Graph& g, const std::vector<std::pair<int, int>>& before) {
  int count = static_cast<int>(g.nodes.size());
  std::vector<int32_t> made_by = producers(g);
  // Memory belongs to roots; views add users to their root.
  std::vector<ValueId> root(g.values.size());
  std::iota(root.begin(), root.end(), 0);
  for (const Node& n : g.nodes)
    if (is_view(n.op)) root[n.results[0]] = root[n.operands[0]];
  std::vector<bool> kept(g.values.size(),
                         false);  // outputs, new state, sources: their bytes are not the arena's
  for (ValueId v : g.outputs) kept[root[v]] = true;
  for (const StateUpdate& u : g.updates) kept[root[u.value]] = true;
  for (const Source& s : g.sources) kept[s.value] = true;

  std::vector<std::vector<int>> after(count);
  std::vector<int> waiting(count, 0);
  std::vector<std::set<int>> users(g.values.size());
  auto edge = [&](int a, int b) {
    after[a].push_back(b);
    ++waiting[b];
  };
  for (int i = 0; i < count; ++i) {
    std::set<int> seen;
    for (ValueId v : g.nodes[i].operands) {
      users[root[v]].insert(i);
      if (made_by[v] >= 0 && seen.insert(made_by[v]).second) edge(made_by[v], i);
    }
  }
  for (auto [a, b] : before) edge(a, b);

  std::vector<int> left(g.values.size());
  for (size_t v = 0; v < users.size(); ++v) left[v] = static_cast<int>(users[v].size());
  auto grows = [&](int i) {
    const Node& n = g.nodes[i];
    if (is_view(n.op)) return false;
    int64_t delta = 0;
    for (ValueId v : n.results)
      if (!kept[v]) delta += g.type(v).bytes();
    std::set<ValueId> roots;
    for (ValueId v : n.operands) roots.insert(root[v]);
    for (ValueId v : roots)
      if (!kept[v] && left[v] == 1) delta -= g.type(v).bytes();
    return delta > 0;
  };

  std::vector<int> order;
  std::set<int> ready;
  for (int i = 0; i < count; ++i)
    if (waiting[i] == 0) ready.insert(i);
  while (!ready.empty()) {
    int pick = *ready.begin();
    // Look a little ahead only: far nodes would cost more cache misses than the memory they free is
    // worth.
    int looked = 0;
    for (int i : ready) {
      if (++looked > 64) break;
      if (!grows(i)) {
        pick = i;
        break;
      }
    }
    ready.erase(pick);
    order.push_back(pick);
    std::set<ValueId> roots;
    for (ValueId v : g.nodes[pick].operands) roots.insert(root[v]);
    for (ValueId v : roots) --left[v];
    for (int next : after[pick])
      if (--waiting[next] == 0) ready.insert(next);
  }
  invariant(static_cast<int>(order.size()) == count,
            "the graph has a cycle: {} of {} nodes ordered", order.size(), count);
  return order;
}

}  // namespace tessera
