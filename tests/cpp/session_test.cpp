// SPDX-License-Identifier: Apache-2.0
// Whole programs from text to numbers: state, loops, output modes, host calls, errors.
#include "session/session.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

using namespace tessera;

namespace {

struct Run {
  std::unique_ptr<Session> session;

  explicit Run(const std::string& text, RunConfig config = {}, bool mean = true,
               bool running = false) {
    CompileOptions o;
    o.settings.set("training", Arg::boolean(true));
    o.settings.set("reduction", Arg::string(mean ? "mean" : "sum"));
    o.settings.set("running_mean", Arg::boolean(running));
    o.run = config;
    session =
        std::make_unique<Session>(text, o, std::unordered_map<std::string, Constant>{}, nullptr);
  }
  void write(const std::string& name, std::vector<float> v) {
    if (name.starts_with("hyper:")) v.resize(16);
    session->engine().write_state(name, v.data(), static_cast<int64_t>(v.size() * 4));
  }
  std::vector<float> read(const std::string& name, size_t count) {
    std::vector<float> v(count);
    session->engine().read_state(name, v.data(), static_cast<int64_t>(count * 4));
    return v;
  }
  void operator()(std::vector<const void*> in, std::vector<void*> out) {
    session->engine().run(in, out, nullptr);
  }
};

const char* kScale = R"(tessera 1
graph "scale" {
  param %0 "w" : f32[2]
  input %1 "x" : f32[2]
  %2 = mul(%1, %0) : f32[2]
  output %2
  grad %0 %1
  optimize "sgd" 0 [%0] {lr=0}
})";

}  // namespace

TEST_CASE("a step computes with the old weight and then updates it") {
  for (int threads : {1, 2}) {
    Run run(kScale, {.threads = threads});
    run.write("w", {2, 3});
    run.write("hyper:0", {0.5f});
    float x[2] = {1, 10}, y[2];
    run({x}, {y});
    CHECK(y[0] == 2);
    CHECK(y[1] == 30);
    CHECK(run.read("w", 2) == std::vector<float>{1.5f, -2});
  }
}

TEST_CASE("device iterations and accumulation run micro-batches in order") {
  float x[8] = {1, 1, 3, 3, 10, 10, 30, 30};
  auto weights = [&](bool mean) {
    Run run(kScale,
            {.device_iterations = 2, .gradient_accumulation = 2, .output = {OutputMode::kAll}},
            mean);
    run.write("w", {0, 0});
    run.write("hyper:0", {1});
    std::vector<float> y(8);
    run({x}, {y.data()});
    // the first update happens after two micro-batches
    CHECK(y[0] == 0);
    CHECK(y[2] == 0);
    float w = mean ? -2.0f : -4.0f;
    CHECK(y[4] == 10 * w);
    CHECK(y[6] == 30 * w);
    return run.read("w", 2)[0];
  };
  CHECK(weights(true) == -22);
  CHECK(weights(false) == -44);
}

TEST_CASE("a running mean stays where a sum in float16 would overflow") {
  std::string text = kScale;
  text.replace(text.find("{lr=0}"), 6, "{lr=0, accum_f16=1}");
  float x[8] = {30000, 3, 40000, 5, 50000, 7, 40000, 9};
  auto weights = [&](bool running) {
    Run run(text, {.gradient_accumulation = 4}, true, running);
    run.write("w", {0, 0});
    run.write("hyper:0", {1});
    float y[2];
    run({x}, {y});
    return run.read("w", 2);
  };
  CHECK(weights(true) == std::vector<float>{-40000, -6});
  CHECK(std::isinf(weights(false)[0]));
}

TEST_CASE("gradients may go straight into the velocity") {
  std::string text = kScale;
  text.replace(text.find("{lr=0}"), 6,
               "{lr=0, momentum=1, velocity_scaling=2, inverse_velocity_scaling=3, combined=1}");
  Run run(text, {.device_iterations = 2, .gradient_accumulation = 2});
  run.write("w", {0, 0});
  run.write("hyper:0", {1, 0.5f, 4, 0.25f});
  float x[8] = {1, 2, 3, 2, 5, 2, 7, 2}, y[2];
  run({x}, {y});
  // means 2 and 6: velocities 2 and 7, kept four times as large
  CHECK(run.read("momentum:w", 2) == std::vector<float>{28, 12});
  CHECK(run.read("w", 2) == std::vector<float>{-9, -5});
  CHECK_THROWS(run.read("accum:w", 2));
}

