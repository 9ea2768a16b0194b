// SPDX-License-Identifier: Apache-2.0
// Decides aliasing and emits the steps. A state's new value is written over the old one if every
// reader of the old one runs before (the scheduler is told so); a pointwise result takes the memory
// of an operand that dies there.
#include "plan/planner.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ops/flow.h"
#include "ops/physical.h"
#include "plan/step_work.h"

namespace tessera {
namespace {

// Whether `n` changes some elements of its first operand, of which none may be changed before it
// fails.
bool changes_some(const Node& n) {
  return has_fact(n.op, kUpdates) && !has_fact(n.op, kHalfway);
}

// Operands of `n` that it reads only at the index it writes: a region's direct operands, an
// epilogue's extra ones, what a scatter starts from.
bool elementwise_operand(const Node& n, size_t i) {
  if (has_fact(n.op, kUpdates)) return i == 0;
  if (!n.body) return false;
  if (n.op != Op::Fused && i < 2) return false;
  const Graph& body = *n.body;
  size_t source = n.op == Op::Fused ? i : i - 1;  // an epilogue's first source is the product
  const Dims& shape = body.type(body.sources[source].value).shape;
  Dims iteration;
  for (const Node& inner : body.nodes)
    if (is_pointwise(inner.op) && product(body.type(inner.results[0]).shape) >= product(iteration))
      iteration = body.type(inner.results[0]).shape;
  return shape == iteration;
}

// The carry of a loop that becomes its result `v`, and that it writes over where both share memory.
bool own_carry(const Node& n, size_t i, ValueId v) {
  return is_flow(n.op) && loop_parts(n.op, n.args).is_carry(i) && n.results[i] == v &&
         std::count(n.operands.begin(), n.operands.end(), n.operands[i]) == 1;
}

// Whether the node, or one in its bodies, is a function of a user.
bool calls_library(const Node& n) {
  if (n.op == Op::Custom) return true;
  for (const auto& body : n.bodies)
    if (std::any_of(body->nodes.begin(), body->nodes.end(), calls_library)) return true;
  return false;
}

// What the bodies of a node are planned to do.
struct BodyPlans {
  std::vector<std::shared_ptr<Section>> sections;
  int64_t arena_bytes = 0;  // of the larger
};

class SectionPlanner {
 public:
  SectionPlanner(Graph& g, StateTable& states, bool frozen)
      : g_(g), states_(states), frozen_(frozen) {}

  // Of a body whose first inputs are carries: states from turn to turn, which its first outputs
  // update. `fixed`: inputs that the program never writes.
  SectionPlanner(Graph& g, StateTable& states, size_t carries, const std::vector<bool>& fixed)
      : g_(g), states_(states), frozen_(true), body_(true) {
    for (size_t i = 0; i < fixed.size(); ++i)
      if (fixed[i]) fixed_sources_.insert(g.sources[i].value);
    for (size_t i = 0; i < carries; ++i) g_.updates.push_back({g_.sources[i].value, g_.outputs[i]});
    g_.outputs.erase(g_.outputs.begin(), g_.outputs.begin() + static_cast<int64_t>(carries));
  }

  int64_t plan(Section& out) {
    plan_bodies();
    place_sources();
    choose_in_place();
    order_ = schedule(g_, before_);
    resolve_values();
    const int64_t arena = assign_memory(out);
    emit(out);
    return arena;
  }

 private:
  void plan_bodies() {
    for (const Source& s : g_.sources)
      if (frozen_ && s.kind != SourceKind::kInput) fixed_sources_.insert(s.value);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      for (const std::shared_ptr<Graph>& body : n.bodies) {
        std::vector<bool> fixed;
        for (size_t k = first_body_operand(n.op); k < n.operands.size(); ++k)
          fixed.push_back(fixed_sources_.count(n.operands[k]) > 0);
        const size_t carries = loop_parts(n.op, n.args).carries;
        auto section = std::make_shared<Section>();
        const int64_t arena = SectionPlanner(*body, states_, carries, fixed).plan(*section);
        BodyPlans& plans = bodies_[static_cast<int>(i)];
        plans.arena_bytes = std::max(plans.arena_bytes, arena);
        plans.sections.push_back(std::move(section));
      }
    }
  }

