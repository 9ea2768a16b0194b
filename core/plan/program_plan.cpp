// SPDX-License-Identifier: Apache-2.0
// The program of all tasks: an arena per IPU that its tasks share, memory for values between tasks,
// and what lies on chip or in streaming memory.
#include <algorithm>

#include "plan/planner.h"

namespace tessera {
namespace {

// A pass may have found that a task needs random numbers: those of its micro-batch.
void add_random_port(TaskGraph& task, StateTable& states) {
  int port = 0;
  for (Source& s : task.graph->sources) {
    if (s.kind == SourceKind::kRandom) {
      states.add(s, task.graph->type(s.value));
      s.kind = SourceKind::kInput;
      task.info.inputs.insert(task.info.inputs.begin() + port, {PortKind::kRng, 0});
    }
    port += s.kind == SourceKind::kInput;
  }
}

// Adds the states of a graph, with the locations they are to have.
void add_states(const Graph& g, const PartitionOptions& options, StateTable& states) {
  for (const Source& s : g.sources) {
    if (s.kind == SourceKind::kInput) continue;
    const TensorType& t = g.type(s.value);
    StateDesc& state = states.add(s, t);
    const LocationRule* rule = options.rule_of(s.kind);
    state.off_chip = options.state_off_chip(s.kind, t.shape);
    if (rule && rule->sharded && t.count() >= rule->min_sharded) state.shards = options.replicas;
  }
}

// The state, of those by ascending offset, that a reference into their region means.
size_t state_at(const std::vector<StateDesc>& states, const TensorRef& t) {
  auto it = std::upper_bound(states.begin(), states.end(), t.offset,
                             [](int64_t offset, const StateDesc& s) { return offset < s.offset; });
  return static_cast<size_t>(it - states.begin()) - 1;
}

// Weights lie where the first task that uses them runs, what belongs to them lies with them.
void place_states(Program& p) {
  std::vector<bool> placed(p.states.size(), false);
  auto place = [&](size_t state, int ipu) {
    if (!placed[state]) p.states[state].ipu = ipu;
    placed[state] = true;
  };
  for (const TaskDesc& task : p.tasks) {
    for (const auto* ports : {&task.inputs, &task.outputs})
      for (const TaskPort& port : *ports)
        if (port.kind == PortKind::kState) place(static_cast<size_t>(port.index), task.ipu);
    for (const StepDesc& step : task.section.steps)
      for (const auto* list : {&step.inputs, &step.outputs})
        for (const TensorRef& t : *list)
          if (t.region == kStateRegion) place(state_at(p.states, t), task.ipu);
  }
  std::unordered_map<std::string, int> ipu_of;  // by parameter
  for (const StateDesc& s : p.states)
    if (s.source.kind == SourceKind::kParam) ipu_of[s.name] = s.ipu;
  for (size_t i = 0; i < placed.size(); ++i)
    if (auto it = ipu_of.find(p.states[i].owner()); it != ipu_of.end()) place(i, it->second);
}

// Moves the states of each IPU together, those on chip and those in streaming memory.
void group_states(Program& p) {
  constexpr int64_t kPage = 4096;
  const std::vector<StateDesc> before = p.states;
  p.state_bytes = 0;
  for (int i = 0; i < static_cast<int>(p.ipus.size()); ++i)
    for (bool off_chip : {false, true}) {
      p.state_bytes = (p.state_bytes + kPage - 1) / kPage * kPage;
      (off_chip ? p.ipus[i].streaming_state_offset : p.ipus[i].state_offset) = p.state_bytes;
      for (StateDesc& s : p.states) {
        if (s.ipu != i || s.off_chip != off_chip) continue;
        s.offset = p.state_bytes;
        p.state_bytes += s.room();
      }
    }
  auto follow = [&](Section& section) {
    for (StepDesc& step : section.steps)
      for (auto* list : {&step.inputs, &step.outputs})
        for (TensorRef& t : *list) {
          if (t.region != kStateRegion) continue;
          const size_t s = state_at(before, t);
          t.offset += p.states[s].offset - before[s].offset;
        }
  };
  for (TaskDesc& task : p.tasks) follow(task.section);
  follow(p.update);
}

// Ports in streaming memory get memory on chip for as long as their task runs.
void place_ports(Program& p, const std::unordered_map<std::string, int>& states) {
  for (TaskDesc& task : p.tasks)
    for (auto* ports : {&task.inputs, &task.outputs})
      for (TaskPort& port : *ports) {
        if (port.kind == PortKind::kState) port.index = states.at(port.state);
        int64_t bytes = 0;
        if (port.kind == PortKind::kState)
          bytes = p.states[port.index].bytes();
        else if (port.kind == PortKind::kChannel && p.channels[port.index].off_chip)
          bytes = p.channels[port.index].slot_bytes();
        else
          continue;
        port.staging = task.staging_bytes;
        task.staging_bytes += whole_lines(bytes);
      }
}

void sum_up(Program& p, const PartitionOptions& options) {
  const bool ahead =
      options.strategy == Strategy::kPhased && options.liveness <= Liveness::kOffChipAfterFwd;
  std::vector<int64_t> before(p.ipus.size(), 0);
  for (const TaskDesc& task : p.tasks) {
    IpuDesc& ipu = p.ipus[task.ipu];
    ipu.arena_bytes = std::max(ipu.arena_bytes, task.arena_bytes);
    // What the next phase needs is loaded while this one runs, unless that is switched off.
    int64_t staging = task.staging_bytes + (ahead ? before[task.ipu] : 0);
    before[task.ipu] = task.staging_bytes;
    ipu.staging_bytes = std::max(ipu.staging_bytes, staging);
  }
  for (ChannelDesc& c : p.channels) {
    IpuDesc& ipu = p.ipus[c.ipu];
    int64_t& bytes = c.off_chip ? ipu.streaming_channel_bytes : ipu.channel_bytes;
    c.offset = bytes;
    bytes += c.slots * c.slot_bytes();
  }
  std::map<std::string, int64_t> streamed;  // by parameter: what its update needs on chip at once
  for (const StateDesc& s : p.states) {
    IpuDesc& ipu = p.ipus[s.ipu];
    const int64_t bytes = whole_lines((s.room() + s.shards - 1) / s.shards);
    (s.off_chip ? ipu.streaming_state_bytes : ipu.state_bytes) += bytes;
    if (!s.off_chip) continue;
    int64_t& together = streamed[s.owner()];
    together += bytes;
    ipu.staging_bytes = std::max(ipu.staging_bytes, together);
  }
}

}  // namespace

Program plan_program(const Graph& whole, Partition partition, Graph* update) {
  const PartitionOptions& options = partition.options;
  Program p;
  p.name = whole.name;
  p.pipelined = options.strategy == Strategy::kPipelined;
  for (const Source& s : whole.sources)
    if (s.kind == SourceKind::kInput) {
      const TensorType& t = whole.type(s.value);
      p.inputs.push_back({s.name, t.dtype, t.shape, true});
    }
  for (size_t i = 0; i < whole.outputs.size(); ++i) {
    const TensorType& t = whole.type(whole.outputs[i]);
    p.outputs.push_back({fmt::format("out{}", i), t.dtype, t.shape, true});
  }
  StateTable states;
  add_states(whole, options, states);
  const bool frozen = whole.updates.empty() && !update;
  for (TaskGraph& task : partition.tasks) {
    add_random_port(task, states);
    TaskDesc desc{std::move(task.info), {}, 0, 0};
    desc.arena_bytes = plan_section(*task.graph, states, frozen, desc.section);
    p.ipus.resize(std::max(p.ipus.size(), static_cast<size_t>(desc.ipu) + 1));
    p.tasks.push_back(std::move(desc));
  }
  p.channels = std::move(partition.channels);
  if (update) {
    p.update_arena_bytes = plan_section(*update, states, false, p.update);
    add_states(*update, options, states);
  }
  p.states = std::move(states.states);
  place_ports(p, states.index);
  place_states(p);
  group_states(p);
  sum_up(p, options);
  for (const IpuDesc& ipu : p.ipus)
    p.arena_bytes +=
        ipu.arena_bytes + ipu.channel_bytes + ipu.staging_bytes + ipu.streaming_channel_bytes;
  p.arena_bytes += std::max<int64_t>(p.update_arena_bytes - p.ipus.front().arena_bytes, 0);
  return p;
}

}  // namespace tessera
