// SPDX-License-Identifier: Apache-2.0
// The text cases core/plan/*.tir, and properties of the memory plan and of the schedule on random
// lifetimes and random graphs.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "passes/pass.h"
#include "plan/planner.h"
#include "text_cases.h"

using namespace tessera;

namespace {

// A random graph of pointwise ops, views, products and reductions over 16x16 matrices.
std::unique_ptr<Graph> random_graph(unsigned seed) {
  std::mt19937 gen(seed);
  auto pick = [&](int n) { return static_cast<int>(gen() % static_cast<unsigned>(n)); };
  auto g = std::make_unique<Graph>();
  g->name = "random";
  TensorType t{DType::F32, {16, 16}, {}};
  std::vector<ValueId> known;
  for (int i = 0; i < 3; ++i)
    known.push_back(g->add_source(SourceKind::kInput, fmt::format("x{}", i), t));
  std::vector<ValueId> states;
  for (int i = 0; i < 2; ++i) {
    states.push_back(g->add_source(SourceKind::kParam, fmt::format("w{}", i), t));
    known.push_back(states.back());
  }
  Builder b(*g);
  for (int i = 0; i < 40; ++i) {
    ValueId x = known[pick(static_cast<int>(known.size()))],
            y = known[pick(static_cast<int>(known.size()))];
    switch (pick(6)) {
      case 0:
        known.push_back(b.add(Op::Add, {x, y}, t));
        break;
      case 1:
        known.push_back(b.add(Op::Mul, {x, y}, t));
        break;
      case 2:
        known.push_back(b.add(Op::Tanh, {x}, t));
        break;
      case 3:
        known.push_back(b.add(Op::Mm, {x, y}, t));
        break;
      case 4:
        known.push_back(b.add(Op::Permute, {x}, t, {Arg::ints({1, 0})}));
        break;
      default: {
        ValueId s =
            b.add(Op::Sum, {x}, {DType::F32, {1, 16}, {}}, {Arg::ints({0}), Arg::boolean(true)});
        known.push_back(b.add(Op::Sub, {y, s}, t));
      }
    }
  }
  // New states are read by nothing else, so that a read of overwritten state is a read of the old
  // value.
  for (size_t i = 0; i < states.size(); ++i)
    g->updates.push_back({states[i], b.add(Op::Add, {states[i], known[known.size() - 3 - i]}, t)});
  g->nodes = std::move(b.out);
  g->outputs = {known[known.size() - 1], known[known.size() - 2], known[0]};
  return g;
}

bool overlap(int64_t a, int64_t a_bytes, int64_t b, int64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

TEST_CASE("plan cases") {
  const auto files = case_files(TESSERA_CORE_DIR "/plan");
  CHECK_FALSE(files.empty());
  for (const auto& file : files) {
    CAPTURE(file.filename().string());
    for (const TextCase& c : run_cases(file)) {
      CAPTURE(c.name);
      CHECK(c.actual == c.expected);
    }
  }
}

TEST_CASE("buffers alive together never overlap") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 gen(seed);
    std::vector<Lifetime> lives;
    int64_t bound = 0;
    for (int i = 0; i < 60; ++i) {
      int first = static_cast<int>(gen() % 50);
      lives.push_back(
          {static_cast<int64_t>(gen() % 5000), first, first + static_cast<int>(gen() % 20)});
    }
    std::vector<int64_t> offsets;
    int64_t total = assign_offsets(lives, offsets);
    for (int step = 0; step < 70; ++step) {
      int64_t live = 0;
      for (const Lifetime& l : lives)
        if (l.first <= step && step <= l.last) live += (l.bytes + 63) / 64 * 64;
      bound = std::max(bound, live);
    }
    CHECK(total >= bound);
    CHECK(total <= bound * 3 / 2);
    for (size_t i = 0; i < lives.size(); ++i) {
      CHECK(offsets[i] % 64 == 0);
      CHECK(offsets[i] + lives[i].bytes <= total);
      for (size_t j = i + 1; j < lives.size(); ++j) {
        bool together = lives[i].first <= lives[j].last && lives[j].first <= lives[i].last;
        if (together && lives[i].bytes && lives[j].bytes)
          CHECK_FALSE(overlap(offsets[i], lives[i].bytes, offsets[j], lives[j].bytes));
      }
    }
  }
}