  void place_sources() {
    place_.resize(g_.values.size());
    for (const Source& s : g_.sources) {
      TensorRef r = dense_ref(g_, s.value);
      if (s.kind == SourceKind::kInput) {
        r.region = first_output_region_++;
      } else {
        r.region = kStateRegion;
        r.offset = states_.add(s, g_.type(s.value)).offset;
        state_place_[s.value] = r;
      }
      place_[s.value] = r;
    }
    if (body_)
      for (const StateUpdate& u : g_.updates) state_place_[u.state] = place_[u.state];
  }

  // Whether the state may hold what `n` makes as it makes it. A carry may hold anything.
  bool writes_states(const Node& n) const {
    if (body_) return n.op != Op::HostCall && !is_view(n.op);
    return n.body || changes_some(n);
  }

  // For every state update: may its value be written straight into the state?
  void choose_in_place() {
    std::vector<int32_t> made_by = producers(g_);
    std::vector<std::vector<int>> next(g_.nodes.size());
    std::unordered_map<ValueId, std::vector<std::pair<int, size_t>>>
        readers;  // of the state itself or a view of it
    std::unordered_map<ValueId, ValueId> view_of;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      for (size_t k = 0; k < n.operands.size(); ++k) {
        ValueId v = n.operands[k];
        if (made_by[v] >= 0) next[made_by[v]].push_back(static_cast<int>(i));
        auto it = view_of.find(v);
        ValueId base = it == view_of.end() ? v : it->second;
        if (is_view(n.op)) view_of[n.results[0]] = base;
        // Reading through a view is never elementwise; SIZE_MAX says so.
        if (!is_view(n.op))
          readers[base].emplace_back(static_cast<int>(i), base == v ? k : SIZE_MAX);
      }
    }
    // The nodes that need what `from` makes, and itself; stops at `to`.
    auto followers = [&](int from, int to) {
      std::vector<int> todo{from};
      std::set<int> seen{from};
      while (!todo.empty()) {
        int i = todo.back();
        todo.pop_back();
        if (i == to) break;
        for (int k : next[i])
          if (seen.insert(k).second) todo.push_back(k);
      }
      return seen;
    };
    auto reaches = [&](int from, int to) { return followers(from, to).count(to) > 0; };
    // A function of a user may fail, and then no state may have been written: those come first.
    std::vector<int> fallible;
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      if (calls_library(g_.nodes[i])) fallible.push_back(static_cast<int>(i));
    for (const StateUpdate& u : g_.updates) {
      int writer = made_by[u.value];
      bool ok = writer >= 0 && writes_states(g_.nodes[writer]);
      std::vector<std::pair<int, int>> edges;
      for (auto [reader, operand] : readers[u.state]) {
        if (!ok) break;
        if (reader == writer)
          ok = operand != SIZE_MAX && (own_carry(g_.nodes[writer], operand, u.value) ||
                                       (elementwise_operand(g_.nodes[writer], operand) &&
                                        g_.type(u.value).shape == g_.type(u.state).shape));
        else if (reaches(writer, reader))
          ok = false;
        else
          edges.emplace_back(reader, writer);
      }
      for (ValueId o : g_.outputs) ok &= o != u.value;
      if (ok && !fallible.empty()) {
        const std::set<int> after = followers(writer, -1);
        for (int i : fallible) {
          ok &= after.count(i) == 0;
          edges.emplace_back(i, writer);
        }
      }
      if (!ok) {
        copy_at_end_.push_back(u);
        continue;
      }
      // The extra edges become part of the graph for the next updates: two of them together must
      // not make a cycle.
      for (auto [a, b] : edges) next[a].push_back(b);
      before_.insert(before_.end(), edges.begin(), edges.end());
      in_place_[u.value] = state_place_.at(u.state);
    }
  }

  void resolve_values() {
    step_of_.assign(g_.values.size(), -1);
    root_.resize(g_.values.size());
    for (size_t v = 0; v < root_.size(); ++v) root_[v] = static_cast<ValueId>(v);
    int step = 0;
    for (int i : order_) {
      const Node& n = g_.nodes[i];
      if (is_view(n.op)) {
        auto r = view_ref(g_, n, place_[n.operands[0]]);
        invariant(r.has_value(), "{} of {} has no alias", op_text(n.op),
                  to_string(g_.type(n.operands[0])));
        place_[n.results[0]] = *r;
        root_[n.results[0]] = root_[n.operands[0]];
        continue;
      }
      for (ValueId v : n.results) {
        place_[v] = dense_ref(g_, v);
        place_[v].region = kArenaRegion;
        step_of_[v] = step;
      }
      ++step;
    }
    steps_ = step;
    int region = first_output_region_;
    for (ValueId v : g_.outputs) fixed_[root_[v]] = region++;
    start_in_outputs();
  }

