// SPDX-License-Identifier: Apache-2.0
// Loops whose length the data decide, from text to numbers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "session/session.h"

using namespace tessera;

namespace {

std::unique_ptr<Session> load(const std::string& lines, int threads = 1) {
  CompileOptions o;
  o.run.threads = threads;
  return std::make_unique<Session>("tessera 1\ngraph \"t\" {\n" + lines + "}\n", o,
                                   std::unordered_map<std::string, Constant>{}, nullptr);
}

void run(Session& s, std::vector<const void*> in, std::vector<void*> out,
         const Poll& poll = nullptr) {
  s.engine().run(in, out, poll);
}

// Sizes at which one thread, and all threads, run the steps of a body.
const int64_t kSizes[] = {5, 300000};

// Adds 1 to x as long as its largest element is below a bound; counts the turns.
std::string count_up(int64_t n) {
  return fmt::format(R"(
  input %0 "x" : f32[{0}]
  input %1 "bound" : f32[]
  input %2 "go" : bool[1]
  %3 = full(0) : i64[]
  %4, %5, %6 = while([%2, %0, %3], [%1]) {{
    input %0 "go" : bool[1]
    input %1 "x" : f32[{0}]
    input %2 "turns" : i64[]
    input %3 "bound" : f32[]
    %4 = add(%1, 1.0) : f32[{0}]
    %5 = amax(%4, [0], false) : f32[]
    %6 = lt(%5, %3) : bool[]
    %7 = view(%6, [1]) : bool[1]
    %8 = add(%2, 1) : i64[]
    output %7, %4, %8
  }} : bool[1], f32[{0}], i64[]
  output %5, %6, %4
)",
                     n);
}

}  // namespace

TEST_CASE("a loop ends when the bool that it carries is false") {
  for (int threads : {1, 2})
    for (int64_t n : kSizes) {
      auto s = load(count_up(n), threads);
      std::vector<float> x(static_cast<size_t>(n)), y(x.size());
      std::iota(x.begin(), x.end(), 0.0f);
      const float last = x.back();
      for (int turns : {0, 1, 2, 37}) {
        const float bound = last + static_cast<float>(turns);
        bool go = turns > 0, left = true;
        int64_t counted = -1;
        run(*s, {x.data(), &bound, &go}, {y.data(), &counted, &left});
        CHECK(counted == turns);
        CHECK_FALSE(left);
        size_t wrong = 0;
        for (size_t i = 0; i < x.size(); ++i) wrong += y[i] != x[i] + static_cast<float>(turns);
        CHECK(wrong == 0);
      }
    }
}

TEST_CASE("threads agree on the number of turns in run after run") {
  // The flag is the cheapest of a turn's results, so a thread that is ahead makes the next one
  // while others have yet to read it.
  constexpr int64_t kSize = 20000;
  auto s = load(fmt::format(R"(
  input %0 "x" : f32[{0}]
  input %1 "n" : i64[]
  %2 = full(true) : bool[]
  %3, %4, %5 = while([%2, %0, %1], []) {{
    input %0 "go" : bool[]
    input %1 "x" : f32[{0}]
    input %2 "n" : i64[]
    %3 = sub(%2, 1) : i64[]
    %4 = gt(%3, 0) : bool[]
    %5 = add(%1, 1.0) : f32[{0}]
    %6 = flip(%5, [0]) : f32[{0}]
    output %4, %6, %3
  }} : bool[], f32[{0}], i64[]
  output %4
)",
                            kSize),
                3);
  std::vector<float> x(kSize, 0.0f), y(x.size());
  for (int64_t turns = 1; turns < 200; ++turns) {
    run(*s, {x.data(), &turns}, {y.data()});
    REQUIRE(
        std::all_of(y.begin(), y.end(), [&](float v) { return v == static_cast<float>(turns); }));
  }
}

TEST_CASE("loops in loops: the steps of Collatz numbers") {
  for (int threads : {1, 2}) {
    auto s = load(R"(
  input %0 "n" : i64[]
  %1 = full(true) : bool[]
  %2 = full(0) : i64[]
  %3, %4, %5 = while([%1, %0, %2], []) {
    input %0 "go" : bool[]
    input %1 "n" : i64[]
    input %2 "most" : i64[]
    %3 = gt(%1, 1) : bool[]
    %4 = full(0) : i64[]
    %5, %6, %7 = while([%3, %1, %4], []) {
      input %0 "go" : bool[]
      input %1 "n" : i64[]
      input %2 "steps" : i64[]
      %3 = bitwise_and(%1, 1) : i64[]
      %4 = gt(%3, 0) : bool[]
      %5 = branch(%4, [%1]) {
        input %0 "n" : i64[]
        %1 = mul(%0, 3) : i64[]
        %2 = add(%1, 1) : i64[]
        output %2
      } {
        input %0 "n" : i64[]
        %1 = div_trunc(%0, 2) : i64[]
        output %1
      } : i64[]
      %6 = gt(%5, 1) : bool[]
      %7 = add(%2, 1) : i64[]
      output %6, %5, %7
    } : bool[], i64[], i64[]
    %8 = maximum(%2, %7) : i64[]
    %9 = sub(%1, 1) : i64[]
    %10 = gt(%9, 0) : bool[]
    output %10, %9, %8
  } : bool[], i64[], i64[]
  output %5
)",
                  threads);
    const int64_t n = 1000;
    int64_t most = 0, want = 0;
    run(*s, {&n}, {&most});
    for (int64_t k = n; k > 0; --k) {
      int64_t steps = 0;
      for (int64_t v = k; v > 1; ++steps) v = v % 2 ? 3 * v + 1 : v / 2;
      want = std::max(want, steps);
    }
    CHECK(most == want);
  }
}

