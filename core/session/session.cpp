// SPDX-License-Identifier: Apache-2.0
#include "session/session.h"

#include <fmt/ranges.h>

#include <chrono>
#include <map>

#include "base/env.h"
#include "codegen/region.h"
#include "runtime/clock.h"

namespace tessera {
namespace {

std::string json_string(const std::string& s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      out += c;
  }
  return out + "\"";
}

// What lies and runs on which IPU.
std::string places_json(const Program& p) {
  std::vector<std::string> ipus, tasks, channels, states;
  for (const IpuDesc& i : p.ipus)
    ipus.push_back(fmt::format(
        "{{\"on_chip_bytes\": {}, \"off_chip_bytes\": {}, \"arena_bytes\": {}, "
        "\"channel_bytes\": {}, \"state_bytes\": {}, \"staging_bytes\": {}, \"state_offset\": {}, "
        "\"streaming_state_offset\": {}, \"streaming_state_bytes\": {}}}",
        i.on_chip_bytes(), i.off_chip_bytes(), i.arena_bytes, i.channel_bytes, i.state_bytes,
        i.staging_bytes, i.state_offset, i.streaming_state_offset, i.streaming_state_bytes));
  for (const TaskDesc& t : p.tasks)
    tasks.push_back(
        fmt::format("{{\"name\": {}, \"ipu\": {}, \"stage\": {}, \"phase\": {}, \"backward\": {}, "
                    "\"group\": {}, \"steps\": {}, \"copies\": {}, \"arena_bytes\": {}}}",
                    json_string(t.name), t.ipu, t.stage, t.phase, t.backward, t.group,
                    t.section.steps.size(), t.copies.size(), t.arena_bytes));
  for (const ChannelDesc& c : p.channels)
    channels.push_back(fmt::format(
        "{{\"from\": {}, \"readers\": [{}], \"ipu\": {}, \"slots\": {}, \"bytes\": {}}}", c.from,
        fmt::join(c.readers, ", "), c.ipu, c.slots, c.bytes()));
  for (const StateDesc& s : p.states)
    states.push_back(fmt::format(
        "{{\"name\": {}, \"ipu\": {}, \"off_chip\": {}, \"offset\": {}, \"bytes\": {}}}",
        json_string(s.name), s.ipu, s.off_chip, s.offset, s.bytes()));
  return fmt::format("\"ipus\": [{}], \"tasks\": [{}], \"channels\": [{}], \"states\": [{}]",
                     fmt::join(ipus, ", "), fmt::join(tasks, ", "), fmt::join(channels, ", "),
                     fmt::join(states, ", "));
}

size_t step_count(const Program& p) {
  size_t steps = 0;
  for (const TaskDesc& t : p.tasks) steps += t.section.steps.size();
  return steps;
}

}  // namespace

Session::Session(const std::string& text, const CompileOptions& options,
                 const std::unordered_map<std::string, Constant>& constants,
                 const std::function<void(int)>& progress) {
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
    if (!s.constant) continue;
    auto it = constants.find(s.name);
    user_check(it != constants.end(), "[compile] constant \"{}\" was not given", s.name);
    engine_->write_state(s.name, it->second.data, it->second.bytes);
  }
}

// For TESSERA_DEBUG.
void Session::print_times() const {
  const Program& p = engine_->program();
  const int level = std::atoi(env::debug().c_str());
  if (level >= 1)
    fmt::print(stderr, "tessera: {} compiled in {:.1f} ms, {} steps, arena {:.1f} MiB\n", p.name,
               compile_ms_, step_count(p), static_cast<double>(p.arena_bytes) / (1 << 20));
  if (level >= 2)
    for (const StepTiming& t : timings_)
      fmt::print(stderr, "tessera:   {:24} {:8.2f} ms\n", t.name, t.ms);
}

std::string Session::summary() const {
  const Program& p = engine_->program();
  std::map<std::string, int> kernels;
  std::vector<std::string> steps, passes;
  std::vector<double> times = engine_->step_times();
  std::vector<const Section*> sections;
  for (const TaskDesc& t : p.tasks) sections.push_back(&t.section);
  sections.push_back(&p.update);
  for (const Section* section : sections)
    for (size_t i = 0; i < section->steps.size(); ++i) {
      const StepDesc& s = section->steps[i];
      std::string name = s.op == Op::HostCall ? s.target : std::string(op_text(s.op));
      if (s.op != Op::Fused && !s.body.empty()) name += "+epilogue";
      ++kernels[name];
      const Work& w = section->work[i];
      std::vector<std::string> shapes;
      for (const TensorRef& t : s.outputs)
        shapes.push_back(fmt::format("\"{}[{}]\"", name_of(t.dtype), fmt::join(t.shape, ",")));
      std::string time = times.empty() ? "" : fmt::format(", \"us\": {:.2f}", times[steps.size()]);
      steps.push_back(
          fmt::format("{{\"op\": {}, \"where\": {}, \"flops\": {}, \"bytes\": {}, \"kind\": {}, "
                      "\"shapes\": [{}]{}}}",
                      json_string(name), json_string(s.where), w.flops, w.bytes,
                      static_cast<int>(w.kind), fmt::join(shapes, ", "), time));
    }
  std::vector<std::string> kernel_rows, hosts;
  for (auto& [name, count] : kernels)
    kernel_rows.push_back(fmt::format("{}: {}", json_string(name), count));
  for (const HostCallInfo& h : engine_->host_calls())
    hosts.push_back(fmt::format("{{\"target\": {}, \"where\": {}}}", json_string(h.desc.target),
                                json_string(h.desc.where)));
  for (const StepTiming& t : timings_)
    passes.push_back(fmt::format("{{\"name\": {}, \"ms\": {:.3f}}}", json_string(t.name), t.ms));
  int64_t ports = 0;
  for (const PortDesc& o : p.outputs) ports += o.bytes();
  return fmt::format(
      "{{\"name\": {}, \"threads\": {}, \"compile_ms\": {:.3f}, \"arena_bytes\": {}, "
      "\"state_bytes\": {}, \"scratch_bytes\": {}, "
      "\"output_bytes\": {}, \"kernels\": {{{}}}, \"host_calls\": [{}], \"passes\": [{}], "
      "\"steps\": [{}], {}}}",
      json_string(p.name), engine_->config().threads, compile_ms_, p.arena_bytes, p.state_bytes,
      engine_->scratch_bytes(), ports, fmt::join(kernel_rows, ", "), fmt::join(hosts, ", "),
      fmt::join(passes, ", "), fmt::join(steps, ", "), places_json(p));
}

std::vector<std::string> native_ops() {
  std::vector<std::string> out;
  for (int i = 0; i < static_cast<int>(Op::kCount); ++i) {
    Op op = static_cast<Op>(i);
    if (op != Op::Fused) out.emplace_back(op_text(op));
  }
  return out;
}

}  // namespace tessera
