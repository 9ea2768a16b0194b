// SPDX-License-Identifier: Apache-2.0
// What a compiled program is made of, as JSON.
#include <fmt/ranges.h>

#include <functional>
#include <map>

#include "base/json.h"
#include "ops/custom_call.h"
#include "session/session.h"

namespace tessera {
namespace {

// What lies and runs on which IPU.
void add_places(const Program& p, json::Object& out) {
  json::Array ipus, tasks, channels, states;
  for (const IpuDesc& i : p.ipus)
    ipus.add(json::Object()
                 .add("on_chip_bytes", i.on_chip_bytes())
                 .add("off_chip_bytes", i.off_chip_bytes())
                 .add("arena_bytes", i.arena_bytes)
                 .add("channel_bytes", i.channel_bytes)
                 .add("state_bytes", i.state_bytes)
                 .add("staging_bytes", i.staging_bytes)
                 .add("state_offset", i.state_offset)
                 .add("streaming_state_offset", i.streaming_state_offset)
                 .add("streaming_state_bytes", i.streaming_state_bytes));
  for (const TaskDesc& t : p.tasks)
    tasks.add(json::Object()
                  .add("name", t.name)
                  .add("ipu", t.ipu)
                  .add("stage", t.stage)
                  .add("phase", t.phase)
                  .add("backward", t.backward)
                  .add("group", t.group)
                  .add("steps", t.section.steps.size())
                  .add("copies", t.copies.size())
                  .add("arena_bytes", t.arena_bytes));
  for (const ChannelDesc& c : p.channels)
    channels.add(json::Object()
                     .add("from", c.from)
                     .add("readers", c.readers)
                     .add("ipu", c.ipu)
                     .add("slots", c.slots)
                     .add("exchange", c.exchange_size)
                     .add("bytes", c.bytes()));
  for (const StateDesc& s : p.states)
    states.add(json::Object()
                   .add("name", s.name)
                   .add("kind", text_of(s.source.kind))
                   .add("ipu", s.ipu)
                   .add("off_chip", s.off_chip)
                   .add("offset", s.offset)
                   .add("bytes", s.bytes()));
  out.add("ipus", ipus).add("tasks", tasks).add("channels", channels).add("states", states);
}

std::string name_of(const StepDesc& s) {
  if (s.op == Op::Custom) return fmt::format("custom {}.{}", s.args.text(0), s.args.text(1));
  const std::string name = s.op == Op::HostCall ? s.target : std::string(op_text(s.op));
  return s.op != Op::Fused && !s.body.empty() ? name + "+epilogue" : name;
}

json::Object describe(const StepDesc& s, const Work& work) {
  std::vector<std::string> shapes;
  for (const TensorRef& t : s.outputs)
    shapes.push_back(fmt::format("{}[{}]", name_of(t.dtype), fmt::join(t.shape, ",")));
  json::Object out;
  out.add("op", name_of(s)).add("where", s.where).add("flops", work.flops);
  out.add("bytes", work.bytes).add("kind", static_cast<int>(work.kind)).add("shapes", shapes);
  if (work.available_memory > 0) out.add("available_memory", work.available_memory, 6);
  if (s.bodies.empty()) return out;
  json::Array bodies;
  for (const auto& body : s.bodies) {
    json::Array steps;
    for (size_t i = 0; i < body->steps.size(); ++i)
      steps.add(describe(body->steps[i], body->work[i]));
    bodies.add(steps);
  }
  return out.add("bodies", bodies);
}

// Calls `visit` for every step, those in the bodies of loops and branches too.
void each_step(const Section& section, const std::function<void(const StepDesc&)>& visit) {
  for (const StepDesc& s : section.steps) {
    visit(s);
    for (const auto& body : s.bodies) each_step(*body, visit);
  }
}

// The libraries that the program can't run without.
json::Array custom_libraries(const std::vector<const Section*>& sections) {
  std::map<std::string, std::string> found;
  for (const Section* section : sections)
    each_step(*section, [&](const StepDesc& s) {
      if (s.op == Op::Custom) found[custom_label(s.args)] = custom_library(s.args);
    });
  json::Array out;
  for (auto& [op, library] : found) out.add(json::Object().add("op", op).add("library", library));
  return out;
}

}  // namespace

std::string Session::summary() const {
  const Program& p = engine_->program();
  std::vector<const Section*> sections;
  for (const TaskDesc& t : p.tasks) sections.push_back(&t.section);
  sections.push_back(&p.update);
  const std::vector<double> times = engine_->step_times();
  std::map<std::string, int> counts;
  json::Array steps, hosts, passes;
  size_t index = 0;
  for (const Section* section : sections) {
    each_step(*section, [&](const StepDesc& s) { ++counts[name_of(s)]; });
    for (size_t i = 0; i < section->steps.size(); ++i, ++index) {
      json::Object step = describe(section->steps[i], section->work[i]);
      if (!times.empty()) step.add("us", times[index], 2);
      steps.add(step);
    }
  }
  json::Object kernels;
  for (auto& [name, count] : counts) kernels.add(name, count);
  for (const HostCallInfo& h : engine_->host_calls())
    hosts.add(json::Object().add("target", h.desc.target).add("where", h.desc.where));
  for (const StepTiming& t : timings_)
    passes.add(json::Object().add("name", t.name).add("ms", t.ms, 3));
  int64_t ports = 0;
  for (const PortDesc& o : p.outputs) ports += o.bytes();
  json::Object out;
  out.add("name", p.name)
      .add("threads", engine_->config().threads)
      .add("compile_ms", compile_ms_, 3);
  out.add("arena_bytes", p.arena_bytes).add("state_bytes", p.state_bytes);
  out.add("scratch_bytes", engine_->scratch_bytes()).add("output_bytes", ports);
  out.add("kernels", kernels).add("host_calls", hosts).add("passes", passes).add("steps", steps);
  out.add("custom_ops", custom_libraries(sections));
  add_places(p, out);
  return json::text(out);
}

}  // namespace tessera