TEST_CASE("a host call in a loop of unknown length runs once a turn") {
  for (int threads : {1, 2}) {
    auto s = load(R"(
  input %0 "x" : f32[4]
  %1 = full(true) : bool[]
  %2, %3 = while([%1, %0], []) {
    input %0 "go" : bool[]
    input %1 "x" : f32[4]
    %2 = host_call("aten::mine", %1) : f32[4]
    %3 = amax(%2, [0], false) : f32[]
    %4 = lt(%3, 100.0) : bool[]
    output %4, %2
  } : bool[], f32[4]
  output %3
)",
                  threads);
    Engine& engine = s->engine();
    REQUIRE(engine.host_calls().size() == 1);
    const HostCallInfo& call = engine.host_calls()[0];
    auto at = [&](const TensorRef& t) { return reinterpret_cast<float*>(engine.address(call, t)); };
    int calls = 0;
    engine.set_host_call(0, [&] {
      ++calls;
      for (int i = 0; i < 4; ++i) at(call.desc.outputs[0])[i] = at(call.desc.inputs[0])[i] * 2;
    });
    const std::vector<float> x{1, 2, 3, 4};
    std::vector<float> y(4);
    run(*s, {x.data()}, {y.data()});
    CHECK(calls == 5);
    CHECK(y == std::vector<float>{32, 64, 96, 128});
  }
}

TEST_CASE("a loop that does not end is stopped by the caller") {
  for (int threads : {1, 2})
    for (int64_t n : {5, 100000}) {
      auto s = load(count_up(n), threads);
      const std::vector<float> x(static_cast<size_t>(n), 0.0f);
      std::vector<float> y(x.size());
      const float bound = INFINITY;
      const bool go = true;
      int64_t turns = 0;
      bool left = false;
      int polls = 0;
      CHECK_THROWS_AS(
          run(*s, {x.data(), &bound, &go}, {y.data(), &turns, &left}, [&] { return ++polls == 3; }),
          Interrupted);
    }
}

TEST_CASE("a loop that changes nothing is stopped by the caller as well") {
  for (int threads : {1, 2}) {
    auto s = load(R"(
  input %0 "go" : bool[]
  %1 = while([%0], []) {
    input %0 "go" : bool[]
    output %0
  } : bool[]
  output %1
)",
                  threads);
    bool go = false, left = true;
    run(*s, {&go}, {&left});
    CHECK_FALSE(left);
    go = true;
    int polls = 0;
    CHECK_THROWS_AS(run(*s, {&go}, {&left}, [&] { return ++polls == 3; }), Interrupted);
  }
}

TEST_CASE("what the data make wrong ends a loop of unknown length") {
  for (int threads : {1, 2}) {
    auto s = load(R"(
  input %0 "t" : f32[3,4]
  %1 = full(true) : bool[]
  %2 = full(0) : i64[1]
  %3, %4, %5 = while([%1, %2, %0], []) {
    input %0 "go" : bool[]
    input %1 "i" : i64[1]
    input %2 "t" : f32[3,4]
    %3 = index_select(%2, 0, %1) : f32[1,4]
    %4 = expand(%3, [3, 4]) : f32[3,4]
    %5 = add(%2, %4) : f32[3,4]
    %6 = add(%1, 1) : i64[1]
    output %0, %6, %5
  } : bool[], i64[1], f32[3,4]
  output %5
)",
                  threads);
    const std::vector<float> t(12, 1.0f);
    std::vector<float> y(12);
    CHECK_THROWS_WITH_AS(run(*s, {t.data()}, {y.data()}), doctest::Contains("index"), UserError);
  }
}

TEST_CASE("bodies that do not fit a while are the user's errors, with their place") {
  auto refused = [](const std::string& lines, const char* part) {
    CHECK_THROWS_WITH_AS(load(lines), doctest::Contains(part), UserError);
    CHECK_THROWS_WITH_AS(load(lines), doctest::Contains("line "), UserError);
  };
  const std::string go = "  input %0 \"go\" : bool[]\n  input %1 \"x\" : f32[4]\n  %2 = while(";
  refused(go + "[%0], []) : bool[]\n", "while has one body");
  refused(go + "[], [%0]) { input %0 \"go\" : bool[] output %0 } : bool[]\n", "no carry to test");
  refused(go + "[%1], []) { input %0 \"x\" : f32[4] output %0 } : f32[4]\n", "tests one bool");
  refused(go + "[%0], [%1]) { input %0 \"go\" : bool[] input %1 \"x\" : f32[4] output %0, %1 } : "
               "bool[]\n",
          "2 outputs for 1 carries");
  refused(go + "[%0], []) { input %0 \"go\" : bool[] %1 = full(1.0) : f32[] output %1 } : bool[]\n",
          "while carries bool[] from turn to turn, its body gives f32[]");
}
