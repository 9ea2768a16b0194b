// SPDX-License-Identifier: Apache-2.0
// Every node gets the position of a task in the order of execution: pipeline stages forward, then
// backward from the last to the first; otherwise stretches of nodes on one IPU. A node never stands
// before what it reads, so the order is right whatever the annotations say. Requires the optimizer
// to be in the graph and runs before the passes, which see one task at a time.
#include "passes/partition.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "ops/flow.h"
#include "ops/op.h"

namespace tessera {
namespace {

constexpr int kFree = -1;  // a node of no position: made where it is needed

class Partitioner {
 public:
  Partitioner(const Graph& g, PartitionOptions options)
      : g_(g),
        options_(std::move(options)),
        made_by_(producers(g)),
        source_of_(g.values.size(), -1) {
    for (size_t i = 0; i < g.sources.size(); ++i)
      source_of_[g.sources[i].value] = static_cast<int>(i);
    for (const StateUpdate& u : g.updates)
      if (!per_micro_batch(u.state)) updated_.insert(u.state);
  }

  Partition run() {
    if (!has_several_locations()) options_.strategy = Strategy::kOne;
    exchanges_ = check_exchanges(g_, options_);
    if (exchanges_ || options_.strategy != Strategy::kOne)
      assign_positions();
    else
      position_.assign(g_.nodes.size(), 0);
    compress_positions();
    place_updates();
    find_kept();
    for (size_t t = 0; t < tasks_.size(); ++t) fill(static_cast<int>(t));
    add_outputs();
    add_channel_outputs();
    add_waits();
    add_groups();
    Partition out;
    for (Task& t : tasks_) {
      t.graph->nodes = std::move(t.builder->out);
      out.tasks.push_back({std::move(t.info), std::move(t.graph)});
    }
    out.channels = std::move(channels_);
    out.options = options_;
    return out;
  }

 private:
  struct Task {
    TaskInfo info;
    std::unique_ptr<Graph> graph;
    std::unique_ptr<Builder> builder;
    std::vector<ValueId> now;  // by value of the whole graph
  };

  // Each micro-batch in flight has its own; the engine sets them.
  bool per_micro_batch(ValueId v) const {
    const int s = source_of_[v];
    return s >= 0 && (g_.sources[s].kind == SourceKind::kRandom ||
                      g_.sources[s].kind == SourceKind::kMicroCount);
  }

  const Location* location(const Node& n) const {
    return n.loc < 0 ? nullptr : &g_.locations[n.loc];
  }

  bool is_exchange(int node) const { return node >= 0 && g_.nodes[node].op == Op::Exchange; }

  bool has_several_locations() {
    std::set<std::tuple<int, int, int>> locations;
    for (const Node& n : g_.nodes)
      if (const Location* l = location(n)) {
        locations.emplace(l->ipu, l->stage, l->phase);
        stages_.emplace(l->stage, 0);
        last_phase_ = std::max(last_phase_, l->phase);
      }
    int next = 0;
    for (auto& [stage, index] : stages_) index = next++;
    if (options_.strategy == Strategy::kPipelined) return stages_.size() > 1;
    return options_.strategy != Strategy::kOne && locations.size() > 1;
  }

  int stage_count() const { return static_cast<int>(stages_.size()); }

  void assign_positions() {
    position_.assign(g_.nodes.size(), 0);
    std::tuple<bool, int, int> stretch;
    int current = -1;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      int after = -1;  // everything it reads
      for (ValueId v : n.operands)
        if (made_by_[v] >= 0)
          after = std::max(after, position_[made_by_[v]] + is_exchange(made_by_[v]));
      const bool one = options_.strategy == Strategy::kOne;
      const Location* l = one ? nullptr : location(n);
      const bool small = n.bodies.empty() && is_pure(n) && n.op != Op::Exchange;
      if (after < 0 && small && (is_view(n.op) || n.operands.empty() || (!l && !one))) {
        position_[i] = kFree;
        continue;
      }
      int base = 0;
      if (l && options_.strategy == Strategy::kPipelined) {
        const int s = stages_.at(l->stage);
        base = l->backward ? 2 * stage_count() - 1 - s : s;
      } else if (l) {
        const bool backward = l->backward && options_.separate_backward;
        const bool phased = options_.strategy == Strategy::kPhased;
        std::tuple<bool, int, int> here{backward, phased ? l->phase : 0, l->ipu};
        if (current < 0 || here != stretch) ++current, stretch = here;
        base = current;
      }
      position_[i] = std::max({after, base, 0});
    }
  }