TEST_CASE("output modes") {
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  auto outputs = [&](OutputMode mode, int64_t period, size_t count) {
    Run run(kScale, {.device_iterations = 4, .output = {mode, period}});
    run.write("w", {1, 1});
    std::vector<float> y(count);
    run({x}, {y.data()});
    return y;
  };
  CHECK(outputs(OutputMode::kFinal, 1, 2) == std::vector<float>{7, 8});
  CHECK(outputs(OutputMode::kAll, 1, 8) == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(outputs(OutputMode::kSum, 1, 2) == std::vector<float>{16, 20});
  CHECK(outputs(OutputMode::kEveryN, 2, 4) == std::vector<float>{3, 4, 7, 8});
}

TEST_CASE("replicas take turns within a step and outputs are kept by replica") {
  // Slices of x in the order of steps, replicas fastest: replica 0 sees 1, 3, replica 1 sees 2, 4.
  float x[8] = {1, 1, 2, 2, 3, 3, 4, 4};
  auto outputs = [&](OutputMode mode, size_t count) {
    Run run(kScale, {.device_iterations = 2, .replicas = 2, .output = {mode}});
    run.write("w", {1, 1});
    std::vector<float> y(count);
    run({x}, {y.data()});
    return y;
  };
  CHECK(outputs(OutputMode::kFinal, 4) == std::vector<float>{3, 3, 4, 4});
  CHECK(outputs(OutputMode::kSum, 4) == std::vector<float>{4, 4, 6, 6});
  CHECK(outputs(OutputMode::kAll, 8) == std::vector<float>{1, 1, 2, 2, 3, 3, 4, 4});
}

TEST_CASE("groups of replicas read the same inputs") {
  float x[4] = {1, 1, 2, 2};
  for (bool orthogonal : {false, true}) {
    Run run(kScale, {.replicas = 4,
                     .input_group = 2,
                     .orthogonal_groups = orthogonal,
                     .output = {OutputMode::kAll}});
    run.write("w", {1, 1});
    std::vector<float> y(8);
    run({x}, {y.data()});
    CHECK(y == (orthogonal ? std::vector<float>{1, 1, 2, 2, 1, 1, 2, 2}
                           : std::vector<float>{1, 1, 1, 1, 2, 2, 2, 2}));
    CHECK(run.session->engine().times().size() == 4);
  }
}

TEST_CASE("replicas have their own copies of the states they change") {
  Run run(R"(tessera 1
graph "count" {
  buffer %0 "total" : f32[]
  input %1 "x" : f32[]
  %2 = add(%0, %1) : f32[]
  output %2
  update %0 %2
})",
          {.device_iterations = 2, .replicas = 2, .output = {OutputMode::kAll}});
  run.write("total", {100});
  float x[4] = {1, 2, 3, 4};
  std::vector<float> y(4);
  run({x}, {y.data()});
  CHECK(y == std::vector<float>{101, 102, 104, 106});
  CHECK(run.read("total", 1)[0] == 104);
  run.write("total", {0});
  run({x}, {y.data()});
  CHECK(y == std::vector<float>{1, 2, 4, 6});
}

TEST_CASE("anchors are outputs with rules of their own") {
  CompileOptions o;
  o.run = {.device_iterations = 2, .outputs = {{OutputMode::kFinal}, {OutputMode::kAll}}};
  o.anchors = {"Gradient___w"};
  Session session(kScale, o, {}, nullptr);
  const auto& names = session.tensor_names();
  for (const char* name : {"w", "x", "mul:0", "Gradient___w"})
    CHECK(std::count(names.begin(), names.end(), name) == 1);
  float x[4] = {1, 2, 3, 4}, y[2], g[4];
  session.engine().run({x}, {y, g}, nullptr);
  CHECK(std::equal(g, g + 4, x));
  o.anchors = {"nothing"};
  CHECK_THROWS_WITH_AS(Session(kScale, o, {}, nullptr),
                       doctest::Contains("No tensor with name nothing found"), UserError);
}

TEST_CASE("a host call sees fixed addresses and its results flow on") {
  Run run(R"(tessera 1
graph "host" {
  input %0 "x" : f32[4]
  %1 = neg(%0) : f32[4]
  %2 = host_call("test::square", %1) : f32[4] !0
  %3 = add(%2, %0) : f32[4]
  output %3, %2
}
loc !0 "user.py" 7 "model" fwd 0 0 -1
)");
  Engine& e = run.session->engine();
  REQUIRE(e.host_calls().size() == 1);
  const StepDesc& d = e.host_calls()[0].desc;
  CHECK(d.where == "user.py:7 (model)");
  auto* in = reinterpret_cast<float*>(e.address(e.host_calls()[0], d.inputs[0]));
  auto* out = reinterpret_cast<float*>(e.address(e.host_calls()[0], d.outputs[0]));
  e.set_host_call(0, [=] {
    for (int i = 0; i < 4; ++i) out[i] = in[i] * in[i];
  });
  for (float k : {1.0f, 2.0f}) {
    float x[4] = {k, 2 * k, 3 * k, 4 * k}, y[4], z[4];
    run({x}, {y, z});
    for (int i = 0; i < 4; ++i) CHECK(y[i] == x[i] * x[i] + x[i]);
    for (int i = 0; i < 4; ++i) CHECK(z[i] == x[i] * x[i]);
  }
}

