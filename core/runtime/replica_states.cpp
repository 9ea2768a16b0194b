// SPDX-License-Identifier: Apache-2.0
#include "runtime/replica_states.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

namespace tessera {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

bool writes(const Section& section, const StateDesc& s) {
  for (const StepDesc& step : section.steps)
    for (const TensorRef& t : step.outputs)
      if (t.region == kStateRegion && t.offset >= s.offset && t.offset < s.offset + s.bytes())
        return true;
  return false;
}

bool written_by_port(const Program& program, const StateDesc& s) {
  for (const TaskDesc& task : program.tasks)
    for (const TaskPort& p : task.outputs)
      if (p.kind == PortKind::kState && &program.states[p.index] == &s) return true;
  return false;
}

bool written_by_micro(const Program& program, const StateDesc& s) {
  for (const TaskDesc& task : program.tasks)
    if (writes(task.section, s)) return true;
  return written_by_port(program, s);
}

// Trained parameters that the model writes by itself as well. Replicas may write different values,
// so each goes on with its own: it updates them and keeps what belongs to the update, from the
// gradients that all have in common.
std::set<std::string> written_weights(const Program& program) {
  std::set<std::string> out;
  for (const StateDesc& s : program.states)
    if (is_of_the_model(s.source.kind) && writes(program.update, s) && written_by_micro(program, s))
      out.insert(s.name);
  return out;
}

}  // namespace

ReplicaStates::ReplicaStates(const Program& program, const RunConfig& config, std::byte* state)
    : state_(state), replicas_(config.replicas) {
  if (replicas_ <= 1) return;
  const auto written = written_weights(program);
  int64_t at = 0, saved = 0;
  for (const StateDesc& s : program.states) {
    const bool in_micro = written_by_micro(program, s);
    const bool own = written.count(s.owner()) > 0 && s.source.kind != SourceKind::kAccumulator;
    Copied c{s.offset, s.bytes(), at, replicas_, 1, false, false, true, own};
    auto it = std::find_if(config.grouped.begin(), config.grouped.end(),
                           [&](const GroupedParam& p) { return s.owner() == p.name; });
    if (it != config.grouped.end()) {
      c.group_size = it->group_size;
      c.groups = replicas_ / c.group_size;
      c.orthogonal = it->orthogonal;
      c.hosted = c.in_update = true;
      c.in_micro = in_micro || s.name == it->name;
    } else if (own) {
      c.in_micro = in_micro && !written_by_port(program, s);
    } else if (!in_micro || !is_of_the_model(s.source.kind)) {
      if (!writes(program.update, s)) continue;
      shared_.push_back({s.offset, c.bytes, saved});
      saved += whole_lines(c.bytes);
      continue;
    } else {
      c.in_micro = !written_by_port(program, s);
    }
    if (c.in_update) rounds_ = std::max(rounds_, c.groups);
    copied_.push_back(c);
    at += whole_lines(c.groups * c.bytes);
  }
  if (at > 0) copies_ = Arena(at);
  if (rounds_ > 1 && saved > 0) saved_ = Arena(saved);
}

const ReplicaStates::Copied* ReplicaStates::find(const StateDesc& state) const {
  for (const Copied& c : copied_)
    if (c.offset == state.offset) return &c;
  return nullptr;
}

Dims ReplicaStates::host_shape(const StateDesc& state) const {
  Dims shape = state.shape;
  if (const Copied* c = find(state); c && c->hosted) shape.insert(shape.begin(), c->groups);
  return shape;
}

void ReplicaStates::write(const StateDesc& state, const std::byte* from) {
  copy_bytes(state_ + state.offset, from, state.bytes());
  const Copied* c = find(state);
  for (int64_t g = 0; c && g < c->groups; ++g)
    copy_bytes(copy_of(*c, g), c->hosted ? from + g * c->bytes : from, c->bytes);
}

void ReplicaStates::read(const StateDesc& state, std::byte* to) const {
  const Copied* c = find(state);
  if (c)
    copy_bytes(to, copy_of(*c, 0), c->hosted ? c->groups * c->bytes : c->bytes);
  else
    copy_bytes(to, state_ + state.offset, state.bytes());
}

void ReplicaStates::fetch(const Copied& c, int64_t group) {
  copy_bytes(state_ + c.offset, copy_of(c, group), c.bytes);
}

void ReplicaStates::store(const Copied& c, int64_t group) {
  copy_bytes(copy_of(c, group), state_ + c.offset, c.bytes);
}

int64_t ReplicaStates::group_in(const Copied& c, int64_t replica) const {
  return replica_group(replica, replicas_, c.group_size, c.orthogonal);
}

std::byte* ReplicaStates::address(const StateDesc& state, int64_t replica) const {
  const Copied* c = find(state);
  return c && !c->in_micro && !c->hosted ? copy_of(*c, group_in(*c, replica))
                                         : state_ + state.offset;
}

bool ReplicaStates::take_turns() const {
  return std::any_of(copied_.begin(), copied_.end(), [](const Copied& c) { return c.in_micro; });
}

void ReplicaStates::enter(int64_t replica) {
  for (const Copied& c : copied_)
    if (c.in_micro) fetch(c, group_in(c, replica));
}

void ReplicaStates::leave(int64_t replica) {
  for (const Copied& c : copied_)
    if (c.in_micro) store(c, group_in(c, replica));
}

void ReplicaStates::update(const std::function<void()>& run) {
  for (int64_t round = rounds_ - 1; round >= 0; --round) {
    if (round > 0)
      for (const Shared& s : shared_)
        copy_bytes(saved_.data() + s.saved, state_ + s.offset, s.bytes);
    for (const Copied& c : copied_)
      if (c.in_update && round < c.groups) fetch(c, round);
    run();
    for (const Copied& c : copied_)
      if (c.in_update && round < c.groups) store(c, round);
    if (round > 0)
      for (const Shared& s : shared_)
        copy_bytes(state_ + s.offset, saved_.data() + s.saved, s.bytes);
  }
}

}  // namespace tessera
