// SPDX-License-Identifier: Apache-2.0
// What is the same in every turn of a loop is made once, before it: a carry that no turn changes
// becomes a capture, and work on captures alone moves out. The other way round, a captured fill is
// made inside, where it becomes a literal of its readers. Views stay: they cost nothing, and what
// lies row-major outside is read as it lies.
#include <algorithm>
#include <unordered_map>

#include "ops/flow.h"
#include "passes/trim_bodies.h"

namespace tessera {
namespace {

using Values = std::vector<ValueId>;

class Hoister {
 public:
  Hoister(Node& n, Builder& b) : n_(n), body_(*n.bodies[0]), b_(b) {}

  // The values that stand for the results; none if they stay.
  Values run(bool& changed) {
    const LoopParts parts = loop_parts(n_.op, n_.args);
    for (size_t i = parts.carries + parts.xs; i < n_.operands.size(); ++i)
      outside_[body_.sources[i].value] = n_.operands[i];
    if (parts.count > 0 || n_.op == Op::While) changed |= move_nodes();
    return keep_carries();
  }

 private:
  // A node whose operands are all known outside. What is larger than they are would cost memory. A
  // while may have no turn, so what its data could make fail stays.
  bool moves(const Node& n) const {
    if (n.operands.empty() || is_view(n.op) || !is_pure(n)) return false;
    if (n_.op == Op::While && !is_pointwise(n.op)) return false;
    int64_t bytes = 0;
    for (ValueId v : n.operands) {
      if (!seen(v)) return false;
      bytes += body_.type(v).bytes();
    }
    for (ValueId v : n.results) bytes -= body_.type(v).bytes();
    return bytes >= 0;
  }
  // A capture, or a view of one.
  bool seen(ValueId v) const {
    if (outside_.count(v)) return true;
    auto it = views_.find(v);
    return it != views_.end() && seen(it->second.operands[0]);
  }
  ValueId value_outside(ValueId v) {
    if (auto it = outside_.find(v); it != outside_.end()) return it->second;
    const Node view = views_.at(v);
    const ValueId x = value_outside(view.operands[0]);
    return outside_[v] = add(view, {x})[0];
  }
  Values add(const Node& n, Values operands) {
    std::vector<TensorType> types;
    for (ValueId v : n.results) types.push_back(body_.type(v));
    const Values made = b_.add_node(n.op, std::move(operands), n.args, std::move(types));
    b_.out.back().loc = n_.loc;
    b_.out.back().bodies = n.bodies;
    return made;
  }

  bool move_nodes() {
    const size_t before = body_.nodes.size();
    std::vector<Node> left;
    for (Node& n : body_.nodes) {
      if (is_view(n.op)) views_[n.results[0]] = n;
      if (!moves(n)) {
        left.push_back(std::move(n));
        continue;
      }
      Values operands;
      for (ValueId v : n.operands) operands.push_back(value_outside(v));
      const Values made = add(n, operands);
      for (size_t i = 0; i < made.size(); ++i) {
        outside_[n.results[i]] = made[i];
        capture(n.results[i], "k", made[i]);
      }
    }
    body_.nodes = std::move(left);
    return body_.nodes.size() < before;
  }

  void capture(ValueId inside, std::string name, ValueId outside) {
    body_.sources.push_back({SourceKind::kInput, inside, std::move(name)});
    n_.args.list[captures_argument(n_.op)].list.push_back(
        Arg::operand(static_cast<int64_t>(n_.operands.size())));
    n_.operands.push_back(outside);
  }

  // Carries that stay as they are become captures of the value that they begin with. That which a
  // while tests stays a carry.
  Values keep_carries() {
    const LoopParts parts = loop_parts(n_.op, n_.args);
    std::vector<bool> kept(n_.operands.size(), true);
    Values now = n_.results;
    bool any = false;
    for (size_t i = n_.op == Op::While; i < parts.carries; ++i) {
      const ValueId inside = body_.sources[i].value;
      if (body_.outputs[i] != inside) continue;
      any = true;
      kept[i] = false;
      now[i] = n_.operands[i];
      kept.push_back(true);
      capture(inside, body_.sources[i].name, n_.operands[i]);
    }
    if (!any) return {};
    Values results, outputs;
    for (size_t i = 0; i < n_.results.size(); ++i) {
      if (i < parts.carries && !kept[i]) continue;
      results.push_back(n_.results[i]);
      outputs.push_back(body_.outputs[i]);
    }
    keep_operands(n_, kept);
    n_.results = std::move(results);
    body_.outputs = std::move(outputs);
    if (!n_.results.empty()) b_.append(std::move(n_));
    return now;
  }

  Node& n_;
  Graph& body_;
  Builder& b_;
  std::unordered_map<ValueId, ValueId> outside_;  // by value of the body
  std::unordered_map<ValueId, Node> views_;       // of the body, by their result
};

// Operands that are fills are made in the bodies.
bool fill_inside(Node& n, const std::unordered_map<ValueId, Node>& fills) {
  const size_t first = first_body_operand(n.op);
  const LoopParts parts = loop_parts(n.op, n.args);
  std::vector<bool> kept(n.operands.size(), true);
  for (size_t i = first + parts.carries + parts.xs; i < n.operands.size(); ++i) {
    auto it = fills.find(n.operands[i]);
    if (it == fills.end()) continue;
    kept[i] = false;
    for (const auto& body : n.bodies) {
      Node fill = it->second;
      fill.results = {body->sources[i - first].value};
      body->nodes.insert(body->nodes.begin(), std::move(fill));
    }
  }
  if (std::find(kept.begin(), kept.end(), false) == kept.end()) return false;
  keep_operands(n, kept);
  return true;
}

}  // namespace

bool hoist_invariants(Graph& g, const PassContext&) {
  std::unordered_map<ValueId, Node> fills;
  bool changed = false;
  const bool rewritten = rewrite(g, [&](Node& n, Builder& b) -> Values {
    if (n.op == Op::Fill && n.operands.empty()) fills[n.results[0]] = n;
    if (n.bodies.empty()) return {};
    changed |= fill_inside(n, fills);
    return n.op == Op::Branch ? Values{} : Hoister(n, b).run(changed);
  });
  return rewritten || changed;
}

}  // namespace tessera
