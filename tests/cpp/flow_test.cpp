// SPDX-License-Identifier: Apache-2.0
// Loops and branches, from text to numbers.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>

#include "session/session.h"

using namespace tessera;

namespace {

std::unique_ptr<Session> load(const std::string& lines, int threads = 1,
                              bool check_floats = false) {
  CompileOptions o;
  o.run.threads = threads;
  o.run.check_floats = check_floats;
  return std::make_unique<Session>("tessera 1\ngraph \"t\" {\n" + lines + "}\n", o,
                                   std::unordered_map<std::string, Constant>{}, nullptr);
}

void run(Session& s, std::vector<const void*> in, std::vector<void*> out,
         const Poll& poll = nullptr) {
  s.engine().run(in, out, poll);
}

std::vector<float> ramp(size_t n, float from = 0, float step = 1) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = from + step * static_cast<float>(i);
  return v;
}

// One check for many elements.
template <typename F>
void check_all(size_t count, const F& holds) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += !holds(i);
  CHECK(wrong == 0);
}

// Sizes at which one thread, and all threads, run the steps of a body.
const int64_t kSizes[] = {5, 300000};

}  // namespace

TEST_CASE("a loop adds its capture in every turn") {
  for (int threads : {1, 2})
    for (int64_t n : kSizes) {
      auto s = load(fmt::format(R"(
  input %0 "x" : f32[{0}]
  input %1 "k" : f32[{0}]
  %2 = scan(10, [%0], [], [%1], false) {{
    input %0 "c" : f32[{0}]
    input %1 "k" : f32[{0}]
    %2 = add(%0, %1) : f32[{0}]
    output %2
  }} : f32[{0}]
  output %2
)",
                                n),
                    threads);
      const auto x = ramp(static_cast<size_t>(n)), k = ramp(static_cast<size_t>(n), 1, 0);
      std::vector<float> y(x.size());
      run(*s, {x.data(), k.data()}, {y.data()});
      check_all(y.size(), [&](size_t i) { return y[i] == x[i] + 10; });
    }
}

TEST_CASE("carries that swap and grow: Fibonacci numbers") {
  for (int threads : {1, 2})
    for (int64_t n : kSizes) {
      auto s = load(fmt::format(R"(
  input %0 "a" : i64[{0}]
  input %1 "b" : i64[{0}]
  %2, %3 = scan(50, [%0, %1], [], [], false) {{
    input %0 "a" : i64[{0}]
    input %1 "b" : i64[{0}]
    %2 = add(%0, %1) : i64[{0}]
    output %1, %2
  }} : i64[{0}], i64[{0}]
  output %2, %3
)",
                                n),
                    threads);
      const std::vector<int64_t> a(static_cast<size_t>(n), 0), b(static_cast<size_t>(n), 1);
      std::vector<int64_t> y(a.size()), z(a.size());
      run(*s, {a.data(), b.data()}, {y.data(), z.data()});
      check_all(y.size(), [&](size_t i) { return y[i] == 12586269025 && z[i] == 20365011074; });
    }
}

TEST_CASE("slices are read and written in the order of the turns") {
  for (int threads : {1, 2})
    for (int64_t n : kSizes)
      for (bool reverse : {false, true}) {
        auto s = load(fmt::format(R"(
  input %0 "c" : f32[{0}]
  input %1 "x" : f32[4,{0}]
  %2, %3 = scan(4, [%0], [%1], [], {1}) {{
    input %0 "c" : f32[{0}]
    input %1 "x" : f32[{0}]
    %2 = mul(%0, 2.0) : f32[{0}]
    %3 = add(%2, %1) : f32[{0}]
    output %3, %0
  }} : f32[{0}], f32[4,{0}]
  output %2, %3
)",
                                  n, reverse),
                      threads);
        const auto size = static_cast<size_t>(n);
        const auto c = ramp(size, 1, 0), x = ramp(4 * size);
        std::vector<float> last(size), before(4 * size);
        run(*s, {c.data(), x.data()}, {last.data(), before.data()});
        check_all(size, [&](size_t i) {
          float v = c[i];
          bool right = true;
          for (size_t turn = 0; turn < 4; ++turn) {
            const size_t at = (reverse ? 3 - turn : turn) * size + i;
            right &= before[at] == v;
            v = 2 * v + x[at];
          }
          return right && last[i] == v;
        });
      }
}