TEST_CASE("in a planned program no step's result lies on memory still to be read") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    auto g = random_graph(seed);
    PassRunner runner;
    PassContext ctx;
    ctx.settings.set("training", Arg::boolean(true));
    runner.run(*g, ctx, pipeline());
    Program p = plan_program(*g, partition(*g, {}), nullptr);
    const auto& steps = p.tasks[0].section.steps;
    auto range = [](const TensorRef& t) {
      int64_t last = 0;
      for (size_t i = 0; i < t.shape.size(); ++i) last += (t.shape[i] - 1) * t.strides[i];
      return std::pair(t.offset, (last + 1) * size_of(t.dtype));
    };
    // Track, per arena or state byte range, which step wrote it: every input must still hold what
    // its producer wrote.
    std::vector<int> arena(static_cast<size_t>(p.arena_bytes), -1),
        state(static_cast<size_t>(p.state_bytes), -1);
    for (size_t i = 0; i < steps.size(); ++i) {
      for (const TensorRef& in : steps[i].inputs) {
        auto [at, bytes] = range(in);
        if (in.region != kArenaRegion) continue;
        CHECK(at + bytes <= p.arena_bytes);
        int writer = arena[static_cast<size_t>(at)];
        CHECK_MESSAGE(writer >= 0, "step " << i << " reads memory nobody wrote");
        for (int64_t k = at; k < at + bytes; ++k) CHECK(arena[static_cast<size_t>(k)] == writer);
      }
      for (const TensorRef& out : steps[i].outputs) {
        auto [at, bytes] = range(out);
        auto& memory = out.region == kArenaRegion ? arena : state;
        if (out.region > kStateRegion) continue;
        for (int64_t k = at; k < at + bytes; ++k)
          memory[static_cast<size_t>(k)] = static_cast<int>(i);
      }
    }
    // A state is never read after it was overwritten, except by the copy that overwrites another
    // state.
    std::vector<bool> overwritten(static_cast<size_t>(p.state_bytes), false);
    for (const StepDesc& s : steps) {
      for (const TensorRef& in : s.inputs)
        if (in.region == kStateRegion) CHECK_FALSE(overwritten[static_cast<size_t>(in.offset)]);
      for (const TensorRef& out : s.outputs)
        if (out.region == kStateRegion) overwritten[static_cast<size_t>(out.offset)] = true;
    }
  }
}

TEST_CASE("an update of a weight runs soon after its gradient") {
  // Four layers; without early updates all four gradients would be alive together.
  std::string text = "tessera 1\ngraph \"t\" {\n";
  for (int i = 0; i < 4; ++i) text += fmt::format("param %{} \"w{}\" : f32[64,64]\n", i, i);
  text += "input %9 \"x\" : f32[64,64]\n";
  for (int i = 0; i < 4; ++i) text += fmt::format("%{} = mm(%9, %9) : f32[64,64]\n", 10 + i);
  for (int i = 0; i < 4; ++i) text += fmt::format("grad %{} %{}\n", i, 10 + i);
  text += "optimize \"sgd\" 0 [%0, %1, %2, %3] {lr=0, momentum=1}\n}";
  auto g = parse_graph(text);
  PassContext ctx;
  ctx.settings.set("training", Arg::boolean(true));
  append_optimizer(*g, ctx);
  PassRunner runner;
  runner.disabled = {"cse", "cse-2", "fuse-epilogue"};
  runner.run(*g, ctx, pipeline());
  Program p = plan_program(*g, partition(*g, {}), nullptr);
  CHECK(p.arena_bytes <= 2 * 64 * 64 * 4 + 256);
}
