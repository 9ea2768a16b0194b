// SPDX-License-Identifier: Apache-2.0
// The only door into the core: text IR and options in, a runnable program out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

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

  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  // Names that `anchors` may hold.
  const std::vector<std::string>& tensor_names() const { return names_; }
  // JSON: steps, kernels, host calls, bytes, passes.
  std::string summary() const;

 private:
  void write_constants(const std::unordered_map<std::string, Constant>& constants);
  void print_times() const;

  std::unique_ptr<Engine> engine_;
  std::vector<StepTiming> timings_;
  std::vector<std::string> names_;
  double compile_ms_ = 0;
};

// Text names of all rows, for capture to know what runs natively.
std::vector<std::string> native_ops();

}  // namespace tessera