  // Positions without nodes are left out.
  void compress_positions() {
    std::map<int, int> index;
    for (int p : position_)
      if (p != kFree) index.emplace(p, 0);
    if (index.empty()) index.emplace(0, 0);  // a model without nodes is a task all the same
    int next = 0;
    for (auto& [p, i] : index) i = next++;
    for (int& p : position_)
      if (p != kFree) p = index.at(p);
    tasks_.resize(index.size());
    for (auto& [p, i] : index) tasks_[i].info.backward = is_backward(p);
    std::vector<bool> named(index.size(), false);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Location* l = location(g_.nodes[i]);
      if (options_.strategy == Strategy::kOne) break;
      if (position_[i] == kFree || !l || named[position_[i]]) continue;
      named[position_[i]] = true;
      TaskInfo& d = tasks_[position_[i]].info;
      d.ipu = l->ipu;
      d.stage = stages_.at(l->stage);
      if (options_.strategy != Strategy::kPipelined) d.backward = l->backward;
      d.phase = d.backward ? backward_phase(l->phase) : l->phase;
    }
    for (size_t t = 0; t < tasks_.size(); ++t) {
      Task& task = tasks_[t];
      TaskInfo& d = task.info;
      d.name = name_of(static_cast<int>(t));
      task.graph = std::make_unique<Graph>();
      task.graph->name = options_.strategy == Strategy::kOne && tasks_.size() == 1
                             ? g_.name
                             : fmt::format("{}.{}.ipu{}", g_.name, d.name, d.ipu);
      task.graph->locations = g_.locations;
      task.builder = std::make_unique<Builder>(*task.graph);
      task.now.assign(g_.values.size(), kNoValue);
    }
  }

  std::string name_of(int task) const {
    const TaskInfo& d = tasks_[task].info;
    const char* way = d.backward ? "bwd" : "fwd";
    switch (options_.strategy) {
      case Strategy::kOne:
        return tasks_.size() == 1 ? "model" : fmt::format("part{}", task);
      case Strategy::kPipelined:
        return fmt::format("stage{}.{}", d.stage, way);
      case Strategy::kPhased:
        return fmt::format("phase{}.{}.{}", d.phase, way, task);
      case Strategy::kSharded:
        return fmt::format("shard{}.{}", task, way);
    }
    return {};
  }

  // Backward goes through the phases in reverse, from the last one of forward on. In a phase of its
  // own it begins on the same IPUs, so one is left out.
  int backward_phase(int forward) const {
    if (options_.strategy != Strategy::kPhased) return forward;
    return 2 * last_phase_ - forward + (options_.separate_backward ? 2 : 0);
  }

  bool is_backward(int position) const {
    return options_.strategy == Strategy::kPipelined && position >= stage_count();
  }

  // States with a new value that a node reads, also through free nodes.
  std::set<ValueId> states_read(const Node& n) {
    std::set<ValueId> out;
    for (ValueId v : n.operands) out.merge(states_under(v));
    return out;
  }

  // A batch norm that only makes new running statistics of the old ones: what it normalizes with
  // comes from its input.
  bool normalizes(const Node& n) const {
    if (n.op != Op::BatchNorm) return false;
    const std::set<ValueId> statistics(n.results.begin() + 3, n.results.end());
    return std::none_of(g_.nodes.begin(), g_.nodes.end(), [&](const Node& user) {
      const Location* l = location(user);
      // Its gradient lists them too, for use in evaluation.
      return l && l->backward && user.op != Op::BatchNormGrad &&
             std::any_of(user.operands.begin(), user.operands.end(),
                         [&](ValueId v) { return statistics.count(v) > 0; });
    });
  }

