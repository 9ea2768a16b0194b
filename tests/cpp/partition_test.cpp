// SPDX-License-Identifier: Apache-2.0
// Random graphs with random places, as tasks on several IPUs: they compute what one program
// computes, whatever the places, the strategy and the number of threads.
#include "passes/partition.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <set>

#include "session/session.h"

using namespace tessera;

namespace {

constexpr int kSide = 8, kInputs = 2, kStates = 3, kStages = 4, kMicroBatches = 6;

// Pointwise ops, views and products over square matrices; states read and written anywhere.
std::string random_text(unsigned seed, bool sane) {
  std::mt19937 gen(seed);
  auto pick = [&](int n) { return static_cast<int>(gen() % static_cast<unsigned>(n)); };
  const std::string type = fmt::format(" : f32[{},{}]", kSide, kSide);
  std::string text = "tessera 1\ngraph \"random\" {\n", locs;
  int next = 0;
  for (int i = 0; i < kStates; ++i)
    text += fmt::format("  buffer %{} \"s{}\"{}\n", next++, i, type);
  for (int i = 0; i < kInputs; ++i) text += fmt::format("  input %{} \"x{}\"{}\n", next++, i, type);
  const int nodes = 30;
  for (int i = 0; i < nodes; ++i) {
    const int x = pick(next), y = pick(next);
    const char* forms[] = {"tanh(%{0})",    "add(%{0}, %{1})",       "mul(%{0}, %{1})",
                           "sigmoid(%{0})", "permute(%{0}, [1, 0])", "mm(%{0}, %{1})"};
    // Sane: first forward through the stages, then backward.
    const bool backward = sane ? i >= nodes / 2 : pick(2) == 1;
    const int turn = 2 * kStages * i / nodes;
    const int stage = !sane ? pick(kStages) : backward ? 2 * kStages - 1 - turn : turn;
    text += fmt::format("  %{} = {}{} !{}\n", next++,
                        fmt::format(fmt::runtime(forms[pick(6)]), x, y), type, i);
    locs += fmt::format("loc !{} \"m.py\" {} \"\" {} {} {} {}\n", i, i + 1,
                        backward ? "bwd" : "fwd", stage, stage, stage / 2);
  }
  // Small changes, so that errors do not grow from step to step.
  text += fmt::format("  %{} = tanh(%{}){}\n", next, next - 1, type);
  text += fmt::format("  output %{}, %{}\n", next, next - 3);
  ++next;
  for (int i = 0; i < 2; ++i) text += fmt::format("  update %{} %{}\n", i, next - 1 - 4 * i);
  return text + "}\n" + locs;
}

struct Result {
  std::vector<float> outputs[2], states;
};

Result run(const std::string& text, PartitionOptions placement, int threads, int replicas,
           bool& partitioned, int* grouped = nullptr) {
  CompileOptions o;
  o.settings.set("training", Arg::boolean(true));
  o.placement = placement;
  o.run.replicas = replicas;
  o.run.device_iterations = kMicroBatches / replicas;
  o.run.threads = threads;
  o.run.output = {OutputMode::kAll};
  Session session(text, o, {}, nullptr);
  Engine& e = session.engine();
  const std::vector<TaskDesc>& tasks = e.program().tasks;
  partitioned = tasks.size() > 1;
  if (grouped && partitioned) *grouped += tasks.back().group + 1 < static_cast<int>(tasks.size());
  const size_t n = kSide * kSide;
  std::mt19937 gen(1);
  auto fill = [&](size_t count) {
    std::vector<float> v(count);
    for (float& x : v) x = static_cast<float>(gen() % 1000) / 1000.0f - 0.5f;
    return v;
  };
  for (const StateDesc& s : e.program().states) {
    const std::vector<float> v = fill(n);
    e.write_state(s.name, v.data(), static_cast<int64_t>(n * 4));
  }
  const std::vector<float> x[2] = {fill(n * kMicroBatches), fill(n * kMicroBatches)};
  Result r;
  for (auto& out : r.outputs) out.resize(n * kMicroBatches);
  for (int call = 0; call < 2; ++call)
    e.run({x[0].data(), x[1].data()}, {r.outputs[0].data(), r.outputs[1].data()}, nullptr);
  r.states.resize(n * kStates);
  for (int i = 0; i < kStates; ++i)
    e.read_state(fmt::format("s{}", i), r.states.data() + n * static_cast<size_t>(i),
                 static_cast<int64_t>(n * 4));
  return r;
}

// Values that have grown so large differ by rounding alone.
bool is_tame(const Result& r) {
  for (const auto* v : {&r.outputs[0], &r.outputs[1], &r.states})
    for (float x : *v)
      if (!(std::abs(x) < 100)) return false;
  return true;
}

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= 1e-4f + 1e-4f * std::abs(b[i]))) return false;
  return true;
}

}  // namespace

TEST_CASE("tasks compute what one program computes") {
  int partitioned_runs = 0, grouped_runs = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const std::string text = random_text(seed, seed % 2 == 0);
    bool partitioned = false;
    const int replicas = 1 + static_cast<int>(seed / 2 % 2);  // each with states of its own
    const Result expected = run(text, {}, 1, replicas, partitioned);
    REQUIRE(!partitioned);
    if (!is_tame(expected)) continue;
    for (Strategy strategy : {Strategy::kPipelined, Strategy::kSharded, Strategy::kPhased})
      for (bool recompute : {true, false})
        for (int threads : {1, 2, 3}) {
          PartitionOptions placement;
          placement.strategy = strategy;
          placement.recompute = recompute;
          placement.liveness = static_cast<Liveness>(seed % 4);
          const Result actual = run(text, placement, threads, replicas, partitioned,
                                    strategy == Strategy::kPhased ? &grouped_runs : nullptr);
          partitioned_runs += partitioned;
          CAPTURE(seed);
          CAPTURE(static_cast<int>(strategy));
          CAPTURE(threads);
          CHECK(close(actual.outputs[0], expected.outputs[0]));
          CHECK(close(actual.outputs[1], expected.outputs[1]));
          CHECK(close(actual.states, expected.states));
        }
  }
  CHECK(partitioned_runs > 500);
  CHECK(grouped_runs > 50);
}

TEST_CASE("a task waits only for what came before") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    auto g = parse_graph(random_text(seed, seed % 2 == 0));
    PartitionOptions placement;
    placement.strategy = Strategy::kPipelined;
    const Partition p = partition(*g, placement);
    for (size_t t = 0; t < p.tasks.size(); ++t) {
      verify_graph(*p.tasks[t].graph);
      for (const WaitDesc& w : p.tasks[t].info.waits)
        CHECK((w.lag > 0 || w.task < static_cast<int>(t)));
    }
    for (const ChannelDesc& c : p.channels)
      for (int r : c.readers) CHECK(c.from < r);
  }
}

TEST_CASE("numbers that an optimizer reads each step stay on chip") {
  const PartitionOptions o;
  CHECK(o.rule_of(SourceKind::kHyper) == nullptr);
  CHECK(o.rule_of(SourceKind::kLossScale) == nullptr);
  CHECK(o.rule_of(SourceKind::kMicroCount) == nullptr);
  CHECK(o.rule_of(SourceKind::kOptimizer) == &o.optimizer);
  CHECK(o.rule_of(SourceKind::kAccumulator) == &o.accumulators);
  CHECK(o.rule_of(SourceKind::kBuffer) == nullptr);
}
