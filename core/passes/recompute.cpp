// SPDX-License-Identifier: Apache-2.0
// An activation that forward makes by pointwise work from values which stay alive for backward
// anyway is recomputed in backward instead of being kept: relu(batch_norm(x)) from x, gelu(h) from
// h. One more pass over the data buys the memory of the activation for the whole time in between.
// Requires regions to be final and capture order, in which forward stands before backward.
#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "passes/pass.h"

namespace tessera {
namespace {

constexpr Setting<bool> kTraining{"training", false};

constexpr int64_t kWorthBytes =
    1 << 20;  // below that the caches hold it and the extra kernel costs more

class Recompute {
 public:
  explicit Recompute(Graph& g)
      : g_(g),
        uses_(g.values.size()),
        kept_(g.values.size(), false),
        is_source_(g.values.size(), false) {
    for (int i = 0; i < static_cast<int>(g.nodes.size()); ++i) {
      const Node& n = g.nodes[i];
      for (ValueId v : n.operands) uses_[v].push_back(i);
      // Views share the memory of their operand: their uses count for it.
      if (is_view(n.op)) views_[n.operands[0]].push_back(n.results[0]);
    }
    for (const Source& s : g.sources) kept_[s.value] = is_source_[s.value] = true;
    for (ValueId v : g.outputs) kept_[v] = true;
    for (const StateUpdate& u : g.updates) kept_[u.value] = true;
  }

  bool run() {
    std::vector<std::pair<int, Node>> inserted;  // before which node
    for (int i = 0; i < static_cast<int>(g_.nodes.size()); ++i) {
      if (g_.nodes[i].op != Op::Fused || backward(i)) continue;
      for (ValueId v : g_.nodes[i].results) consider(i, v, inserted);
    }
    if (inserted.empty()) return false;
    std::stable_sort(inserted.begin(), inserted.end(),
                     [](auto& a, auto& b) { return a.first < b.first; });
    std::vector<Node> out;
    size_t next = 0;
    for (int i = 0; i < static_cast<int>(g_.nodes.size()); ++i) {
      for (; next < inserted.size() && inserted[next].first == i; ++next)
        out.push_back(std::move(inserted[next].second));
      out.push_back(std::move(g_.nodes[i]));
    }
    g_.nodes = std::move(out);
    return true;
  }

 private:
  bool backward(int node) const {
    int32_t loc = g_.nodes[node].loc;
    return loc >= 0 && g_.locations[loc].backward;
  }

  int last_use(ValueId v) const {
    int last = uses_[v].empty() ? -1 : uses_[v].back();
    if (auto it = views_.find(v); it != views_.end())
      for (ValueId w : it->second) last = std::max(last, last_use(w));
    return last;
  }

  void consider(int node, ValueId v, std::vector<std::pair<int, Node>>& inserted) {
    if (kept_[v] || g_.type(v).bytes() < kWorthBytes || views_.count(v)) return;
    auto first_late =
        std::find_if(uses_[v].begin(), uses_[v].end(), [&](int u) { return backward(u); });
    // Without a use in forward there is no gap to free the memory in.
    if (first_late == uses_[v].begin() || first_late == uses_[v].end()) return;
    auto again = slice(g_.nodes[node], v, *first_late);
    if (!again) return;
    ValueId copy = g_.add_value(g_.type(v));
    again->results = {copy};
    again->loc = g_.nodes[*first_late].loc;
    for (auto it = first_late; it != uses_[v].end(); ++it)
      std::replace(g_.nodes[*it].operands.begin(), g_.nodes[*it].operands.end(), v, copy);
    // What it reads must now live until then; that is so already, but nobody may recompute those
    // values in turn.
    for (ValueId u : again->operands) kept_[u] = true;
    recomputed_.insert(v);
    inserted.emplace_back(*first_late, std::move(*again));
  }

  // The part of region `f` that makes `v`, if everything large it reads is alive at node `when`
  // anyway.
  std::optional<Node> slice(const Node& f, ValueId v, int when) const {
    const Graph& body = *f.body;
    size_t output =
        static_cast<size_t>(std::find(f.results.begin(), f.results.end(), v) - f.results.begin());
    auto alive = [&](ValueId u) { return recomputed_.count(u) == 0 && last_use(u) >= when; };
    // Other results of the region that stay alive are starting points as good as its operands.
    std::unordered_map<ValueId, ValueId> outside;  // body value -> value of the graph
    for (size_t i = 0; i < f.results.size(); ++i)
      if (i != output && !reduction_result(body, body.outputs[i]) && alive(f.results[i]))
        outside[body.outputs[i]] = f.results[i];
    std::set<ValueId> need{body.outputs[output]};
    for (size_t i = body.nodes.size(); i-- > 0;) {
      const Node& n = body.nodes[i];
      if (!need.count(n.results[0]) || outside.count(n.results[0])) continue;
      if (!is_pointwise(n.op)) return std::nullopt;
      need.insert(n.operands.begin(), n.operands.end());
    }
    for (size_t i = 0; i < body.sources.size(); ++i) {
      ValueId u = f.operands[i];
      if (!need.count(body.sources[i].value)) continue;
      bool small = g_.type(u).bytes() * 16 <= g_.type(v).bytes();
      if (!small && !alive(u) && !is_source_[u]) return std::nullopt;
      outside[body.sources[i].value] = u;
    }
    Node out;
    out.op = Op::Fused;
    out.body = std::make_shared<Graph>();
    out.body->name = body.name;
    std::unordered_map<ValueId, ValueId> inside;
    for (ValueId b : need) {
      auto it = outside.find(b);
      if (it == outside.end()) continue;
      inside[b] = out.body->add_source(SourceKind::kInput, fmt::format("i{}", out.operands.size()),
                                       body.type(b));
      out.args.list.push_back(Arg::operand(static_cast<int64_t>(out.operands.size())));
      out.operands.push_back(it->second);
    }
    for (const Node& n : body.nodes) {
      if (!need.count(n.results[0]) || outside.count(n.results[0])) continue;
      Node copy;
      copy.op = n.op;
      copy.args = n.args;
      for (ValueId o : n.operands) copy.operands.push_back(inside.at(o));
      copy.results = {inside[n.results[0]] = out.body->add_value(body.type(n.results[0]))};
      out.body->nodes.push_back(std::move(copy));
    }
    out.body->outputs = {inside.at(body.outputs[output])};
    return out;
  }

  static bool reduction_result(const Graph& body, ValueId v) {
    for (const Node& n : body.nodes)
      if (n.results[0] == v) return !is_pointwise(n.op);
    return false;
  }

  Graph& g_;
  std::vector<std::vector<int>> uses_;
  std::unordered_map<ValueId, std::vector<ValueId>> views_;
  std::vector<bool> kept_, is_source_;
  std::set<ValueId> recomputed_;
};

}  // namespace

bool recompute(Graph& g, const PassContext& ctx) {
  return ctx.settings.get(kTraining) && Recompute(g).run();
}

}  // namespace tessera