TEST_CASE("a loop of no turns gives its carries back") {
  auto s = load(R"(
  input %0 "c" : f32[3]
  %1, %2 = scan(0, [%0], [], [], false) {
    input %0 "c" : f32[3]
    %1 = neg(%0) : f32[3]
    output %1, %1
  } : f32[3], f32[0,3]
  output %1, %2
)");
  const auto c = ramp(3);
  std::vector<float> y(3);
  run(*s, {c.data()}, {y.data(), nullptr});
  CHECK(y == c);
}

TEST_CASE("a branch goes one way") {
  for (int threads : {1, 2})
    for (int64_t n : kSizes) {
      auto s = load(fmt::format(R"(
  input %0 "if" : bool[1]
  input %1 "x" : f32[{0}]
  %2, %3 = branch(%0, [%1]) {{
    input %0 "x" : f32[{0}]
    %1 = add(%0, 1.0) : f32[{0}]
    output %0, %1
  }} {{
    input %0 "x" : f32[{0}]
    %1 = full(7.0) : f32[{0}]
    output %1, %1
  }} : f32[{0}], f32[{0}]
  output %2, %3
)",
                                n),
                    threads);
      const auto x = ramp(static_cast<size_t>(n));
      std::vector<float> y(x.size()), z(x.size());
      for (bool way : {true, false, true}) {
        run(*s, {&way, x.data()}, {y.data(), z.data()});
        check_all(x.size(), [&](size_t i) {
          return y[i] == (way ? x[i] : 7) && z[i] == (way ? x[i] + 1 : 7);
        });
      }
    }
}

TEST_CASE("loops in loops and branches in loops") {
  for (int threads : {1, 2})
    for (int64_t n : kSizes) {
      auto s = load(fmt::format(R"(
  input %0 "c" : f32[{0}]
  input %1 "if" : bool[3]
  input %2 "k" : f32[{0}]
  %3 = scan(3, [%0], [%1], [%2], false) {{
    input %0 "c" : f32[{0}]
    input %1 "if" : bool[]
    input %2 "k" : f32[{0}]
    %3 = branch(%1, [%0, %2]) {{
      input %0 "c" : f32[{0}]
      input %1 "k" : f32[{0}]
      %2 = scan(4, [%0], [], [%1], false) {{
        input %0 "c" : f32[{0}]
        input %1 "k" : f32[{0}]
        %2 = add(%0, %1) : f32[{0}]
        output %2
      }} : f32[{0}]
      output %2
    }} {{
      input %0 "c" : f32[{0}]
      input %1 "k" : f32[{0}]
      %2 = mul(%0, 3.0) : f32[{0}]
      output %2
    }} : f32[{0}]
    output %3
  }} : f32[{0}]
  output %3
)",
                                n),
                    threads);
      const auto x = ramp(static_cast<size_t>(n)), k = ramp(x.size(), 2, 0);
      const bool ways[3] = {true, false, true};
      std::vector<float> y(x.size());
      run(*s, {x.data(), ways, k.data()}, {y.data()});
      check_all(y.size(), [&](size_t i) { return y[i] == (x[i] + 8) * 3 + 8; });
    }
}

