// SPDX-License-Identifier: Apache-2.0
// Drops nodes none of whose results reach an output, a gradient or a state update.
#include <algorithm>

#include "passes/pass.h"

namespace tessera {

bool dce(Graph& g, const PassContext&) {
  std::vector<bool> live(g.values.size(), false);
  for (ValueId v : g.outputs) live[v] = true;
  for (const StateUpdate& u : g.grads) live[u.value] = true;
  for (const StateUpdate& u : g.updates) live[u.value] = true;
  if (g.loss != kNoValue) live[g.loss] = true;
  std::vector<Node> kept;
  for (size_t i = g.nodes.size(); i-- > 0;) {
    Node& n = g.nodes[i];
    if (std::none_of(n.results.begin(), n.results.end(), [&](ValueId v) { return live[v]; }))
      continue;
    for (ValueId v : n.operands) live[v] = true;
    kept.push_back(std::move(n));
  }
  bool changed = kept.size() != g.nodes.size();
  std::reverse(kept.begin(), kept.end());
  g.nodes = std::move(kept);
  return changed;
}

}  // namespace tessera
