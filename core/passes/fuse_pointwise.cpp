// SPDX-License-Identifier: Apache-2.0
// Groups pointwise ops of one iteration shape, and the reductions at their ends, into `fused` nodes
// that codegen compiles to one loop each. Requires orders and copies to be final. A group never
// contains two ops with a path between them that leaves the group, so the graph of groups stays
// acyclic. A cheap op on one large tensor is repeated in the groups that read it instead of being
// written to memory for them.
#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>

#include "passes/pass.h"

namespace tessera {
namespace {

constexpr int kMaxNodes = 64;              // keeps compile time of one kernel in milliseconds
constexpr int kMaxPointers = 24;           // operands + results of one kernel
constexpr int kCheapFlops = 4;             // of an op that is repeated rather than written and read
constexpr int64_t kRepeatBytes = 1 << 16;  // below that memory costs nothing
constexpr int kAnyTurn = -1;

// Opaque numbers are only copied, by codegen if there is but one (else by joining).
bool codegen_type(const TensorType& t, Op op) {
  return class_of(t.dtype) != DTypeClass::kOpaque || (op == Op::Copy && t.rank() == 0);
}

struct Unit {
  std::vector<int> nodes;    // sorted
  std::vector<int> repeats;  // cheap nodes of other units that this one does again
  Dims shape;                // iteration space; meaningful for fusible units
  bool fusible = false;
  std::vector<int64_t> reduced;  // dims its reductions run over; one set per group
  bool reduces = false;
  int turn = kAnyTurn;  // see Location; backward goes with any
  int first() const { return nodes.front(); }
  int last() const { return nodes.back(); }
};

class Fuser {
 public:
  explicit Fuser(Graph& g)
      : g_(g), producer_(producers(g)), consumers_(g.nodes.size()), unit_of_(g.nodes.size()) {
    for (int i = 0; i < count(); ++i)
      for (ValueId v : g.nodes[i].operands)
        if (producer_[v] >= 0) consumers_[producer_[v]].push_back(i);
    for (int i = 0; i < count(); ++i) {
      Unit u;
      u.nodes = {i};
      u.fusible = fusible(g.nodes[i]);
      u.turn = turn_of(g.nodes[i]);
      if (u.fusible) u.shape = iteration_shape(g.nodes[i]);
      if (u.fusible && has_fact(g.nodes[i].op, kFuses)) {
        u.reduces = true;
        u.reduced = reduced_dims(g.nodes[i]);
      }
      unit_of_[i] = i;
      units_.push_back(std::move(u));
    }
  }

  bool run(bool unfused) {
    for (int i = 0; i < count() && !unfused; ++i) {
      const Node& n = g_.nodes[i];
      if (!units_[unit_of_[i]].fusible) continue;
      for (ValueId v : n.operands)
        if (producer_[v] >= 0) try_merge(unit_of_[producer_[v]], unit_of_[i]);
      for (ValueId v : n.operands) merge_with_readers(i, v);
      for (ValueId v : n.operands) readers_[v].push_back(i);
    }
    uses_ = use_counts(g_);
    for (int i = count(); i-- > 0 && !unfused;)
      repeat_if_cheap(i);  // readers first: they bring new readers
    return rebuild();
  }

 private:
  int count() const { return static_cast<int>(g_.nodes.size()); }

  // What is made again for backward must not be made early, with forward.
  int turn_of(const Node& n) const {
    if (n.loc < 0) return kAnyTurn;
    const Location& l = g_.locations[n.loc];
    return l.backward && l.turn == 0 ? kAnyTurn : l.turn;
  }

  bool fusible(const Node& n) const {
    for (ValueId v : n.operands)
      if (!codegen_type(g_.type(v), n.op)) return false;
    for (ValueId v : n.results)
      if (!codegen_type(g_.type(v), n.op) || g_.type(v).count() == 0) return false;
    if (has_fact(n.op, kFuses))
      return is_float(g_.type(n.operands[0]).dtype) && g_.type(n.operands[0]).count() > 0;
    return is_pointwise(n.op);
  }
  Dims iteration_shape(const Node& n) const {
    return is_pointwise(n.op) ? g_.type(n.results[0]).shape : g_.type(n.operands[0]).shape;
  }

  std::vector<int64_t> reduced_dims(const Node& n) const {
    int64_t rank = g_.type(n.operands[0]).rank();
    std::vector<int64_t> dims = n.args.ints(1);
    for (int64_t& d : dims)
      if (d < 0) d += rank;
    if (dims.empty())
      for (int64_t d = 0; d < rank; ++d) dims.push_back(d);
    std::sort(dims.begin(), dims.end());
    return dims;
  }

  // A reduction may end a group but nothing in the group may read it.
  bool reads_reduction(const Unit& from, const Unit& to) const {
    for (int i : to.nodes)
      for (ValueId v : g_.nodes[i].operands) {
        int p = producer_[v];
        if (p >= 0 && has_fact(g_.nodes[p].op, kFuses) &&
            std::binary_search(from.nodes.begin(), from.nodes.end(), p))
          return true;
      }
    return false;
  }

