// SPDX-License-Identifier: Apache-2.0
// Text to program: the way through the compiler, in the order of its steps.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "passes/partition.h"
#include "plan/program.h"
#include "runtime/run_config.h"

namespace tessera {

struct CompileOptions {
  Settings settings;  // those that passes read
  RunConfig run;
  PartitionOptions placement;
  std::vector<std::string> anchors;  // tensors that become outputs, after those of the graph
};

CompileOptions read_options(const Settings& settings);
// Throws UserError for numbers that no program can run with.
void check_options(const CompileOptions& options);

struct StepTiming {
  std::string name;
  double ms = 0;
};

struct Compiled {
  Program program;
  std::vector<std::string> tensor_names;  // that `anchors` may hold
  std::vector<StepTiming> timings;
};

// `progress` is called with percent done.
Compiled compile(const std::string& text, const CompileOptions& options,
                 const std::function<void(double)>& progress);

}  // namespace tessera
