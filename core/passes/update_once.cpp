// SPDX-License-Identifier: Apache-2.0
// Updates that belong to the weight update and not to a micro-batch (`update %s %v once`). What is
// made of states alone is computed in the update; a value that a micro-batch makes is kept for it,
// so the update has that of the last one.
#include "passes/update_once.h"

#include <algorithm>
#include <map>

#include "ops/flow.h"
#include "ops/op.h"
#include "passes/optimizer_terms.h"

namespace tessera {
namespace {

class Mover {
 public:
  Mover(Graph& g, Graph& update, Builder& there)
      : g_(g), update_(update), there_(there), made_by_(producers(g)) {
    for (const Source& s : g.sources) source_of_[s.value] = s;
  }

  void move(const StateUpdate& u) {
    owner_ = source_of_.at(u.state).name;
    const ValueId state = value(u.state);
    update_.updates.push_back({state, value(u.value)});
  }

 private:
  bool is_state(ValueId v) const {
    auto it = source_of_.find(v);
    if (it == source_of_.end()) return false;
    const SourceKind kind = it->second.kind;
    return kind != SourceKind::kInput && kind != SourceKind::kRandom &&
           kind != SourceKind::kMicroCount;
  }

  // Whether it can be made from states alone.
  bool of_states(ValueId v) {
    auto [it, added] = of_states_.emplace(v, false);
    if (!added) return it->second;
    const int node = made_by_[v];
    bool found = node < 0 && is_state(v);
    if (node >= 0) {
      const Node& n = g_.nodes[node];
      found = is_pure(n) && n.bodies.empty() &&
              std::all_of(n.operands.begin(), n.operands.end(),
                          [&](ValueId o) { return of_states(o); });
    }
    return of_states_[v] = found;
  }

  // What stands for a value of the micro-batch in the update.
  ValueId value(ValueId v) {
    if (auto it = there_of_.find(v); it != there_of_.end()) return it->second;
    const int node = made_by_[v];
    if (node < 0 && is_state(v)) return there_of_[v] = state(source_of_.at(v), g_.type(v));
    if (node < 0 || !copies(g_.nodes[node])) return there_of_[v] = kept(v);
    Node n = clone_node(g_.nodes[node]);
    for (ValueId& o : n.operands) o = value(o);
    for (ValueId& r : n.results) {
      const ValueId old = r;
      r = update_.add_value(g_.type(old), g_.values[old].result_index);
      there_of_[old] = r;
    }
    there_.append(std::move(n));
    return there_of_.at(v);
  }

  // Computed in the update: what needs no micro-batch, and element-wise work on states and what a
  // micro-batch makes, of which then less has to be kept.
  bool copies(const Node& n) {
    if (!is_pure(n) || !n.bodies.empty()) return false;
    return of_states(n.results[0]) ||
           (is_pointwise(n.op) && std::any_of(n.operands.begin(), n.operands.end(),
                                              [&](ValueId o) { return on_states(o); }));
  }
  bool on_states(ValueId v) {
    auto [it, added] = on_states_.emplace(v, false);
    if (!added) return it->second;
    const bool found = of_states(v) || (made_by_[v] >= 0 && copies(g_.nodes[made_by_[v]]));
    return on_states_[v] = found;
  }

  ValueId state(const Source& s, const TensorType& t) {
    for (const Source& other : update_.sources)
      if (state_key(other) == state_key(s)) return other.value;
    return update_.add_source(s, TensorType{t.dtype, t.shape, {}});
  }

  // A state that every micro-batch writes.
  ValueId kept(ValueId v) {
    const TensorType t{g_.type(v).dtype, g_.type(v).shape, {}};
    user_check(is_float(t.dtype),
               "[state] the update of \"{}\" once per weight update reads {} of a micro-batch, "
               "where it can keep floats only",
               owner_, to_string(t));
    const Source s{SourceKind::kAccumulator, kNoValue, fmt::format("last{}", count_++), owner_};
    g_.updates.push_back({add_state(g_, s, t), v});
    return update_.add_source(s, t);
  }

  Graph& g_;
  Graph& update_;
  Builder& there_;
  std::vector<int32_t> made_by_;
  std::map<ValueId, Source> source_of_;
  std::map<ValueId, bool> of_states_, on_states_;
  std::map<ValueId, ValueId> there_of_;
  std::string owner_;
  int count_ = 0;
};

}  // namespace

bool has_updates_once(const Graph& g) {
  return std::any_of(g.updates.begin(), g.updates.end(),
                     [](const StateUpdate& u) { return u.once; });
}

void move_updates_once(Graph& g, Graph& update, Builder& there) {
  std::vector<StateUpdate> once, rest;
  for (const StateUpdate& u : g.updates) (u.once ? once : rest).push_back(u);
  g.updates = std::move(rest);
  if (!once.empty()) update.locations = g.locations;
  Mover mover(g, update, there);
  for (const StateUpdate& u : once) mover.move(u);
}

}  // namespace tessera
