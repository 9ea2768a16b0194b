// SPDX-License-Identifier: Apache-2.0
#include "passes/trim_bodies.h"

#include <algorithm>

#include "ops/flow.h"

namespace tessera {
namespace {

// Values that the given outputs of a body are made from.
std::vector<bool> reached(const Graph& body, const std::vector<bool>& needed) {
  std::vector<bool> live(body.values.size(), false);
  for (size_t i = 0; i < needed.size(); ++i)
    if (needed[i]) live[body.outputs[i]] = true;
  for (size_t i = body.nodes.size(); i-- > 0;) {
    const Node& n = body.nodes[i];
    if (std::any_of(n.results.begin(), n.results.end(), [&](ValueId v) { return live[v]; }))
      for (ValueId v : n.operands) live[v] = true;
  }
  return live;
}

template <typename T>
void keep(std::vector<T>& items, const std::vector<bool>& kept, size_t first = 0) {
  size_t i = 0;
  std::erase_if(items, [&](const T&) { return !kept[first + i++]; });
}

class Trimmer {
 public:
  Trimmer(Node& n, const std::vector<bool>& live) : n_(n) {
    for (ValueId v : n.results) needed_.push_back(live[v]);
  }

  // One round; false if all is needed.
  bool run(const PassContext& ctx) {
    std::vector<bool> kept(n_.operands.size(), false);
    if (n_.op != Op::Branch) {
      follow_carries();
      for (size_t i = 0; i < carries(); ++i) kept[i] = needed_[i];
    } else {
      kept[0] = true;
    }
    const bool drops = std::find(needed_.begin(), needed_.end(), false) != needed_.end();
    bool changed = drops;
    for (const auto& body : n_.bodies) {
      keep(body->outputs, needed_);
      changed |= dce(*body, ctx);
      const std::vector<bool> live = reached(*body, std::vector<bool>(body->outputs.size(), true));
      const size_t first = first_body_operand(n_.op);
      for (size_t i = 0; i < body->sources.size(); ++i)
        if (live[body->sources[i].value]) kept[first + i] = true;
    }
    keep(n_.results, needed_);
    std::erase(needed_, false);
    if (std::find(kept.begin(), kept.end(), false) == kept.end()) return changed;
    keep_operands(n_, kept);
    return true;
  }

 private:
  size_t carries() const { return loop_parts(n_.op, n_.args).carries; }

  // A carry is needed if what is needed is made from it, in this turn or a later one.
  void follow_carries() {
    const Graph& body = *n_.bodies[0];
    if (n_.op == Op::While) needed_[0] = true;  // or the loop would not end
    for (bool again = true; again;) {
      again = false;
      const std::vector<bool> live = reached(body, needed_);
      for (size_t i = 0; i < carries(); ++i)
        if (!needed_[i] && live[body.sources[i].value]) needed_[i] = again = true;
    }
  }

  Node& n_;
  std::vector<bool> needed_;  // outputs of the bodies
};

}  // namespace

void keep_operands(Node& n, const std::vector<bool>& kept) {
  const size_t first = first_body_operand(n.op);
  int64_t next = 0;
  for (Arg& a : n.args.list) {
    if (a.is_operand()) a.i = next++;
    std::erase_if(a.list, [&](const Arg& x) { return !kept[static_cast<size_t>(x.i)]; });
    for (Arg& x : a.list) x.i = next++;
  }
  keep(n.operands, kept);
  for (const auto& body : n.bodies) keep(body->sources, kept, first);
}

bool trim_bodies(Node& n, const std::vector<bool>& live, const PassContext& ctx) {
  Trimmer t(n, live);
  bool changed = false;
  while (t.run(ctx)) changed = true;
  return changed;
}

}  // namespace tessera
