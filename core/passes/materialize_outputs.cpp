// SPDX-License-Identifier: Apache-2.0
// Results leave the device row-major and in memory of their own, and a state's new value belongs to
// that state alone: where the graph returns a view, a source, an odd order or one value twice, a
// `clone` is put in. A reshape of a whole value is that value's memory and needs none.
#include <set>

#include "passes/pass.h"

namespace tessera {

bool materialize_outputs(Graph& g, const PassContext&) {
  std::vector<bool> computed(g.values.size(), false);
  std::vector<ValueId> memory(g.values.size());  // the value that a view looks at
  for (size_t v = 0; v < memory.size(); ++v) memory[v] = static_cast<ValueId>(v);
  std::vector<ValueId> whole = memory;  // the value that a reshape has all elements of
  // Host calls are bound to fixed addresses, outputs lie where the caller's tensors are.
  std::set<ValueId> bound;
  for (const Node& n : g.nodes) {
    if (is_view(n.op)) {
      memory[n.results[0]] = memory[n.operands[0]];
      if (n.op == Op::View) whole[n.results[0]] = whole[n.operands[0]];
    } else if (n.op == Op::HostCall) {
      for (ValueId v : n.operands) bound.insert(memory[v]);
    } else {
      for (ValueId v : n.results) computed[v] = true;
    }
  }
  std::set<ValueId> taken;
  Builder b(g);
  auto own = [&](ValueId& v, bool moves) {
    const ValueId u = moves ? whole[v] : v;
    bool fine = computed[u] && g.type(u).order.empty() && !(moves && bound.contains(u)) &&
                taken.insert(u).second;
    if (!fine) v = b.copy(v, {g.type(v).dtype, g.type(v).shape, {}});
  };
  // States first: their values are written in place, outputs are cheaper to copy.
  for (StateUpdate& u : g.updates) own(u.value, false);
  for (ValueId& v : g.outputs) own(v, true);
  for (Node& n : b.out) g.nodes.push_back(std::move(n));
  return !b.out.empty();
}

}  // namespace tessera
