// SPDX-License-Identifier: Apache-2.0
// States of which replicas have copies of their own. Replicas take turns in one memory: a replica's
// copies are moved in before its micro-batch and out after it. Weights are shared and never moved,
// unless they were asked to have a value per group of replicas, or the model writes them by itself.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "plan/program.h"
#include "runtime/run_config.h"

namespace tessera {

class ReplicaStates {
 public:
  ReplicaStates() = default;
  // `state` is the memory that the program's states lie in.
  ReplicaStates(const Program& program, const RunConfig& config, std::byte* state);

  // Shape on the host: with the number of groups in front, if the state has a value for each.
  Dims host_shape(const StateDesc& state) const;
  void write(const StateDesc& state, const std::byte* from);
  void read(const StateDesc& state, std::byte* to) const;

  // Where a port of a task finds the state of a replica.
  std::byte* address(const StateDesc& state, int64_t replica) const;
  // Whether micro-batches of different replicas need enter() and leave() between them.
  bool take_turns() const;
  // Around a micro-batch.
  void enter(int64_t replica);
  void leave(int64_t replica);
  // Runs the update once per group; what all replicas share changes once.
  void update(const std::function<void()>& run);

 private:
  struct Copied {
    int64_t offset, bytes;  // of the state
    int64_t copies;         // bytes into copies_, one after the other
    int64_t groups, group_size;
    bool orthogonal;
    bool hosted;     // the host sees all copies, not the first
    bool in_micro;   // micro-batches use it where it lies
    bool in_update;  // so does the update, which runs once per copy
  };
  struct Shared {
    int64_t offset, bytes, saved;
  };

  const Copied* find(const StateDesc& state) const;
  std::byte* copy_of(const Copied& c, int64_t group) const {
    return copies_.data() + c.copies + group * c.bytes;
  }
  void fetch(const Copied& c, int64_t group);
  void store(const Copied& c, int64_t group);
  int64_t group_in(const Copied& c, int64_t replica) const;

  std::byte* state_ = nullptr;
  int64_t replicas_ = 1;
  int64_t rounds_ = 1;  // of the update: the largest number of groups
  std::vector<Copied> copied_;
  std::vector<Shared> shared_;  // that the update changes and all replicas share
  Arena copies_, saved_;
};

}  // namespace tessera
