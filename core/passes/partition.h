// SPDX-License-Identifier: Apache-2.0
// One graph of a micro-batch becomes a graph per task, by the IPUs, stages and phases that its
// nodes carry. Runs before the passes, which see one task at a time.
#pragma once

#include <memory>
#include <vector>

#include "base/settings.h"
#include "ir/graph.h"
#include "ir/task.h"

namespace tessera {

enum class Strategy : uint8_t { kOne, kPipelined, kSharded, kPhased };

// Where a kind of tensor lies (TensorLocationSettings).
struct LocationRule {
  int64_t on_chip = -1;  // 0 no, 1 yes, -1 as the strategy has it
  bool sharded = false;
  int64_t min_off_chip = 2, min_sharded = 8192;  // elements

  bool off_chip(bool by_default, int64_t elements) const {
    return (on_chip < 0 ? by_default : on_chip == 0) && elements >= min_off_chip;
  }
  bool operator==(const LocationRule&) const = default;
};

enum class Liveness : uint8_t {
  kAlwaysLive,
  kOffChipAfterFwd,
  kOffChipAfterFwdNoOverlap,
  kOffChipAfterEachPhase
};

struct PartitionOptions {
  Strategy strategy = Strategy::kOne;
  // Backward makes the activations of its stage again from the stage's inputs.
  bool recompute = true;
  // Backward does not begin in the last phase of forward.
  bool separate_backward = false;
  LocationRule activations, weights, optimizer, accumulators;
  Liveness liveness = Liveness::kAlwaysLive;
  int64_t replicas = 1;

  // The rule for states of a kind, nullptr for those that are always on chip.
  const LocationRule* rule_of(SourceKind kind) const;
  bool state_off_chip(SourceKind kind, const Dims& shape) const;
  bool has_locations() const;
};

PartitionOptions read_partition_options(const Settings& settings);

struct TaskGraph {
  TaskInfo info;
  std::unique_ptr<Graph> graph;
};

struct Partition {
  std::vector<TaskGraph> tasks;
  std::vector<ChannelDesc> channels;
  PartitionOptions options;  // as they were applied
};

// Whether replicas exchange values; throws UserError where the program can not be cut for it.
bool check_exchanges(const Graph& g, const PartitionOptions& options);

// One task if all nodes belong together.
Partition partition(const Graph& g, const PartitionOptions& options);

}  // namespace tessera
