// SPDX-License-Identifier: Apache-2.0
// Programs to files and back: exports, and the cache of compiled programs.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <tuple>

#include "base/build.h"
#include "base/error.h"
#include "codegen/code.h"
#include "ops/custom_call.h"
#include "runtime/clock.h"
#include "session/keys.h"
#include "session/session.h"

namespace tessera {
namespace {

// Calls `visit` for every step, those in the bodies of loops and branches too.
template <typename F>
void each_step(const Section& section, const F& visit) {
  for (const StepDesc& s : section.steps) {
    visit(s);
    for (const auto& body : s.bodies) each_step(*body, visit);
  }
}

template <typename F>
void each_step(const Program& p, const F& visit) {
  for (const TaskDesc& t : p.tasks) each_step(t.section, visit);
  each_step(p.update, visit);
}

MachineCode machine_code(const Program& p) {
  MachineCode out;
  std::set<std::string> keys;
  each_step(p, [&](const StepDesc& s) {
    if (s.body.empty()) return;
    for (std::string& key : code_keys(s)) keys.insert(std::move(key));
  });
  for (const std::string& key : keys)
    if (std::optional<std::string> object = code_of(key)) out.objects.emplace_back(key, *object);
  if (!out.objects.empty()) out.target = code_target();
  return out;
}

std::vector<CustomUse> custom_uses(const Program& p) {
  std::map<std::tuple<std::string, std::string, int64_t>, std::string> found;
  each_step(p, [&](const StepDesc& s) {
    if (s.op == Op::Custom)
      found[{s.args.text(0), s.args.text(1), s.args.integer(2)}] = custom_library(s.args);
  });
  std::vector<CustomUse> out;
  for (auto& [op, library] : found)
    out.push_back({std::get<0>(op), std::get<1>(op), std::get<2>(op), library});
  return out;
}

// Names of settings that one has and the other has not, or with another value.
std::vector<std::string> differences(const std::vector<std::pair<std::string, Arg>>& a,
                                     const std::vector<std::pair<std::string, Arg>>& b) {
  std::set<std::string> out;
  for (const auto& [x, y] : {std::pair(&a, &b), std::pair(&b, &a)})
    for (const auto& s : *x)
      if (std::find(y->begin(), y->end(), s) == y->end()) out.insert(s.first);
  return {out.begin(), out.end()};
}

}  // namespace

// All but the constants, which a cache need not keep.
Executable Session::executable(const std::string& creator) {
  const Program& p = engine_->program();
  if (key_.empty()) key_ = program_key(text_, settings_);
  if (digest_.empty()) digest_ = graph_digest(text_);
  Executable e;
  e.header = {creator, p.name, key_, digest_, kept_settings(settings_), names_, custom_uses(p)};
  e.program = &p;
  e.code = machine_code(p);
  return e;
}

void Session::save(const std::string& path, const SaveParts& parts) {
  Executable e = executable(parts.creator);
  std::vector<std::string> values;
  const Program& p = engine_->program();
  values.reserve(p.states.size());
  for (const StateDesc& s : p.states) {
    if (s.source.kind != SourceKind::kConst) continue;
    std::string& value = values.emplace_back(static_cast<size_t>(s.bytes()), '\0');
    engine_->read_state(s.name, value.data(), s.bytes());
    e.constants.emplace_back(s.name, bytes_of(value));
  }
  e.host = parts.host;
  e.model = parts.model;
  write_executable(path, e, true);
}

void Session::load(const ExecutableFile& file, const Progress& progress) {
  const std::vector<std::string> other =
      differences(file.header().settings, kept_settings(settings_));
  user_check(other.empty(), "{}: was made with other options: {}", file.path(),
             fmt::join(other, ", "));
  const auto reading = std::chrono::steady_clock::now();
  Program program = file.program();
  MachineCode code = file.code();
  std::optional<OfferedCode> offer;
  if (!code.objects.empty()) {
    if (!file.distrust().empty())
      notes_.push_back({true, fmt::format("{}: its machine code is not run, {}: it is compiled "
                                          "again",
                                          file.path(), file.distrust())});
    else if (!code_runs_here(code.target))
      notes_.push_back({false, fmt::format("{}: its machine code is for another CPU or another "
                                           "build of Tessera: it is compiled again",
                                           file.path())});
    else
      offer.emplace(std::move(code.objects));
  }
  timings_.push_back({"read", 1e3 * seconds_since(reading)});
  if (progress) progress(45);
  const auto loading = std::chrono::steady_clock::now();
  try {
    engine_ = std::make_unique<Engine>(std::move(program), options_.run);
  } catch (const InternalError& error) {
    throw UserError(fmt::format("{}: is damaged: {}", file.path(), error.what()));
  }
  timings_.push_back({"load", 1e3 * seconds_since(loading)});
  names_ = file.header().tensor_names;
  origin_ = file.path();
  if (progress) progress(95);
}

// Nothing that goes wrong with a cache keeps a model from being compiled.
std::optional<Cache> Session::open_cache(const std::string& dir) {
  try {
    user_check(!this_binary().build.empty(), "this build of Tessera has no ID");
    return Cache(dir);
  } catch (const UserError& error) {
    notes_.push_back({true, fmt::format("The cache of programs is not used: {}", error.what())});
    return std::nullopt;
  }
}

bool Session::read_cache(const Cache& cache, const Constants& constants, const Progress& progress) {
  key_ = program_key(text_, settings_);
  try {
    const std::unique_ptr<ExecutableFile> file = cache.find(key_);
    if (!file) return false;
    load(*file, progress);
    write_constants(constants);
    notes_.push_back({false, fmt::format("The program was read from {}", origin_)});
    return true;
  } catch (const MemoryError&) {
    throw;
  } catch (const UserError& error) {
    notes_.push_back(
        {true, fmt::format("A program in the cache is compiled again: {}", error.what())});
    engine_.reset();
    timings_.clear();
    origin_.clear();
    return false;
  }
}

void Session::fill_cache(const Cache& cache, const std::string& creator) {
  try {
    write_executable(cache.path_of(key_), executable(creator), false);
  } catch (const UserError& error) {
    notes_.push_back({true, fmt::format("The program is not kept in the cache: {}", error.what())});
  }
}

}  // namespace tessera