  // What a scatter into an output starts from is made in that output.
  void start_in_outputs() {
    std::vector<int> uses(g_.values.size(), 0);
    for (const Node& n : g_.nodes)
      for (ValueId v : n.operands) ++uses[root_[v]];
    const std::vector<int32_t> made_by = producers(g_);
    for (size_t i = order_.size(); i-- > 0;) {
      const Node& n = g_.nodes[order_[i]];
      if (!has_fact(n.op, kUpdates)) continue;
      const auto out = fixed_.find(n.results[0]);
      const ValueId x = n.operands[0];
      if (out == fixed_.end() || root_[x] != x || made_by[x] < 0 || uses[x] != 1) continue;
      if (fixed_.count(x) || in_place_.count(x) || g_.nodes[made_by[x]].op == Op::HostCall)
        continue;
      if (g_.type(x).strides() == g_.type(n.results[0]).strides()) fixed_[x] = out->second;
    }
  }

  int64_t assign_memory(Section& out) {
    // Last step that touches each root.
    std::vector<int> last(g_.values.size(), -1);
    int step = 0;
    for (int i : order_) {
      const Node& n = g_.nodes[i];
      if (is_view(n.op)) continue;
      for (ValueId v : n.operands) last[root_[v]] = step;
      for (ValueId v : n.results) last[v] = std::max(last[v], step);
      ++step;
    }
    for (const StateUpdate& u : copy_at_end_) last[root_[u.value]] = steps_;

    std::vector<Lifetime> lives;
    std::vector<int> buffer_of(g_.values.size(), -1);
    std::vector<int64_t> offsets;
    step = 0;
    for (int i : order_) {
      const Node& n = g_.nodes[i];
      if (is_view(n.op)) continue;
      std::set<int> given;  // buffers already handed to a result of this node
      for (ValueId v : n.results) {
        if (in_place_.count(v) || fixed_.count(v)) continue;
        int shared = dying_operand(n, v, step, last, buffer_of, lives, given);
        if (shared >= 0) {
          lives[shared].last = last[v];
          given.insert(shared);
          buffer_of[v] = shared;
          continue;
        }
        buffer_of[v] = static_cast<int>(lives.size());
        lives.push_back({g_.type(v).bytes(), step, last[v]});
      }
      if (auto it = bodies_.find(i); it != bodies_.end() && it->second.arena_bytes > 0) {
        workspace_[i] = static_cast<int64_t>(lives.size());
        lives.push_back({it->second.arena_bytes, step, step});
      }
      ++step;
    }
    const int64_t arena = assign_offsets(lives, offsets);
    for (size_t b = 0; b < lives.size(); ++b)
      out.buffers.push_back({offsets[b], lives[b].bytes, lives[b].first, lives[b].last});
    for (auto& [node, at] : workspace_) at = offsets[static_cast<size_t>(at)];
    // Addresses of produced values, then of their views.
    for (int i : order_) {
      const Node& n = g_.nodes[i];
      if (is_view(n.op)) {
        place_[n.results[0]] = *view_ref(g_, n, place_[n.operands[0]]);
        continue;
      }
      for (ValueId v : n.results) {
        if (auto it = in_place_.find(v); it != in_place_.end()) {
          place_[v].region = it->second.region;
          place_[v].offset = it->second.offset;
        } else if (auto f = fixed_.find(v); f != fixed_.end()) {
          place_[v].region = f->second;
          place_[v].offset = 0;
        } else {
          place_[v].offset = offsets[buffer_of[v]];
        }
      }
    }
    return arena;
  }

  // An operand's buffer that dies at this step and that the op reads elementwise in the very layout
  // of `v`.
  int dying_operand(const Node& n, ValueId v, int step, const std::vector<int>& last,
                    const std::vector<int>& buffer_of, const std::vector<Lifetime>& lives,
                    const std::set<int>& given) const {
    for (size_t k = 0; k < n.operands.size(); ++k) {
      ValueId o = n.operands[k];
      int b = buffer_of[o];
      if (b < 0 || root_[o] != o || last[o] != step || lives[b].last != step || given.count(b))
        continue;
      if (!elementwise_operand(n, k) && !own_carry(n, k, v)) continue;
      if (g_.type(o).bytes() != g_.type(v).bytes() || g_.type(o).shape != g_.type(v).shape)
        continue;
      if (g_.type(o).strides() != g_.type(v).strides() ||
          size_of(g_.type(o).dtype) != size_of(g_.type(v).dtype))
        continue;
      bool alone = true;  // no other operand may look at the same memory in another way
      for (size_t j = 0; j < n.operands.size(); ++j)
        if (j != k && (root_[n.operands[j]] == o || (buffer_of[root_[n.operands[j]]] == b)))
          alone = false;
      if (alone) return b;
    }
    return -1;
  }