TEST_CASE("an exception in a host call leaves the program usable") {
  Run run(
      "tessera 1\ngraph \"h\" { input %0 \"x\" : f32[1] %1 = neg(%0) : f32[1] %2 = "
      "host_call(\"t::f\", %1) : f32[1] output %2 }");
  bool fail = true;
  run.session->engine().set_host_call(0, [&] {
    if (fail) throw UserError("no");
  });
  float x = 1, y;
  CHECK_THROWS_AS(run({&x}, {&y}), UserError);
  fail = false;
  CHECK_NOTHROW(run({&x}, {&y}));
}

TEST_CASE("a run can be stopped between stretches and run again") {
  Run run(kScale, {.device_iterations = 1000});
  run.write("w", {1, 1});
  std::vector<float> x(2000, 1.0f);
  float y[2];
  int polls = 0;
  CHECK_THROWS_AS(run.session->engine().run({x.data()}, {y}, [&] { return ++polls == 3; }),
                  Interrupted);
  CHECK(polls == 3);
  CHECK_NOTHROW(run({x.data()}, {y}));
}

TEST_CASE("states are checked by name and size") {
  Run run(kScale);
  float v[3];
  CHECK_THROWS_AS(run.session->engine().write_state("nosuch", v, 8), UserError);
  CHECK_THROWS_AS(run.session->engine().write_state("w", v, 12), UserError);
}

TEST_CASE("a program larger than the machine is refused before it starts") {
  CHECK_THROWS_AS(Run("tessera 1\ngraph \"big\" { param %0 \"w\" : f32[1000000,1000000] input %1 "
                      "\"x\" : f32[1] output %1 }"),
                  MemoryError);
}

TEST_CASE("the summary counts kernels and host calls") {
  Run run(kScale);
  std::string s = run.session->summary();
  CHECK(s.find("\"fused\": 2") != std::string::npos);
  CHECK(s.find("\"host_calls\": []") != std::string::npos);
}

TEST_CASE("a random number is the same for a key and advances with the call") {
  const char* text =
      "tessera 1\ngraph \"r\" { random %0 \"rng\" : i64[2] %1 = uniform(%0, 3) : f32[64] output %1 "
      "}";
  Run run(text), again(text);
  int64_t key[2] = {42, 0};
  run.session->engine().write_state("rng", key, 16);
  again.session->engine().write_state("rng", key, 16);
  std::vector<float> a(64), b(64), c(64);
  run({}, {a.data()});
  run({}, {b.data()});
  again({}, {c.data()});
  CHECK(a == c);
  CHECK(a != b);
  for (float v : a) CHECK((v >= 0 && v < 1));
}

TEST_CASE("calls and types that make no sense are refused before anything runs") {
  auto text = [](const std::string& call) {
    return "tessera 1\ngraph \"g\" {\n  input %0 \"x\" : f32[2, 3]\n  %1 = " + call +
           "\n  output %1\n}";
  };
  CHECK_NOTHROW(Run(text("cumsum(%0, 1) : f32[2, 3]")));
  CHECK_THROWS_AS(Run(text("cumsum(%0, 2) : f32[2, 3]")), UserError);
  CHECK_THROWS_AS(Run(text("cumsum(%0, 1) : f32[3, 2]")), UserError);
  CHECK_THROWS_AS(Run(text("cumsum(%0, 1) : f16[2, 3]")), UserError);
}

TEST_CASE("a text may not have the states that its optimizer adds") {
  std::string text = kScale;
  text.replace(text.find("{lr=0}"), 6, "{lr=0, momentum=1}");
  Run ok(text);
  text.insert(text.find("  input"), "  optimizer %9 \"momentum\" of \"w\" : f32[1]\n");
  CHECK_THROWS_WITH_AS(Run{text}, doctest::Contains("the optimizer adds \"momentum:w\""),
                       UserError);
}

TEST_CASE("states of the model keep their names beside those of the optimizer") {
  std::string text = kScale;
  text.insert(text.find("  input"), "  buffer %9 \"hyper:0\" : f32[2]\n");
  text.insert(text.find("  output"), "  %10 = add(%2, %9) : f32[2]\n");
  text.replace(text.find("output %2"), 9, "output %10");
  Run run(text);
  run.write("w", {2, 3});
  std::vector<float> added{100, 200}, rate(16, 0.5f);
  run.session->engine().write_state("hyper:0", added.data(), 8);
  run.session->engine().write_state("hyper:0'", rate.data(), 64);
  float x[2] = {1, 10}, y[2];
  run({x}, {y});
  CHECK(y[0] == 102);
  CHECK(run.read("w", 2) == std::vector<float>{1.5f, -2});
}
