// SPDX-License-Identifier: Apache-2.0
// The only door into the core: text IR and options in, a runnable program out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/partition.h"
#include "runtime/engine.h"

namespace tessera {

struct CompileOptions {
  bool training = false;
  bool mean_reduction = true;
  bool running_mean = false;
  bool stochastic_rounding = false;
  bool half_partials = false;
  RunConfig run;
  PartitionOptions placement;
  std::vector<std::string> anchors;  // tensors that become outputs, behind those of the graph
};

struct Constant {
  const void* data = nullptr;
  int64_t bytes = 0;
};

class Session {
 public:
  // `progress` is called with percent done.
  Session(const std::string& text, const CompileOptions& options,
          const std::unordered_map<std::string, Constant>& constants,
          const std::function<void(int)>& progress);

  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  // Names that `anchors` may hold.
  const std::vector<std::string>& tensor_names() const { return names_; }
  // JSON: steps, kernels, host calls, bytes, passes.
  std::string summary() const;

 private:
  struct Timing {
    std::string name;
    double ms;
  };
  std::unique_ptr<Engine> engine_;
  std::vector<Timing> timings_;
  std::vector<std::string> names_;
  double compile_ms_ = 0;
};

// Text names of all rows, for capture to know what runs natively.
std::vector<std::string> native_ops();

}  // namespace tessera
