// SPDX-License-Identifier: Apache-2.0
#include "session/session.h"

#include <fmt/format.h>

#include <chrono>

#include "base/env.h"
#include "base/error.h"
#include "codegen/region.h"
#include "executable/cache.h"
#include "ops/host_limits.h"
#include "runtime/clock.h"

namespace tessera {
namespace {

size_t step_count(const Program& p) {
  size_t steps = 0;
  for (const TaskDesc& t : p.tasks) steps += t.section.steps.size();
  return steps;
}

void choose_backend() {
  set_codegen_backend(env::codegen() == "reference" || !codegen_has_llvm()
                          ? CodegenBackend::kReference
                          : CodegenBackend::kLlvm);
}

}  // namespace

Session::Session(std::string text, const CompileOptions& options, const Constants& constants,
                 const Progress& progress, const std::string& cache, const std::string& creator)
    : settings_(options.settings), options_(options), text_(std::move(text)) {
  const auto start = std::chrono::steady_clock::now();
  choose_backend();
  check_options(options_);
  // Whoever looks at the steps of a compilation wants them to be done.
  const bool caches = !cache.empty() && env::dump().empty() && env::debug_level() < 3;
  std::optional<Cache> entries;
  if (caches) entries = open_cache(cache);
  if (!entries || !read_cache(*entries, constants, progress)) {
    compile_text(constants, progress);
    if (entries) fill_cache(*entries, creator);
  }
  compile_ms_ = 1e3 * seconds_since(start);
  if (progress) progress(100);
  print_times();
}

Session::Session(const ExecutableFile& file, const CompileOptions& options,
                 const Progress& progress)
    : settings_(options.settings),
      options_(options),
      digest_(file.header().digest),
      key_(file.header().key) {
  const auto start = std::chrono::steady_clock::now();
  choose_backend();
  check_options(options);
  load(file, progress);
  for (const auto& [name, bytes] : file.constants(engine_->program()))
    engine_->write_state(name, bytes.data(), static_cast<int64_t>(bytes.size()));
  compile_ms_ = 1e3 * seconds_since(start);
  if (progress) progress(100);
  print_times();
}

void Session::compile_text(const Constants& constants, const Progress& progress) {
  auto report = [&](double percent) {
    if (progress) progress(static_cast<int>(percent));
  };
  Compiled compiled = compile(text_, options_, report);
  timings_ = std::move(compiled.timings);
  names_ = std::move(compiled.tensor_names);
  const auto loading = std::chrono::steady_clock::now();
  engine_ = std::make_unique<Engine>(std::move(compiled.program), options_.run);
  timings_.push_back({"load", 1e3 * seconds_since(loading)});
  report(95);
  write_constants(constants);
}

void Session::write_constants(const Constants& constants) {
  for (const StateDesc& s : engine_->program().states) {
    if (s.source.kind != SourceKind::kConst) continue;
    auto it = constants.find(s.name);
    user_check(it != constants.end(), "[compile] constant \"{}\" was not given", s.name);
    engine_->write_state(s.name, it->second.data, it->second.bytes);
  }
}

// For TESSERA_DEBUG.
void Session::print_times() const {
  const Program& p = engine_->program();
  const int level = env::debug_level();
  if (level >= 1)
    fmt::print(stderr, "tessera: {} compiled in {:.1f} ms, {} steps, arena {:.1f} MiB\n", p.name,
               compile_ms_, step_count(p), static_cast<double>(p.arena_bytes) / (1 << 20));
  if (level >= 2)
    for (const StepTiming& t : timings_)
      fmt::print(stderr, "tessera:   {:24} {:8.2f} ms\n", t.name, t.ms);
}

bool host_is_faster(const std::string& op, const Dims& shape, size_t results) {
  const std::optional<Op> known = op_from_text(op);
  user_check(known.has_value(), "there is no op \"{}\"", op);
  return host_is_faster(*known, shape, results);
}

}  // namespace tessera