  // A state is written when everything that reads its old value is done.
  void place_updates() {
    repeatable_.assign(g_.nodes.size(), true);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      std::set<ValueId> read = states_read(g_.nodes[i]);
      repeatable_[i] = options_.strategy == Strategy::kPipelined && is_pure(g_.nodes[i]) &&
                       (read.empty() || normalizes(g_.nodes[i]));
      if (position_[i] == kFree) {
        behind_[static_cast<int>(i)] = std::move(read);
        continue;
      }
      for (ValueId s : read) readers_[s].insert(position_[i]);
    }
    for (ValueId v : g_.outputs)
      for (ValueId s : states_under(v)) readers_[s].insert(0);
    // A new value may itself be made from other states when it is written.
    for (bool changed = true; changed;) {
      changed = false;
      for (const StateUpdate& u : g_.updates) {
        if (per_micro_batch(u.state)) continue;
        const int node = made_by_[u.value];
        int at = node < 0 ? 0 : std::max(position_[node], 0);
        if (!readers_[u.state].empty()) at = std::max(at, *readers_[u.state].rbegin());
        auto [it, added] = update_at_.emplace(u.state, at);
        changed |= added || it->second != at;
        it->second = at;
        for (ValueId s : states_under(u.value)) changed |= readers_[s].insert(at).second;
      }
    }
  }

  // Updated states that a value is, or that it is made from without having a position.
  std::set<ValueId> states_under(ValueId v) {
    if (updated_.count(v)) return {v};
    const int node = made_by_[v];
    return node >= 0 && position_[node] == kFree ? behind_[node] : std::set<ValueId>{};
  }

  // Values that are kept rather than recomputed: what a later stage of forward reads, and what the
  // user said.
  void find_kept() {
    kept_.assign(g_.values.size(), false);
    for (const Node& n : g_.nodes)
      if (n.op == Op::Copy && n.args.size() == 2) kept_[n.operands[0]] = true;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      if (position_[i] == kFree || tasks_[position_[i]].info.backward) continue;
      for (ValueId v : g_.nodes[i].operands) {
        const int j = made_by_[v];
        if (j >= 0 && position_[j] != kFree && position_[j] != position_[i]) kept_[v] = true;
      }
    }
  }

  bool made_again(int task, int node) const {
    const TaskInfo& here = tasks_[task].info;
    const TaskInfo& there = tasks_[position_[node]].info;
    if (!options_.recompute || options_.strategy != Strategy::kPipelined || !here.backward)
      return false;
    // Backward of the last stage follows its forward at once.
    if (there.backward || there.stage != here.stage || here.stage == stage_count() - 1)
      return false;
    if (!repeatable_[node]) return false;
    const std::vector<ValueId>& results = g_.nodes[node].results;
    return std::none_of(results.begin(), results.end(), [&](ValueId v) { return kept_[v]; });
  }

  // A view is made where it is needed, if what it looks at is no larger to send.
  bool looked_at_again(int node) const {
    const Node& n = g_.nodes[node];
    return is_view(n.op) && g_.type(n.operands[0]).bytes() <= g_.type(n.results[0]).bytes();
  }

  void fill(int t) {
    // What one task does not use is an input or a state all the same.
    if (options_.strategy == Strategy::kOne && t == 0)
      for (const Source& s : g_.sources) value(t, s.value);
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      if (position_[i] == t) add_node(t, static_cast<int>(i));
    for (const StateUpdate& u : g_.updates) {
      auto it = update_at_.find(u.state);
      if (it == update_at_.end() || it->second != t) continue;
      const ValueId next = value(t, u.value);
      if (TaskPort port; is_port(u.state, port)) {
        tasks_[t].graph->outputs.push_back(next);
        tasks_[t].info.outputs.push_back(std::move(port));
      } else {
        tasks_[t].graph->updates.push_back({value(t, u.state), next});
      }
    }
  }

  // What a task has of an exchange is what it gives.
  void add_exchange(int t, const Node& n) {
    const ValueId x = value(t, n.operands[0]);
    tasks_[t].now[n.results[0]] = tasks_[t].builder->copy(x, g_.type(n.results[0]));
  }

  void add_node(int t, int index) {
    if (is_exchange(index)) return add_exchange(t, g_.nodes[index]);
    Node n = clone_node(g_.nodes[index]);
    for (ValueId& v : n.operands) v = value(t, v);
    for (ValueId& v : n.results) {
      const ValueId old = v;
      v = tasks_[t].graph->add_value(g_.type(old), g_.values[old].result_index);
      tasks_[t].now[old] = v;
    }
    tasks_[t].builder->append(std::move(n));
  }

  // What stands for a value of the whole graph in a task.
  ValueId value(int t, ValueId v) {
    ValueId& known = tasks_[t].now[v];
    if (known != kNoValue) return known;
    const int node = made_by_[v];
    if (node < 0) return known = add_source(t, v);
    if (position_[node] == kFree || looked_at_again(node) || made_again(t, node)) {
      add_node(t, node);
      return tasks_[t].now[v];
    }
    invariant(position_[node] < t, "a task reads what a later one makes");
    const int channel = channel_of(v, position_[node], tasks_[t].info.ipu);
    std::vector<int>& readers = channels_[channel].readers;
    if (readers.empty() || readers.back() != t) readers.push_back(t);
    return known = add_port(t, v, {PortKind::kChannel, channel}, fmt::format("from{}", channel));
  }

  ValueId add_source(int t, ValueId v) {
    const Source& s = g_.sources[source_of_[v]];
    if (s.kind == SourceKind::kInput) {
      int index = 0;
      for (const Source& other : g_.sources) {
        if (other.value == v) break;
        index += other.kind == SourceKind::kInput;
      }
      return add_port(t, v, {PortKind::kInput, index}, s.name);
    }
    if (s.kind == SourceKind::kRandom) return add_port(t, v, {PortKind::kRng, 0}, s.name);
    if (s.kind == SourceKind::kMicroCount) return add_port(t, v, {PortKind::kCount, 0}, s.name);
    if (TaskPort port; is_port(v, port)) return add_port(t, v, std::move(port), state_name(s));
    return tasks_[t].graph->add_source(s, g_.type(v));
  }

  // States that a task does not see where they lie: those in streaming memory, and those of which
  // every replica has its own, because replicas take turns in a pipeline.
  bool is_port(ValueId v, TaskPort& port) const {
    const Source& s = g_.sources[source_of_[v]];
    port = {PortKind::kState, 0, -1, state_key(s)};
    if (options_.state_off_chip(s.kind, g_.type(v).shape)) return true;
    return options_.strategy == Strategy::kPipelined && options_.replicas > 1 &&
           updated_.count(v) > 0 && is_of_the_model(s.kind);
  }

  ValueId add_port(int t, ValueId v, TaskPort port, const std::string& name) {
    tasks_[t].info.inputs.push_back(port);
    return tasks_[t].graph->add_source(SourceKind::kInput, name, g_.type(v));
  }

  int channel_of(ValueId v, int from, int ipu) {
    auto [it, added] =
        channel_index_.emplace(std::pair{v, ipu}, static_cast<int>(channels_.size()));
    if (added) {
      ChannelDesc c;
      c.from = from;
      c.ipu = ipu;
      c.dtype = g_.type(v).dtype;
      c.shape = g_.type(v).shape;
      if (is_exchange(made_by_[v])) {
        const Args& args = g_.nodes[made_by_[v]].args;
        c.exchange_size = args.integer(1);
        c.exchange_stride = args.integer(2);
      }
      channels_.push_back(std::move(c));
    }
    return it->second;
  }

  void add_outputs() {
    for (size_t i = 0; i < g_.outputs.size(); ++i) {
      const ValueId v = g_.outputs[i];
      const int node = made_by_[v];
      const int t = node < 0 ? 0 : std::max(position_[node], 0);
      const ValueId here = value(t, v);
      tasks_[t].graph->outputs.push_back(here);
      tasks_[t].info.outputs.push_back({PortKind::kOutput, static_cast<int>(i)});
    }
  }

  // A value that leaves its task lies in a channel of its own IPU, and is copied to those of
  // others.
  void add_channel_outputs() {
    std::map<ValueId, std::vector<int>> leaving;
    for (auto& [key, channel] : channel_index_) leaving[key.first].push_back(channel);
    for (auto& [v, channels] : leaving) {
      Task& from = tasks_[position_[made_by_[v]]];
      const int home = channel_of(v, position_[made_by_[v]], from.info.ipu);
      from.graph->outputs.push_back(from.now[v]);
      from.info.outputs.push_back({PortKind::kChannel, home});
      for (int c : channels)
        if (c != home) from.info.copies.push_back({home, c});
    }
    for (ChannelDesc& c : channels_) {
      c.slots = slots_of(c);
      c.off_chip =
          !c.readers.empty() && options_.activations.off_chip(leaves_chip(c), product(c.shape));
    }
  }

  // Whether phased execution sends it off the chip until it is read.
  bool leaves_chip(const ChannelDesc& c) const {
    if (options_.strategy != Strategy::kPhased) return false;
    const TaskInfo& from = tasks_[c.from].info;
    switch (options_.liveness) {
      case Liveness::kAlwaysLive:
        return false;
      case Liveness::kOffChipAfterEachPhase:
        return true;
      default:
        return !from.backward && tasks_[c.readers.back()].info.backward;
    }
  }

  // Micro-batches that may be between the start of the task that writes and the end of the last
  // that reads. Stage s of S starts no more than S - s micro-batches before it takes the first one
  // back; gradients and results on their way to the next stage are buffered twice.
  int64_t slots_of(const ChannelDesc& c) const {
    if (exchanges_)
      return options_.replicas;  // all replicas are between two tasks at the same time
    if (options_.strategy != Strategy::kPipelined || c.readers.empty()) return 1;
    const TaskInfo& from = tasks_[c.from].info;
    const int last = c.readers.back();
    if (!from.backward && tasks_[last].info.backward) return stage_count() - from.stage;
    return last - c.from + 1;
  }

  void add_waits() {
    for (size_t t = 0; t < tasks_.size(); ++t) {
      std::map<int, int64_t> lags;
      auto wait = [&](int task, int64_t n) {
        auto [it, added] = lags.emplace(task, n);
        if (!added) it->second = std::min(it->second, n);
      };
      TaskInfo& d = tasks_[t].info;
      for (const TaskPort& p : d.inputs)
        if (p.kind == PortKind::kChannel) wait(channels_[p.index].from, 0);
      for (const ChannelDesc& c : channels_)
        if (c.from == static_cast<int>(t))
          for (int r : c.readers) wait(r, c.slots);
      // A state is read after it was written for the micro-batch before, and written after it was
      // read for this one.
      for (auto& [state, at] : update_at_)
        for (int reader : readers_[state]) {
          if (reader == at) continue;
          if (reader == static_cast<int>(t)) wait(at, 1);
          if (at == static_cast<int>(t)) wait(reader, 0);
        }
      for (auto [task, n] : lags) d.waits.push_back({task, n});
    }
  }

  // Neighbours of one phase on IPUs of their own that need nothing of each other.
  void add_groups() {
    size_t first = 0;
    for (size_t t = 1; t < tasks_.size(); ++t) {
      TaskInfo& d = tasks_[t].info;
      bool joins = options_.strategy == Strategy::kPhased;
      for (size_t u = first; u < t && joins; ++u) {
        const TaskInfo& other = tasks_[u].info;
        joins = other.phase == d.phase && other.ipu != d.ipu;
        for (const WaitDesc& w : d.waits) joins &= w.task != static_cast<int>(u) || w.lag > 0;
      }
      if (!joins) first = t;
      d.group = tasks_[t - 1].info.group + !joins;
    }
  }

  const Graph& g_;
  PartitionOptions options_;
  std::vector<int32_t> made_by_;
  std::vector<int> source_of_;
  bool exchanges_ = false;     // between replicas
  int last_phase_ = -1;        // of forward
  std::map<int, int> stages_;  // number in the annotations -> index among those there are
  std::vector<int> position_;
  std::vector<bool> repeatable_;
  std::vector<bool> kept_;
  std::set<ValueId> updated_;
  std::map<int, std::set<ValueId>> behind_;   // free node -> updated states it reads
  std::map<ValueId, std::set<int>> readers_;  // updated state -> positions
  std::map<ValueId, int> update_at_;
  std::vector<Task> tasks_;
  std::vector<ChannelDesc> channels_;
  std::map<std::pair<ValueId, int>, int> channel_index_;  // (value, ipu)
};

}  // namespace

Partition partition(const Graph& g, const PartitionOptions& options) {
  return Partitioner(g, options).run();
}

}  // namespace tessera
