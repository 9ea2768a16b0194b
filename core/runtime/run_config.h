// SPDX-License-Identifier: Apache-2.0
// How often a program runs in one call, on what, and what the call returns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"

namespace tessera {

enum class OutputMode : uint8_t { kFinal, kAll, kSum, kEveryN };

// Which outputs of a run's micro-batches are returned.
struct OutputRule {
  OutputMode mode = OutputMode::kFinal;
  int64_t period = 1;  // of kEveryN
};

// A parameter with one value per group of replicas, and so its gradients and optimizer state.
struct GroupedParam {
  std::string name;
  int64_t group_size = 1;
  bool orthogonal = false;  // see replica_group
};

// The group of a replica: of neighbours, or of every (replicas / size)-th.
inline int64_t replica_group(int64_t replica, int64_t replicas, int64_t size, bool orthogonal) {
  return orthogonal ? replica % (replicas / size) : replica / size;
}

struct RunConfig {
  int64_t device_iterations = 1;
  int64_t gradient_accumulation = 1;
  // Replicas run one after the other and share their weights; what they change in other states is
  // their own.
  int64_t replicas = 1;
  int64_t input_group = 1;  // replicas that read the same inputs
  bool orthogonal_groups = false;
  std::vector<GroupedParam> grouped = {};
  OutputRule output = {};
  std::vector<OutputRule> outputs = {};  // by output; `output` for those beyond
  int threads = 1;
  std::string trace = {};     // file for a timeline of the tasks of each call
  bool check_floats = false;  // a step that makes a NaN or an infinity fails the run

  int64_t steps() const { return device_iterations * gradient_accumulation; }
};

RunConfig read_run_config(const Settings& settings);

}  // namespace tessera
