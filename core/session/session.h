// SPDX-License-Identifier: Apache-2.0
// The only door into the core: text IR and options in, a runnable program out.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "devices/partition.h"
#include "executable/cache.h"
#include "runtime/engine.h"
#include "session/compile.h"

namespace tessera {

struct Constant {
  const void* data = nullptr;
  int64_t bytes = 0;
};

using Constants = std::unordered_map<std::string, Constant>;
using Progress = std::function<void(int)>;  // called with percent done

// Something to tell the user.
struct Note {
  bool warning = false;
  std::string text;
};

// What an executable holds beside the program; see executable/executable.h.
struct SaveParts {
  std::string creator, host;
  std::string_view model;
};

class Session {
 public:
  // `cache`: a directory of compiled programs; empty for none. Trouble with it is a note.
  Session(std::string text, const CompileOptions& options, const Constants& constants,
          const Progress& progress, const std::string& cache = {}, const std::string& creator = {});
  // The program of a file. Its settings must be those of `options`.
  Session(const ExecutableFile& file, const CompileOptions& options, const Progress& progress);

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

  void save(const std::string& path, const SaveParts& parts);
  // The file that the program was read from; empty if it was compiled.
  const std::string& origin() const { return origin_; }
  const std::vector<Note>& notes() const { return notes_; }

 private:
  std::optional<Cache> open_cache(const std::string& dir);
  bool read_cache(const Cache& cache, const Constants& constants, const Progress& progress);
  void fill_cache(const Cache& cache, const std::string& creator);
  void load(const ExecutableFile& file, const Progress& progress);
  void compile_text(const Constants& constants, const Progress& progress);
  void write_constants(const Constants& constants);
  Executable executable(const std::string& creator);
  void print_times() const;

  std::shared_ptr<const Lease> device_;
  Settings settings_;
  CompileOptions options_;
  std::string text_, digest_, key_;
  std::unique_ptr<Engine> engine_;
  std::vector<StepTiming> timings_;
  std::vector<std::string> names_;
  std::string origin_;
  std::vector<Note> notes_;
  double compile_ms_ = 0;
};

// Whether torch runs the op of this name faster (ops/host_limits.h).
bool host_is_faster(const std::string& op, const Dims& shape, size_t results);

}  // namespace tessera
