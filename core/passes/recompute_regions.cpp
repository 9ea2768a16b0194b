// SPDX-License-Identifier: Apache-2.0
// Of a checkpointed region (torch.utils.checkpoint) only what goes in is kept for backward: the
// nodes that make what its backward reads are repeated there, right before their first use. With
// `recompute_all` the whole forward pass is such a region, and what
// poptorch.recomputationCheckpoint marks is kept. Random numbers depend on their stream alone, so
// they come out the same.
//
// A region inside another is repeated twice: as part of the outer one, from which again only its
// inputs are kept, and for its own backward. Requires forward to stand before backward, as
// captured.
#include <algorithm>
#include <map>
#include <set>

#include "ops/flow.h"
#include "passes/pass.h"

namespace tessera {
namespace {

constexpr Setting<bool> kTraining{"training", false};
constexpr Setting<bool> kRecomputeAll{"recompute_all", false};

using Region = std::vector<int>;  // number of the region, those around it before

bool is_mark(const Node& n) {
  return n.op == Op::Copy && n.args.size() == 2;
}

// A batch norm that normalizes by its batch and only makes new running statistics of the old ones.
bool updates_statistics(const Node& n) {
  return n.op == Op::BatchNorm && n.args.boolean(5);
}

class Repeater {
 public:
  explicit Repeater(Graph& g) : g_(g) {}

  bool run(bool all) {
    std::set<std::pair<size_t, Region>> regions;  // those around others first
    for (const Node& n : g_.nodes) {
      if (n.loc < 0) continue;
      const Region& path = g_.locations[n.loc].checkpoints;
      for (size_t depth = 1; depth <= path.size(); ++depth)
        regions.emplace(depth, Region(path.begin(), path.begin() + static_cast<long>(depth)));
    }
    if (all && std::any_of(g_.nodes.begin(), g_.nodes.end(), is_mark)) regions.emplace(0, Region{});
    bool changed = false;
    for (const auto& [depth, region] : regions) changed |= repeat(region);
    return changed;
  }

 private:
  const Location* location(const Node& n) const {
    return n.loc < 0 ? nullptr : &g_.locations[n.loc];
  }

  static bool inside(const Location& l, const Region& region) {
    return l.checkpoints.size() >= region.size() &&
           std::equal(region.begin(), region.end(), l.checkpoints.begin());
  }

  static bool same_place(const Location& a, const Location& b) {
    return a.ipu == b.ipu && a.stage == b.stage && a.phase == b.phase;
  }

  // The forward pass of the region: what stands in it, or a copy that a region around it has made.
  std::vector<bool> forward_of(const Region& region) const {
    std::vector<bool> out(g_.nodes.size(), false);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Location* l = location(g_.nodes[i]);
      out[i] = l && inside(*l, region) && (!l->backward || l->turn > 0);
    }
    return out;
  }

  // Values that outlive forward whatever is repeated.
  std::vector<bool> kept_values(const Region& region) const {
    std::vector<bool> kept(g_.values.size(), false);
    for (ValueId v : g_.outputs) kept[v] = true;
    for (const StateUpdate& u : g_.updates) kept[u.value] = true;
    for (const StateUpdate& u : g_.grads) kept[u.value] = true;
    if (g_.loss != kNoValue) kept[g_.loss] = true;
    for (const Node& n : g_.nodes) {
      const Location* l = location(n);
      const bool from_outside = !l || (l->backward && l->turn == 0 && !inside(*l, region));
      for (ValueId v : n.operands) {
        // Another IPU or stage gets what it reads when it is made.
        const Location* made = made_by_[v] < 0 ? nullptr : location(g_.nodes[made_by_[v]]);
        if (from_outside || is_mark(n) || (made && !same_place(*made, *l))) kept[v] = true;
      }
      if (is_mark(n) || !is_pure(n))
        for (ValueId v : n.results) kept[v] = true;
    }
    keep_readers_of_states(kept);
    for (size_t i = g_.nodes.size(); i-- > 0;) {
      const Node& n = g_.nodes[i];
      if (is_view(n.op) && kept[n.results[0]]) kept[n.operands[0]] = true;
    }
    return kept;
  }