TEST_CASE("products in a loop, by all threads") {
  constexpr int64_t kSize = 96;
  const auto text = fmt::format(R"(
  input %0 "c" : f32[{0},{0}]
  param %1 "w" : f32[{0},{0}]
  %2, %3 = scan(7, [%0], [], [%1], false) {{
    input %0 "c" : f32[{0},{0}]
    input %1 "w" : f32[{0},{0}]
    %2 = permute(%1, [1, 0]) : f32[{0},{0}]
    %3 = mm(%0, %2) : f32[{0},{0}]
    %4 = tanh(%3) : f32[{0},{0}]
    %5 = sum(%4, [0], false) : f32[{0}]
    output %4, %5
  }} : f32[{0},{0}], f32[7,{0}]
  output %2, %3
)",
                                kSize);
  const size_t size = kSize * kSize;
  std::vector<float> w(size), x(size), want(size), sums(7 * kSize);
  for (size_t i = 0; i < size; ++i) {
    w[i] = 0.1f * std::sin(static_cast<float>(i));
    x[i] = std::cos(static_cast<float>(3 * i));
  }
  want = x;
  for (size_t turn = 0; turn < 7; ++turn) {
    std::vector<float> next(size);
    for (size_t r = 0; r < kSize; ++r)
      for (size_t c = 0; c < kSize; ++c) {
        double sum = 0;
        for (size_t k = 0; k < kSize; ++k) sum += want[r * kSize + k] * w[c * kSize + k];
        next[r * kSize + c] = static_cast<float>(std::tanh(sum));
        sums[turn * kSize + c] += next[r * kSize + c];
      }
    want = next;
  }
  for (int threads : {1, 2}) {
    auto s = load(text, threads);
    s->engine().write_state("w", w.data(), static_cast<int64_t>(size * 4));
    std::vector<float> y(size), z(sums.size());
    run(*s, {x.data()}, {y.data(), z.data()});
    check_all(size, [&](size_t i) { return std::abs(y[i] - want[i]) < 1e-3f; });
    check_all(z.size(), [&](size_t i) { return std::abs(z[i] - sums[i]) < 2e-2f; });
  }
}

TEST_CASE("a host call in a loop runs once a turn, on what the turn has") {
  for (int threads : {1, 2}) {
    auto s = load(R"(
  input %0 "c" : f32[4]
  input %1 "x" : f32[5,4]
  %2 = scan(5, [%0], [%1], [], false) {
    input %0 "c" : f32[4]
    input %1 "x" : f32[4]
    %2 = host_call("aten::mine", %0, %1) : f32[4]
    %3 = add(%2, 1.0) : f32[4]
    output %3
  } : f32[4]
  output %2
)",
                  threads);
    Engine& engine = s->engine();
    REQUIRE(engine.host_calls().size() == 1);
    const HostCallInfo& call = engine.host_calls()[0];
    auto at = [&](const TensorRef& t) { return reinterpret_cast<float*>(engine.address(call, t)); };
    int calls = 0;
    engine.set_host_call(0, [&] {
      ++calls;
      for (int i = 0; i < 4; ++i)
        at(call.desc.outputs[0])[i] = at(call.desc.inputs[0])[i] * 2 + at(call.desc.inputs[1])[i];
    });
    const auto c = ramp(4), x = ramp(20);
    std::vector<float> y(4);
    run(*s, {c.data(), x.data()}, {y.data()});
    CHECK(calls == 5);
    check_all(4, [&](size_t i) {
      float v = c[i];
      for (size_t turn = 0; turn < 5; ++turn) v = v * 2 + x[turn * 4 + i] + 1;
      return y[i] == v;
    });
  }
}

TEST_CASE("what the data make wrong stops a loop and leaves the state as it was") {
  for (int threads : {1, 2}) {
    auto s = load(R"(
  buffer %0 "b" : f32[4]
  input %1 "i" : i64[1000000]
  input %2 "t" : f32[3,4]
  %3 = scan(1000000, [%0], [%1], [%2], false) {
    input %0 "b" : f32[4]
    input %1 "i" : i64[]
    input %2 "t" : f32[3,4]
    %3 = view(%1, [1]) : i64[1]
    %4 = index_select(%2, 0, %3) : f32[1,4]
    %5 = view(%4, [4]) : f32[4]
    %6 = add(%0, %5) : f32[4]
    output %6
  } : f32[4]
  update %0 %3
)",
                  threads);
    std::vector<int64_t> index(1000000, 1);
    index[10] = 7;
    const auto t = ramp(12);
    const std::vector<float> before{1, 2, 3, 4};
    std::vector<float> after(4);
    s->engine().write_state("b", before.data(), 16);
    CHECK_THROWS_AS(run(*s, {index.data(), t.data()}, {}), UserError);
    s->engine().read_state("b", after.data(), 16);
    CHECK(after == before);
  }
}