  // A region draws random numbers with keys that lie in memory and that nothing else of it reads.
  bool uses_key(const Unit& draws, const Unit& other) const {
    std::set<ValueId> keys;
    for (int i : draws.nodes)
      if (g_.nodes[i].op == Op::Uniform) keys.insert(g_.nodes[i].operands[0]);
    for (int i : other.nodes) {
      const Node& n = g_.nodes[i];
      if (keys.count(n.results[0])) return true;
      for (ValueId v : n.operands)
        if (n.op != Op::Uniform && keys.count(v)) return true;
    }
    return false;
  }

  int pointers(const Unit& a, const Unit& b) const {
    std::set<int> members(a.nodes.begin(), a.nodes.end());
    members.insert(b.nodes.begin(), b.nodes.end());
    std::set<ValueId> in, out;
    for (int i : members) {
      for (ValueId v : g_.nodes[i].operands)
        if (producer_[v] < 0 || !members.count(producer_[v])) in.insert(v);
      for (int c : consumers_[i])
        if (!members.count(c)) out.insert(g_.nodes[i].results[0]);
    }
    return static_cast<int>(in.size() + out.size());
  }

  // A path from `from` to `to` that goes through a third unit.
  bool path_outside(int from, int to) const {
    std::vector<int> todo{from};
    std::vector<bool> seen(units_.size(), false);
    seen[from] = true;
    bool first = true;
    while (!todo.empty()) {
      int u = todo.back();
      todo.pop_back();
      for (int i : units_[u].nodes)
        for (int c : consumers_[i]) {
          int w = unit_of_[c];
          if (w == to) {
            if (!first) return true;
            continue;
          }
          if (seen[w] || units_[w].first() > units_[to].last()) continue;
          seen[w] = true;
          todo.push_back(w);
        }
      first = false;
    }
    return false;
  }

  void try_merge(int a, int b) {
    if (a == b) return;
    const Unit &ua = units_[a], &ub = units_[b];
    if (!ua.fusible || !ub.fusible || ua.shape != ub.shape) return;
    if (ua.reduces && ub.reduces && ua.reduced != ub.reduced) return;
    if (ua.turn != ub.turn && ua.turn != kAnyTurn && ub.turn != kAnyTurn) return;
    if (static_cast<int>(ua.nodes.size() + ub.nodes.size()) > kMaxNodes) return;
    if (reads_reduction(ua, ub) || reads_reduction(ub, ua)) return;
    if (uses_key(ua, ub) || uses_key(ub, ua)) return;
    if (path_outside(a, b) || path_outside(b, a)) return;
    if (pointers(ua, ub) > kMaxPointers) return;
    std::vector<int> merged;
    std::merge(ua.nodes.begin(), ua.nodes.end(), ub.nodes.begin(), ub.nodes.end(),
               std::back_inserter(merged));
    for (int i : ub.nodes) unit_of_[i] = a;
    units_[a].turn = std::max(ua.turn, ub.turn);
    units_[b].nodes.clear();
    units_[b].fusible = false;
    if (ub.reduces) {
      units_[a].reduces = true;
      units_[a].reduced = ub.reduced;
    }
    units_[a].nodes = std::move(merged);
  }

  // A reduction and another group of that shape that read one value join: one pass over the data
  // for both.
  void merge_with_readers(int i, ValueId v) {
    auto it = readers_.find(v);
    if (it == readers_.end()) return;
    for (int r : it->second)
      if (has_fact(g_.nodes[i].op, kFuses) || has_fact(g_.nodes[r].op, kFuses))
        try_merge(unit_of_[r], unit_of_[i]);
  }

  bool widens(const Node& n) const {
    return n.op == Op::Cast &&
           size_of(g_.type(n.operands[0]).dtype) < size_of(g_.type(n.results[0]).dtype);
  }

  // Reading the large operand of `i` costs a reader as much as reading its result does, and the
  // result need not be written.
  void repeat_if_cheap(int i) {
    const Node& n = g_.nodes[i];
    // Copies were put there to bring memory into order.
    if (!is_pointwise(n.op) || n.op == Op::Copy || pointwise_flops(n.op) > kCheapFlops) return;
    const ValueId v = n.results[0];
    const TensorType& t = g_.type(v);
    if (!units_[unit_of_[i]].fusible || t.bytes() < kRepeatBytes) return;
    int large = 0;
    for (ValueId u : n.operands) {
      const TensorType& s = g_.type(u);
      if (s.bytes() * 16 <= t.bytes()) continue;
      const int p = producer_[u];
      if (p >= 0 && is_view(g_.nodes[p].op)) return;
      // What the unit makes is written for the readers: good only if it is half as large. A cast
      // before `i` goes with it.
      if (p >= 0 && unit_of_[p] == unit_of_[i] && !widens(n) && !widens(g_.nodes[p])) return;
      if (++large > 1 || s.bytes() > t.bytes() || s.shape != t.shape || s.order != t.order) return;
    }
    std::set<int> readers;
    int32_t inner = 0, outer = 0;
    for (int c : consumers_[i]) {
      const int u = unit_of_[c];
      if (u == unit_of_[i]) {
        ++inner;
        continue;
      }
      if (!units_[u].fusible || units_[u].shape != t.shape ||
          static_cast<int>(units_[u].nodes.size()) >= kMaxNodes ||
          pointers(units_[u], units_[u]) >= kMaxPointers - 2)
        return;
      readers.insert(u);
      ++outer;
    }
    for (int u : repeat_reads_[v]) {
      readers.insert(u);
      ++outer;
    }
    if (outer == 0 || inner + outer != uses_[v]) return;  // else it is written for others anyway
    uses_[v] -= outer;
    for (int u : readers) {
      units_[u].repeats.insert(units_[u].repeats.begin(), i);
      for (ValueId o : n.operands) {
        repeat_reads_[o].push_back(u);
        ++uses_[o];
      }
    }
  }

