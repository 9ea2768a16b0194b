// SPDX-License-Identifier: Apache-2.0
#include "try_program.h"

#include <chrono>
#include <cstring>
#include <new>

#include "ops/check_types.h"
#include "passes/pass.h"
#include "plan/planner.h"

namespace tessera::fuzz {
namespace {

constexpr int64_t kMostBytes = 8 << 20;    // of inputs and outputs of a run
constexpr int64_t kMostWork = 50'000'000;  // flops and bytes of a run
constexpr size_t kMostBatches = 8;
constexpr std::chrono::milliseconds kMostTime{200};  // of a run

int64_t work_of(const Program& p) {
  double total = 0;
  auto add = [&](const Section& s) {
    for (const Work& w : s.work)
      total += static_cast<double>(w.flops) + static_cast<double>(w.bytes);
  };
  for (const TaskDesc& t : p.tasks) add(t.section);
  add(p.update);
  return total < 1e18 ? static_cast<int64_t>(total) : INT64_MAX;
}

std::vector<std::byte> some_data(int64_t bytes, DType dtype, Random& r) {
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  const size_t kind = r.below(4);
  for (size_t i = 0; i + 8 <= out.size(); i += 8) {
    uint64_t v = r.next();
    if (kind == 0) v = 0;
    if (kind == 1) v %= 5;                                      // an index
    if (kind == 2 && is_float(dtype)) v = 0x3f8000003f000000u;  // 0.5, 1
    // Out of range as an index, but sums and products of a few do not wrap.
    if (dtype == DType::I64 && kind >= 2) v = static_cast<uint64_t>(static_cast<int64_t>(v) >> 44);
    if (dtype == DType::I32 && kind >= 2) v &= 0x00001fff00001fffu;
    if (dtype == DType::Bool) v &= 0x0101010101010101u;
    std::memcpy(out.data() + i, &v, 8);
  }
  return out;
}

}  // namespace

bool run_engine(Engine& engine, Random& r) {
  const Program& p = engine.program();
  const RunConfig& c = engine.config();
  const int64_t batches = c.steps() * c.replicas;
  if (batches > static_cast<int64_t>(kMostBatches) || work_of(p) > kMostWork) return false;
  int64_t bytes = 0;
  for (const PortDesc& port : p.inputs) bytes += port.bytes() * batches;
  for (const PortDesc& port : p.outputs) bytes += port.bytes() * batches;
  if (bytes > kMostBytes) return false;
  for (const HostCallInfo& call : engine.host_calls()) engine.set_host_call(call.index, [] {});
  for (const StateDesc& s : p.states) {
    if (s.bytes() > kMostBytes || r.one_in(2)) continue;
    const Dims shape = engine.state_shape(s);
    const std::vector<std::byte> data = some_data(product(shape) * size_of(s.dtype), s.dtype, r);
    engine.write_state(s.name, data.data(), static_cast<int64_t>(data.size()));
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<const void*> in;
  std::vector<void*> out;
  memory.reserve(p.inputs.size() + p.outputs.size());
  for (const PortDesc& port : p.inputs)
    in.push_back(memory.emplace_back(some_data(port.bytes() * batches, port.dtype, r)).data());
  for (const PortDesc& port : p.outputs)
    out.push_back(memory.emplace_back(static_cast<size_t>(port.bytes() * batches)).data());
  // A loop may never end; engines ask now and then.
  const auto end = std::chrono::steady_clock::now() + kMostTime;
  engine.run(in, out, [&] { return std::chrono::steady_clock::now() > end; });
  return true;
}

namespace {

void run_passes(const Graph& graph, const CompileOptions& o, Random& r) {
  PassContext ctx{.gradient_accumulation = 1 + static_cast<int64_t>(r.below(3))};
  ctx.settings = o.settings;
  ctx.settings.set("running_mean", Arg::boolean(r.one_in(2)));
  for (const char* name : {"stochastic_rounding", "half_partials", "recompute_all"})
    ctx.settings.set(name, Arg::boolean(r.one_in(2)));
  // Two passes alone, any others in their order.
  for (int k = 0; k < 2; ++k) {
    const PassRow& row = r.pick(pipeline());
    auto g = graph.clone();
    PassRunner().run(*g, ctx, {row});
    print_graph(*g);
  }
  auto g = graph.clone();
  recompute_regions(*g, ctx);
  verify_graph(*g);
  if (auto update = split_update(*g, ctx)) {
    append_optimizer(*update, ctx);
    verify_graph(*update);
  }
  append_optimizer(*g, ctx);
  verify_graph(*g);
  PassRunner runner;
  for (const PassRow& row : pipeline())
    if (r.one_in(4)) runner.disabled.push_back(row.name);
  runner.run(*g, ctx, pipeline());
}

}  // namespace

Result try_program(const Mutant& m, Random& r) {
  const char* stage = "reading";
  bool placed = true;  // errors say where in the text
  try {
    auto graph = parse_graph(m.text);
    check_types(*graph);
    placed = false;
    stage = "printing";
    verify_graph(*graph);
    const std::string text = print_graph(*graph);
    if (print_graph(*parse_graph(text)) != text)
      return {Outcome::kBad, "what is printed reads as another program"};
    stage = "passes";
    try {
      run_passes(*graph, m.options, r);
    } catch (const UserError&) {
      // The optimizer refuses as late as here; so does the session below.
    }
    stage = "compiling";
    std::unordered_map<std::string, Constant> constants;
    std::vector<std::vector<std::byte>> blobs;
    for (const Source& s : graph->sources) {
      const int64_t bytes = graph->type(s.value).bytes();
      if (s.kind != SourceKind::kConst || bytes > kMostBytes) continue;
      blobs.push_back(some_data(bytes, graph->type(s.value).dtype, r));
      constants[s.name] = {blobs.back().data(), bytes};
    }
    Session session(m.text, m.options, constants, nullptr);
    stage = "printing the plan";
    print_program(session.engine().program());
    stage = "running";
    try {
      return {run_engine(session.engine(), r) ? Outcome::kRan : Outcome::kCompiled, ""};
    } catch (const UserError&) {
      return {Outcome::kRunRefused, ""};
    } catch (const Interrupted&) {
      return {Outcome::kRunRefused, ""};
    }
  } catch (const UserError& e) {
    if (placed && !std::strstr(e.what(), "line "))
      return {Outcome::kBad, fmt::format("no place: {}", e.what())};
    return {Outcome::kRefused, ""};
  } catch (const std::exception& e) {
    return {Outcome::kBad, fmt::format("{}: {}", stage, e.what())};
  }
}

}  // namespace tessera::fuzz
