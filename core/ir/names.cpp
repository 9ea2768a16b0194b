// SPDX-License-Identifier: Apache-2.0
#include "ir/names.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace tessera {

std::vector<std::pair<std::string, ValueId>> tensor_names(const Graph& g) {
  std::vector<std::pair<std::string, ValueId>> out;
  std::unordered_map<ValueId, std::string> source;
  for (const Source& s : g.sources) {
    if (s.kind == SourceKind::kConst) continue;
    source[s.value] = state_name(s);
    out.emplace_back(source[s.value], s.value);
  }
  std::unordered_map<std::string, int> used;
  for (const Node& n : g.nodes) {
    std::string name = n.op == Op::HostCall ? n.target : std::string(op_text(n.op));
    if (n.loc >= 0) {
      std::string scope = g.locations[n.loc].scope;
      std::replace(scope.begin(), scope.end(), '.', '/');
      if (!scope.empty()) name = scope + "/" + name;
      if (g.locations[n.loc].backward) name = "Backward/" + name;
    }
    if (const int k = used[name]++; k > 0) name += fmt::format("/{}", k);
    for (size_t i = 0; i < n.results.size(); ++i)
      out.emplace_back(fmt::format("{}:{}", name, i), n.results[i]);
  }
  for (const StateUpdate& u : g.grads) out.emplace_back("Gradient___" + source[u.state], u.value);
  return out;
}

void add_anchors(Graph& g, const std::vector<std::string>& names) {
  if (names.empty()) return;
  const auto known = tensor_names(g);
  Builder b(g);
  for (const std::string& name : names) {
    auto it = std::find_if(known.begin(), known.end(), [&](auto& k) { return k.first == name; });
    user_check(it != known.end(),
               "[anchor] No tensor with name {} found. getTensorNames() lists those of a compiled "
               "model",
               name);
    const TensorType& t = g.type(it->second);
    g.outputs.push_back(b.copy(it->second, {t.dtype, t.shape, {}}));
  }
  for (Node& n : b.out) g.nodes.push_back(std::move(n));
}

}  // namespace tessera
