// SPDX-License-Identifier: Apache-2.0
// Drops nodes none of whose results reach an output, a gradient or a state update, the indices of a
// max pool that only backward would read, and what nothing needs of loops and branches.
#include <algorithm>

#include "passes/trim_bodies.h"

namespace tessera {

bool dce(Graph& g, const PassContext& ctx) {
  std::vector<bool> live(g.values.size(), false);
  for (ValueId v : g.outputs) live[v] = true;
  for (const StateUpdate& u : g.grads) live[u.value] = true;
  for (const StateUpdate& u : g.updates) live[u.value] = true;
  if (g.loss != kNoValue) live[g.loss] = true;
  std::vector<Node> kept;
  bool trimmed = false;
  for (size_t i = g.nodes.size(); i-- > 0;) {
    Node& n = g.nodes[i];
    if (std::none_of(n.results.begin(), n.results.end(), [&](ValueId v) { return live[v]; }))
      continue;
    if (!n.bodies.empty()) trimmed |= trim_bodies(n, live, ctx);
    for (ValueId v : n.operands) live[v] = true;
    if ((n.op == Op::MaxPool || n.op == Op::AdaptiveMaxPool) && n.results.size() == 2 &&
        !live[n.results[1]]) {
      n.results.pop_back();
      trimmed = true;
    }
    kept.push_back(std::move(n));
  }
  bool changed = trimmed || kept.size() != g.nodes.size();
  std::reverse(kept.begin(), kept.end());
  g.nodes = std::move(kept);
  return changed;
}

}  // namespace tessera