TEST_CASE("a long loop ends when the caller wants no more") {
  for (int threads : {1, 2})
    for (int64_t n : {5, 100000}) {
      auto s = load(fmt::format(R"(
  input %0 "c" : f32[{0}]
  %1 = scan(100000000000, [%0], [], [], false) {{
    input %0 "c" : f32[{0}]
    %1 = add(%0, 1.0) : f32[{0}]
    output %1
  }} : f32[{0}]
  output %1
)",
                                n),
                    threads);
      const auto c = ramp(static_cast<size_t>(n));
      std::vector<float> y(c.size());
      int polls = 0;
      CHECK_THROWS_AS(run(*s, {c.data()}, {y.data()}, [&] { return ++polls == 3; }), Interrupted);
    }
}

TEST_CASE("numbers that a turn makes bad are found where they are made") {
  const char* text = R"(
  input %0 "c" : f32[4]
  %1 = scan(200, [%0], [], [], false) {
    input %0 "c" : f32[4]
    %1 = mul(%0, 10.0) : f32[4]
    %2 = reciprocal(%1) : f32[4]
    %3 = reciprocal(%2) : f32[4]
    output %3
  } : f32[4]
  output %1
)";
  for (int threads : {1, 2}) {
    auto s = load(text, threads, true);
    const auto c = ramp(4, 1);
    std::vector<float> y(4);
    CHECK_THROWS_WITH_AS(run(*s, {c.data()}, {y.data()}),
                         doctest::Contains("floating point exception"), UserError);
  }
}

TEST_CASE("bodies that do not fit are the user's errors, with their place") {
  auto refused = [](const std::string& lines, const char* part) {
    CHECK_THROWS_WITH_AS(load(lines), doctest::Contains(part), UserError);
    CHECK_THROWS_WITH_AS(load(lines), doctest::Contains("line "), UserError);
  };
  const std::string one = "  input %0 \"c\" : f32[4]\n  %1 = scan(";
  refused(one + "3, [%0], [], [], false) : f32[4]\n", "scan has one body");
  refused(one + "-1, [%0], [], [], false) { input %0 \"c\" : f32[4] output %0 } : f32[4]\n",
          "-1 turns");
  refused(one + "3, [%0], [], [], false) { input %0 \"c\" : f32[5] output %0 } : f32[4]\n",
          "input 0 of a body of scan is f32[5], it gets f32[4]");
  refused(one + "3, [%0], [], [], false) { param %0 \"c\" : f32[4] output %0 } : f32[4]\n",
          "has no param");
  refused(one + "3, [], [%0], [], false) { input %0 \"c\" : f32[] output %0 } : f32[3]\n",
          "slices of f32[4]");
  refused(one +
              "3, [%0], [], [], false) { input %0 \"c\" : f32[4] %1 = sum(%0, [0], false) : "
              "f32[] output %1 } : f32[4]\n",
          "carries f32[4]");
  refused(
      "  input %0 \"i\" : bool[2]\n  %1 = branch(%0, []) { %0 = full(1.0) : f32[] output %0 } { "
      "%0 = full(1.0) : f32[] output %0 } : f32[]\n",
      "one bool");
  refused(
      "  input %0 \"i\" : bool[]\n  %1 = branch(%0, []) { %0 = full(1.0) : f32[] output %0 } { "
      "%0 = full(1.0) : f32[1] output %0 } : f32[]\n",
      "output 0 of branch is f32[] or f32[1]");
}