  // A state that forward changes may be another one when backward of a pipeline runs.
  void keep_readers_of_states(std::vector<bool>& kept) const {
    std::set<ValueId> changing;
    for (const StateUpdate& u : g_.updates) changing.insert(u.state);
    for (const Node& n : g_.nodes) {
      if (std::none_of(n.operands.begin(), n.operands.end(),
                       [&](ValueId v) { return changing.count(v) > 0; }))
        continue;
      if (is_view(n.op))
        changing.insert(n.results[0]);
      else if (updates_statistics(n))
        kept[n.results[3]] = kept[n.results[4]] = true;
      else
        for (ValueId v : n.results) kept[v] = true;
    }
  }

  bool repeat(const Region& region) {
    made_by_ = producers(g_);
    const std::vector<bool> forward = forward_of(region), kept = kept_values(region);
    std::map<ValueId, ValueId> copies;
    auto gone = [&](ValueId v) {
      const auto i = static_cast<size_t>(v);
      return i < kept.size() && made_by_[i] >= 0 && forward[made_by_[i]] && !kept[i];
    };
    std::vector<Node> out;
    bool changed = false;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Location* l = location(g_.nodes[i]);
      if (l && l->backward && l->turn == 0 && inside(*l, region)) {
        std::set<int> needed;  // nodes, in their order
        std::vector<ValueId> todo = g_.nodes[i].operands;
        while (!todo.empty()) {
          const ValueId v = todo.back();
          todo.pop_back();
          if (!gone(v) || copies.count(v) || !needed.insert(made_by_[v]).second) continue;
          const Node& n = g_.nodes[made_by_[v]];
          todo.insert(todo.end(), n.operands.begin(), n.operands.end());
        }
        for (int k : needed) {
          const std::vector<ValueId> results = g_.nodes[k].results;
          out.push_back(copy_of(g_.nodes[k], region.size(), copies));
          for (size_t r = 0; r < results.size(); ++r)
            if (gone(results[r])) copies[results[r]] = out.back().results[r];
        }
        changed |= !needed.empty();
        replace(g_.nodes[i], copies);
      }
      out.push_back(g_.nodes[i]);
    }
    if (changed) g_.nodes = std::move(out);
    return changed;
  }

  static void replace(Node& n, const std::map<ValueId, ValueId>& copies) {
    for (ValueId& v : n.operands)
      if (auto it = copies.find(v); it != copies.end()) v = it->second;
  }

  Node copy_of(const Node& n, size_t depth, const std::map<ValueId, ValueId>& copies) {
    Node copy = clone_node(n);
    if (n.body) copy.body = std::shared_ptr<Graph>(n.body->clone());
    if (updates_statistics(n)) leave_statistics(copy);
    replace(copy, copies);
    for (ValueId& v : copy.results) v = g_.add_value(g_.type(v), g_.values[v].result_index);
    auto [it, added] = again_.emplace(std::pair{n.loc, depth}, 0);
    if (added) {
      it->second = static_cast<int32_t>(g_.locations.size());
      Location l = g_.locations[n.loc];
      l.backward = true;
      l.turn = static_cast<int>(depth) + 1;
      g_.locations.push_back(std::move(l));
    }
    copy.loc = it->second;
    return copy;
  }

  // The statistics were updated in forward.
  static void leave_statistics(Node& n) {
    std::vector<ValueId> operands;
    for (size_t i = 0; i < n.args.size(); ++i) {
      Arg& a = n.args.list[i];
      if (i == 3 || i == 4) a = Arg::none();
      if (!a.is_operand()) continue;
      operands.push_back(n.operands[static_cast<size_t>(a.i)]);
      a = Arg::operand(static_cast<int64_t>(operands.size()) - 1);
    }
    n.operands = std::move(operands);
  }

  Graph& g_;
  std::vector<int32_t> made_by_;
  std::map<std::pair<int32_t, size_t>, int32_t> again_;  // locations of repeated nodes
};

}  // namespace

bool recompute_regions(Graph& g, const PassContext& ctx) {
  const bool training = ctx.settings.get(kTraining), all = ctx.settings.get(kRecomputeAll);
  return training && Repeater(g).run(all);
}

}  // namespace tessera
