// SPDX-License-Identifier: Apache-2.0
// Custom ops: the registry, the C++ header, and the kernel that calls them.
#include <doctest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "ir/graph.h"
#include "kernel_harness.h"
#include "ops/check_types.h"
#include "ops/custom_call.h"
#include "ops/registry.h"
#include "tessera/custom_op.h"

using namespace tessera;
using namespace tessera::test;
namespace tc = tessera::custom;

namespace {

struct Scale {
  static void setup(tc::Setup& s) { s.output(0, s.input(0)); }
  static void compute(const tc::Run& run) {
    const float by = run.attribute("by", 1.0f);
    if (by < 0) throw std::runtime_error("a negative factor");
    const auto x = run.input<float>(0);
    const auto y = run.output<float>(0);
    const tc::Range r = run.share(x.size());
    for (int64_t i = r.begin; i < r.end; ++i) y[i] = by * x[i];
  }
  static void gradients(tc::Gradients& g) {
    g.op("test", "Scale").grad_out(0).gives(0).same_attributes();
  }
  static void work(tc::WorkEstimate& w) { w.set(7, w.input(0).count()); }
};
TESSERA_REGISTER_OP(Scale, "test", "Scale", 1);

// The sum of all, by all threads, from a class with an instance and scratch.
struct Total {
  int64_t rounds;
  explicit Total(tc::Prepare& p) : rounds(p.attribute("rounds", 1)) { p.scratch(1000); }
  static void setup(tc::Setup& s) {
    if (s.inputs() != 1) throw std::invalid_argument("wants one tensor");
    s.output(0, tc::DType::Float32, {});
    s.output(1, tc::DType::Int32, {2});
  }
  void compute(const tc::Run& run) const {
    const auto x = run.input<float>(0);
    auto* mine = static_cast<float*>(run.scratch());
    std::fill(mine, mine + 250, 1.0f);
    for (int64_t k = 0; k < rounds; ++k) {
      run.barrier();
      if (run.thread() == 0) {
        run.output<float>(0)[0] = std::accumulate(x.begin(), x.end(), 0.0f);
        run.output<int32_t>(1)[0] = run.threads();
        run.output<int32_t>(1)[1] = static_cast<int32_t>(rounds);
      }
      // Leaves early, as nobody should.
      if (run.thread() == 1 && k == 1) return;
    }
  }
};
TESSERA_REGISTER_OP(Total, "test", "Total", 1);

struct Lazy {
  static void setup(tc::Setup& s) { s.output(0, s.input(0)); }
  static void compute(const tc::Run& run) {
    const auto y = run.output<float>(0);
    const int64_t n = run.attribute("writes", 0);
    for (int64_t i = 0; i < n; ++i) y[i] = 0.0f;
  }
  static constexpr unsigned flags = TESSERA_ONE_THREAD;
};
TESSERA_REGISTER_OP(Lazy, "test", "Lazy", 1);

struct Strange {
  static void setup(tc::Setup& s) {
    const std::string how = s.attribute("how", "");
    if (how == "throws") throw std::runtime_error("no such thing");
    if (how == "throws int") throw 1;
    if (how == "huge") s.output(0, tc::DType::Float32, {int64_t{1} << 40, int64_t{1} << 40});
    if (how == "negative") s.output(0, tc::DType::Float32, {-1});
    if (how == "gap") s.output(1, s.input(0));
    if (how == "third") s.output(0, s.input(3));
    if (how == "number") s.attribute("how", 1.0f);
  }
  static void compute(const tc::Run&) {}
};
TESSERA_REGISTER_OP(Strange, "test", "Strange", 2);

StepDesc step(const char* name, std::vector<Arg> attributes, int64_t inputs = 1) {
  StepDesc d;
  d.op = Op::Custom;
  std::vector<Arg> operands;
  for (int64_t i = 0; i < inputs; ++i) operands.push_back(Arg::operand(i));
  d.args.list = {Arg::string("test"), Arg::string(name), Arg::integer(1), Arg::of(operands),
                 Arg::of(std::move(attributes))};
  return d;
}

Arg attribute(const char* name, Arg value) {
  return Arg::of({Arg::string(name), std::move(value)});
}

std::string error_of(const std::string& node) {
  const std::string text =
      "tessera 1\ngraph \"g\" {\n  input %0 \"x\" : f32[4]\n  " + node + "\n  output %1\n}\n";
  try {
    check_types(*parse_graph(text));
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a custom op runs on all threads") {
  for (int threads : {1, 2, 3}) {
    Buffer x(DType::F32, {5, 7}), y(DType::F32, {5, 7});
    x.randn(1);
    run_step(make_custom, step("Scale", {attribute("by", Arg::real(0.5))}), {&x}, {&y}, threads);
    for (int i = 0; i < 35; ++i) CHECK(y.data<float>()[i] == 0.5f * x.data<float>()[i]);
    CHECK(!harness_errors().take());
  }
}

TEST_CASE("threads that return early are not waited for") {
  Buffer x(DType::F32, {3}), y(DType::F32, {}), z(DType::I32, {2});
  x.data<float>()[0] = x.data<float>()[1] = x.data<float>()[2] = 2;
  for (int64_t rounds : {1, 5}) {
    run_step(make_custom, step("Total", {attribute("rounds", Arg::integer(rounds))}), {&x},
             {&y, &z}, 4);
    CHECK(y.data<float>()[0] == 6);
    CHECK(z.data<int32_t>()[0] == 4);
    CHECK(z.data<int32_t>()[1] == rounds);
    CHECK(!harness_errors().take());
  }
}

TEST_CASE("what compute throws is an error of the run") {
  for (int threads : {1, 2}) {
    Buffer x(DType::F32, {4}), y(DType::F32, {4});
    run_step(make_custom, step("Scale", {attribute("by", Arg::real(-1))}), {&x}, {&y}, threads);
    const auto error = harness_errors().take();
    REQUIRE(error);
    CHECK(error->message.find("[test.Scale:1] exception in compute: a negative factor (") == 0);
    CHECK(error->where == "somewhere");
  }
  Buffer wide(DType::F64, {4}), y(DType::F64, {4});
  run_step(make_custom, step("Scale", {}), {&wide}, {&y}, 1);
  CHECK(harness_errors().take()->message.find("input 0 is float64, not float32") !=
        std::string::npos);
}

TEST_CASE("outputs that compute leaves alone are noticed") {
  Buffer x(DType::F32, {4}), y(DType::F32, {4});
  run_step(make_custom, step("Lazy", {}), {&x}, {&y}, 2);
  CHECK(harness_errors().take()->message.find("wrote nothing to output 0") != std::string::npos);
  run_step(make_custom, step("Lazy", {attribute("writes", Arg::integer(3))}), {&x}, {&y}, 2);
  CHECK(harness_errors().take()->message.find("left element 3 of output 0") != std::string::npos);
  run_step(make_custom, step("Lazy", {attribute("writes", Arg::integer(4))}), {&x}, {&y}, 2);
  CHECK(!harness_errors().take());
}

TEST_CASE("text is held against what the library says") {
  const std::string head = "%1 = custom(\"test\", ";
  CHECK(error_of(head + "\"Scale\", 1, [%0], [[\"by\", 2.0]]) : f32[4]") == "");
  CHECK(error_of(head + "\"Scale\", 9, [%0], []) : f32[4]") == "");
  auto has = [&](const std::string& node, const std::string& text) {
    CAPTURE(error_of(head + node));
    CHECK(error_of(head + node).find(text) != std::string::npos);
  };
  has("\"Scale\", 1, [%0], []) : f32[5]", "result 0 of custom is f32[4], stated is f32[5]");
  has("\"Scale\", 0, [%0], []) : f32[4]", "No class for test.Scale:0. Near names: test.Scale:1");
  has("\"Scael\", 1, [%0], []) : f32[4]", "Near names: test.Scale:1");
  has("\"Total\", 1, [%0], []) : f32[]", "custom has 2 results, 1 are stated");
  has("\"Total\", 1, [%0, %0], []) : f32[]", "exception in setup: wants one tensor");
  has("\"Scale\", 1, %0, []) : f32[4]", "custom takes a domain");
  has("\"Scale\", 1, [1], []) : f32[4]", "a list of tensors");
  has("\"Scale\", 1, [%0], [1]) : f32[4]", "its name and its value");
  has("\"Scale\", 1, [%0], [[\"by\", [1, \"x\"]]]) : f32[4]", "neither integers nor floats");
  has("\"Scale\", 1, [%0], [[\"by\", []]]) : f32[4]", "empty list");
  has("\"Scale\", 1, [%0], [[\"by\", 1e300]]) : f32[4]", "beyond the range of a float");
  has("\"Scale\", 99999999999, [%0], []) : f32[4]", "out of range");
  auto strange = [&](const char* how, const std::string& text) {
    has(std::string("\"Strange\", 2, [%0], [[\"how\", \"") + how + "\"]]) : f32[4]", text);
  };
  strange("throws", "[test.Strange:2] exception in setup: no such thing");
  strange("throws int", "unknown exception in setup");
  strange("huge", "no room in any memory");
  strange("negative", "negative dimension");
  strange("gap", "setup did not set output 0");
  strange("third", "there is no input 3");
  strange("number", "attribute how is not a float");
  strange("", "setup gave no outputs");
}

TEST_CASE("gradients and work of a custom op") {
  CustomCall call("test", "Scale", 1, {{DType::F32, {6}, {}}},
                  Arg::of({attribute("by", Arg::real(3))}));
  call.setup();
  call.check(tessera_call_gradients(call.get()));
  REQUIRE(tessera_call_gradient_count(call.get()) == 1);
  const tessera_gradient* g = tessera_call_gradient_at(call.get(), 0);
  int32_t from = -1;
  CHECK(tessera_gradient_input(g, 0, &from) == TESSERA_GRAD_OUT);
  CHECK(from == 0);
  CHECK(tessera_gradient_output(g, 0) == 0);
  CHECK(tessera_call_floats(tessera_gradient_call(g), "by", nullptr)[0] == 3);
  int64_t flops = 0, bytes = 0;
  call.check(tessera_call_work(call.get(), &flops, &bytes));
  CHECK(flops == 7);
  CHECK(bytes == 6);
}

TEST_CASE("the registry refuses what it can't call") {
  const int64_t before = tessera_refused_count();
  tessera_op op = tc::describe<Scale>("test", "Scale", 1);
  CHECK(tessera_register_op(&op) == TESSERA_KNOWN);
  CHECK(tessera_refused_count() == before);
  op.name = "Other";
  op.abi = TESSERA_OPS_ABI + 1;
  CHECK(tessera_register_op(&op) == TESSERA_REFUSED);
  op.abi = TESSERA_OPS_ABI;
  op.compute = nullptr;
  CHECK(tessera_register_op(&op) == TESSERA_REFUSED);
  CHECK(std::string(tessera_refused_at(before)).find("built for version 2") != std::string::npos);
  CHECK(std::string(tessera_refused_at(before + 1)).find("neither compute nor compose") !=
        std::string::npos);
  CHECK(tessera_find_op("test", "Other", 1) == nullptr);
}

TEST_CASE("halves of the header round as the core's") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    tc::Half h;
    h.bits = static_cast<uint16_t>(bits);
    const float f = h;
    if (std::isnan(f)) continue;
    CHECK(tc::Half(f).bits == h.bits);
  }
  CHECK(tc::Half(65520.0f).bits == 0x7c00);
  CHECK(tc::Half(65519.0f).bits == 0x7bff);
  CHECK(tc::Half(1.0f + 1.0f / 2048).bits == 0x3c00);
  CHECK(tc::Half(1.0f + 3.0f / 2048).bits == 0x3c02);
  CHECK(tc::BFloat16(1.0f + 1.0f / 256).bits == 0x3f80);
  CHECK(float(tc::BFloat16(-2.5f)) == -2.5f);
}
