// SPDX-License-Identifier: Apache-2.0
// One graph of a micro-batch becomes a graph per task, by the places that its nodes carry.
#pragma once

#include <memory>
#include <vector>

#include "ir/graph.h"
#include "plan/program.h"

namespace tessera {

enum class Strategy : uint8_t { kOne, kPipelined, kSharded, kPhased };

struct PartitionOptions {
  Strategy strategy = Strategy::kOne;
  // Backward makes the activations of its stage again from the stage's inputs.
  bool recompute = true;
  // Backward does not begin in the last phase of forward.
  bool separate_backward = false;
};

struct TaskGraph {
  TaskDesc desc;  // without its section
  std::unique_ptr<Graph> graph;
};

struct Partition {
  std::vector<TaskGraph> tasks;
  std::vector<ChannelDesc> channels;
};

// No tasks if all nodes have one place, or if the strategy is kOne.
Partition partition(const Graph& g, const PartitionOptions& options);

}  // namespace tessera