  bool rebuild() {
    // Order of units: every unit after the units it reads; ties by position.
    std::vector<std::set<int>> after(units_.size());
    std::vector<int> waiting(units_.size(), 0);
    for (int i = 0; i < count(); ++i)
      for (int c : consumers_[i])
        if (unit_of_[c] != unit_of_[i] && after[unit_of_[i]].insert(unit_of_[c]).second)
          ++waiting[unit_of_[c]];
    using Item = std::pair<int, int>;
    std::priority_queue<Item, std::vector<Item>, std::greater<>> ready;
    auto push = [&](int u) { ready.emplace(units_[u].last(), u); };
    for (size_t u = 0; u < units_.size(); ++u)
      if (!units_[u].nodes.empty() && waiting[u] == 0) push(static_cast<int>(u));
    std::vector<Node> out;
    bool changed = false;
    while (!ready.empty()) {
      int u = ready.top().second;
      ready.pop();
      for (int next : after[u])
        if (--waiting[next] == 0) push(next);
      if (units_[u].fusible && !stands_alone(units_[u])) {
        out.push_back(fuse(units_[u]));
        if (out.back().results.empty()) out.pop_back();  // its readers do its work
        changed = true;
      } else {
        out.push_back(std::move(g_.nodes[units_[u].nodes[0]]));
      }
    }
    g_.nodes = std::move(out);
    return changed;
  }

  // A lone reduction has a kernel that was compiled ahead of time; half precision it would copy.
  bool stands_alone(const Unit& u) const {
    const Node& n = g_.nodes[u.nodes[0]];
    return u.nodes.size() == 1 && u.repeats.empty() && has_fact(n.op, kFuses) &&
           size_of(g_.type(n.operands[0]).dtype) >= 4;
  }

  Node fuse(const Unit& u) {
    Node f;
    f.op = Op::Fused;
    f.body = std::make_shared<Graph>();
    f.body->name = "region";
    std::unordered_map<ValueId, ValueId> inside;
    std::unordered_map<ValueId, int32_t> inner_uses;
    auto add = [&](const Node& n) {
      for (ValueId v : n.operands) {
        ++inner_uses[v];
        if (inside.count(v)) continue;
        inside[v] = f.body->add_source(SourceKind::kInput, fmt::format("i{}", f.operands.size()),
                                       {g_.type(v).dtype, g_.type(v).shape, {}});
        f.args.list.push_back(Arg::operand(static_cast<int64_t>(f.operands.size())));
        f.operands.push_back(v);
      }
      Node copy;
      copy.op = n.op;
      copy.args = n.args;
      for (ValueId v : n.operands) copy.operands.push_back(inside.at(v));
      ValueId r = n.results[0];
      inside[r] = f.body->add_value({g_.type(r).dtype, g_.type(r).shape, {}});
      copy.results = {inside[r]};
      f.body->nodes.push_back(std::move(copy));
    };
    for (int i : u.repeats) add(g_.nodes[i]);
    for (int i : u.nodes) {
      add(g_.nodes[i]);
      if (f.loc < 0) f.loc = g_.nodes[i].loc;
    }
    for (int i : u.nodes) {
      ValueId r = g_.nodes[i].results[0];
      if (uses_[r] == inner_uses[r]) continue;
      f.body->outputs.push_back(inside.at(r));
      f.results.push_back(r);
    }
    for (size_t i = 0; i < f.results.size(); ++i)
      g_.values[f.results[i]].result_index = static_cast<int32_t>(i);
    return f;
  }

  Graph& g_;
  std::vector<int32_t> producer_;
  std::vector<std::vector<int>> consumers_;
  std::vector<int> unit_of_;
  std::vector<Unit> units_;
  std::unordered_map<ValueId, std::vector<int>> readers_;
  std::vector<int32_t> uses_;  // of values, as the fused graph will have them
  std::unordered_map<ValueId, std::vector<int>> repeat_reads_;  // units that read it for a repeat
};

}  // namespace

bool fuse_pointwise(Graph& g, const PassContext& ctx) {
  dce(g, ctx);
  return Fuser(g).run(ctx.unfused);
}

}  // namespace tessera
