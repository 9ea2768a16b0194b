// SPDX-License-Identifier: Apache-2.0
#include "session/session.h"

#include <fmt/ranges.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/env.h"
#include "codegen/region.h"
#include "ir/names.h"
#include "ops/check_types.h"
#include "passes/pass.h"
#include "plan/planner.h"

namespace tessera {
namespace {

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

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

// Writes NN_after_<pass>.tir files for TESSERA_DUMP.
class Dumper {
 public:
  Dumper() : dir_(env::dump()) {}
  void write(const std::string& what, const Graph& g) {
    if (dir_.empty()) return;
    std::error_code failed;
    std::filesystem::create_directories(dir_, failed);
    user_check(!failed, "TESSERA_DUMP: cannot make the directory {}: {}", dir_, failed.message());
    const std::string path = fmt::format("{}/{}_{:02}_{}.tir", dir_, g.name, count_++, what);
    std::ofstream out(path);
    out << print_graph(g);
    user_check(out.flush().good(), "TESSERA_DUMP: cannot write {}: {}", path, std::strerror(errno));
  }

 private:
  std::string dir_;
  int count_ = 0;
};

// What lies and runs where, of a program on several IPUs.
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
  for (const Section* s : p.micro_sections()) steps += s->steps.size();
  return steps;
}

}  // namespace

Session::Session(const std::string& text, const CompileOptions& options,
                 const std::unordered_map<std::string, Constant>& constants,
                 const std::function<void(int)>& progress) {
  auto start = std::chrono::steady_clock::now();
  set_codegen_backend(env::codegen() == "reference" || !codegen_has_llvm()
                          ? CodegenBackend::kReference
                          : CodegenBackend::kLlvm);
  auto report = [&](double percent) {
    if (progress) progress(static_cast<int>(percent));
  };
  auto timed = [&](const char* name, auto&& work) {
    auto t = std::chrono::steady_clock::now();
    work();
    timings_.push_back({name, since(t)});
  };
  std::unique_ptr<Graph> graph, update;
  timed("import", [&] {
    graph = parse_graph(text);
    for (auto& [name, value] : tessera::tensor_names(*graph)) names_.push_back(std::move(name));
    add_anchors(*graph, options.anchors);
    verify_graph(*graph);
    check_types(*graph);
  });
  report(5);

  PassContext ctx{options.training, options.run.gradient_accumulation * options.run.replicas,
                  options.mean_reduction, options.running_mean};
  for (const GroupedParam& p : options.run.grouped)
    ctx.groups[p.name] = options.run.replicas / p.group_size;
  ctx.stochastic_rounding = options.stochastic_rounding;
  ctx.half_partials = options.half_partials;
  // A bad number in the middle of a region could vanish again, as in 1 / exp(1000).
  ctx.one_by_one = options.run.check_floats;
  Dumper dumper;
  dumper.write("import", *graph);
  PassRunner runner;
  runner.disabled = split_commas(env::disable_passes());
  if (ctx.one_by_one) runner.disabled.push_back("fuse-epilogue");
  runner.dump = [&](const std::string& name, const Graph& g) { dumper.write("after_" + name, g); };
  runner.progress = [&](double f) { report(5 + 30 * f); };
  update = split_update(*graph, ctx);
  append_optimizer(*graph, ctx);
  verify_graph(*graph);
  dumper.write("optimizer", *graph);
  PartitionOptions placement = options.placement;
  placement.replicas = options.run.replicas;
  Partition parts = partition(*graph, placement);
  if (parts.tasks.empty()) runner.run(*graph, ctx, pipeline());
  for (TaskGraph& task : parts.tasks) {
    verify_graph(*task.graph);
    dumper.write("task", *task.graph);
    runner.run(*task.graph, ctx, pipeline());
  }
  if (update) {
    append_optimizer(*update, ctx);
    runner.run(*update, ctx, pipeline());
  }
  for (const PassTiming& t : runner.timings) timings_.push_back({t.name, t.ms});

  Program program;
  timed("plan", [&] {
    program = parts.tasks.empty() ? plan_program(*graph, update.get())
                                  : plan_tasks(*graph, std::move(parts), update.get());
  });
  report(45);
  timed("load", [&] { engine_ = std::make_unique<Engine>(std::move(program), options.run); });
  report(95);
  for (const StateDesc& s : engine_->program().states) {
    if (!s.constant) continue;
    auto it = constants.find(s.name);
    user_check(it != constants.end(), "[compile] constant \"{}\" was not given", s.name);
    engine_->write_state(s.name, it->second.data, it->second.bytes);
  }
  compile_ms_ = since(start);
  report(100);
  if (std::atoi(env::debug().c_str()) >= 1)
    fmt::print(stderr, "tessera: {} compiled in {:.1f} ms, {} steps, arena {:.1f} MiB\n",
               graph->name, compile_ms_, step_count(engine_->program()),
               static_cast<double>(engine_->program().arena_bytes) / (1 << 20));
  if (std::atoi(env::debug().c_str()) >= 2)
    for (const Timing& t : timings_)
      fmt::print(stderr, "tessera:   {:24} {:8.2f} ms\n", t.name, t.ms);
}

std::string Session::summary() const {
  const Program& p = engine_->program();
  std::map<std::string, int> kernels;
  std::vector<std::string> steps, passes;
  std::vector<double> times = engine_->step_times();
  std::vector<const Section*> sections = p.micro_sections();
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
  for (const Timing& t : timings_)
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