  static std::string body_text(const Node& n) {
    return n.body ? print_graph(*n.body) : std::string();
  }

  // Results without elements. A host call may still have an effect.
  bool has_nothing_to_do(const Node& n) const {
    return !calls_host(n) && std::all_of(n.results.begin(), n.results.end(),
                                         [&](ValueId v) { return g_.type(v).count() == 0; });
  }

  void add_bodies(int node, StepDesc& s) const {
    auto it = bodies_.find(node);
    if (it == bodies_.end()) return;
    s.bodies.assign(it->second.sections.begin(), it->second.sections.end());
    auto at = workspace_.find(node);
    s.workspace = {DType::U8,
                   {it->second.arena_bytes},
                   {1},
                   kArenaRegion,
                   at == workspace_.end() ? 0 : at->second};
  }

  void emit(Section& out) {
    for (int i : order_) {
      const Node& n = g_.nodes[i];
      if (is_view(n.op) || has_nothing_to_do(n)) continue;
      StepDesc s;
      s.op = n.op;
      s.target = n.target;
      s.args = n.args;
      for (ValueId v : n.operands) s.inputs.push_back(place_[v]);
      for (ValueId v : n.results) s.outputs.push_back(place_[v]);
      s.fixed_weights = n.op == Op::Convolution && fixed_sources_.count(root_[n.operands[1]]) > 0;
      s.body = body_text(n);
      s.where = describe_location(g_, n.loc);
      add_bodies(i, s);
      out.work.push_back(s.bodies.empty() ? work_of(g_, n)
                                          : work_of_bodies(n, bodies_.at(i).sections));
      if (n.loc >= 0) out.work.back().available_memory = g_.locations[n.loc].memory;
      out.steps.push_back(std::move(s));
    }
    for (const StateUpdate& u : copy_at_end_)
      emit_copy(out, place_[u.value], state_place_.at(u.state));
  }

  void emit_copy(Section& out, const TensorRef& from, const TensorRef& to) {
    Graph body;
    body.name = "region";
    ValueId x = body.add_source(SourceKind::kInput, "i0", {from.dtype, from.shape, {}});
    Builder b(body);
    body.outputs = {b.add(Op::Copy, {x}, {to.dtype, to.shape, {}})};
    body.nodes = std::move(b.out);
    StepDesc s;
    s.op = Op::Fused;
    s.args.list = {Arg::operand(0)};
    s.inputs = {from};
    s.outputs = {to};
    s.body = print_graph(body);
    out.steps.push_back(std::move(s));
    out.work.push_back({WorkKind::kCopy, 0, from.bytes() + to.bytes()});
  }

  Graph& g_;
  StateTable& states_;
  bool frozen_;  // nothing writes the states
  bool body_ = false;
  std::set<ValueId> fixed_sources_;              // that the program never writes
  std::unordered_map<int, BodyPlans> bodies_;    // by node
  std::unordered_map<int, int64_t> workspace_;   // by node: in the arena, for its bodies
  int first_output_region_ = kFirstInputRegion;  // after the inputs
  std::vector<TensorRef> place_;
  std::unordered_map<ValueId, TensorRef> state_place_;
  std::unordered_map<ValueId, TensorRef> in_place_;
  std::unordered_map<ValueId, int> fixed_;  // outputs: region
  std::vector<StateUpdate> copy_at_end_;
  std::vector<std::pair<int, int>> before_;
  std::vector<int> order_, step_of_;
  std::vector<ValueId> root_;
  int steps_ = 0;
};

}  // namespace

StateDesc& StateTable::add(const Source& s, const TensorType& t) {
  auto [it, added] = index.emplace(state_key(s), static_cast<int>(states.size()));
  if (added) {
    std::string name = state_name(s);
    while (!names_.insert(name).second) name += "'";
    states.push_back({std::move(name), t.dtype, t.shape, bytes, s});
    bytes += states.back().room();
  }
  return states[it->second];
}

int64_t plan_section(Graph& g, StateTable& states, bool frozen, Section& out) {
  return SectionPlanner(g, states, frozen).plan(out);
}

}  // namespace tessera
