// SPDX-License-Identifier: Apache-2.0
// The only door into the core: text IR and options in, a runnable program out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "devices/partition.h"
#include "runtime/engine.h"
#include "session/compile.h"

namespace tessera {

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

  // The device that runs from now on use; null for none.
  void attach(std::shared_ptr<const Lease> device) { device_ = std::move(device); }
  // As Engine::run. Throws RecoverableError if the device is gone.
  void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
           const Poll& poll) {
    if (device_) device_->check();
    engine_->run(inputs, outputs, poll);
  }

  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  // Names of the settings that were read.
  const std::set<std::string, std::less<>>& settings() const { return settings_.asked(); }
  // Names that `anchors` may hold.
  const std::vector<std::string>& tensor_names() const { return names_; }
  // JSON: steps, kernels, host calls, bytes, passes.
  std::string summary() const;

 private:
  void write_constants(const std::unordered_map<std::string, Constant>& constants);
  void print_times() const;

  std::shared_ptr<const Lease> device_;
  Settings settings_;
  std::unique_ptr<Engine> engine_;
  std::vector<StepTiming> timings_;
  std::vector<std::string> names_;
  double compile_ms_ = 0;
};

// Whether torch runs the op of this name faster (ops/host_limits.h).
bool host_is_faster(const std::string& op, const Dims& shape, size_t results);

}  // namespace tessera
