// SPDX-License-Identifier: Apache-2.0
#include "session/session.h"

#include <fmt/format.h>

#include <chrono>

#include "base/env.h"
#include "base/error.h"
#include "codegen/region.h"
#include "ops/host_limits.h"
#include "runtime/clock.h"

namespace tessera {
namespace {

size_t step_count(const Program& p) {
  size_t steps = 0;
  for (const TaskDesc& t : p.tasks) steps += t.section.steps.size();
  return steps;
}

}  // namespace

Session::Session(const std::string& text, const CompileOptions& options,
                 const std::unordered_map<std::string, Constant>& constants,
                 const std::function<void(int)>& progress)
    : settings_(options.settings) {
  const auto start = std::chrono::steady_clock::now();
  set_codegen_backend(env::codegen() == "reference" || !codegen_has_llvm()
                          ? CodegenBackend::kReference
                          : CodegenBackend::kLlvm);
  auto report = [&](double percent) {
    if (progress) progress(static_cast<int>(percent));
  };
  Compiled compiled = compile(text, options, report);
  timings_ = std::move(compiled.timings);
  names_ = std::move(compiled.tensor_names);
  const auto loading = std::chrono::steady_clock::now();
  engine_ = std::make_unique<Engine>(std::move(compiled.program), options.run);
  timings_.push_back({"load", 1e3 * seconds_since(loading)});
  report(95);
  write_constants(constants);
  compile_ms_ = 1e3 * seconds_since(start);
  report(100);
  print_times();
}

void Session::write_constants(const std::unordered_map<std::string, Constant>& constants) {
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
