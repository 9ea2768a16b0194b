// SPDX-License-Identifier: Apache-2.0
// Text that no program can be made of: an error of the user that says where, whatever is wrong.
#include <doctest/doctest.h>

#include "ops/check_types.h"
#include "session/session.h"

using namespace tessera;

namespace {

std::string with_line(const std::string& line) {
  return "tessera 1\ngraph \"x\" {\n  input %0 \"x\" : f32[2,3]\n  input %1 \"i\" : i64[2]\n  " +
         line + "\n  output %0\n}\n";
}

void read(const std::string& text) {
  check_types(*parse_graph(text));
}

// The message of a text that must be refused by its fourth line.
std::string refused(const std::string& line) {
  try {
    read(with_line(line));
  } catch (const UserError& e) {
    return e.what();
  }
  return "accepted";
}

void compile(const std::string& text, const CompileOptions& options = {}) {
  Session(text, options, {}, nullptr);
}

}  // namespace

TEST_CASE("text: counts, kinds and types of arguments are those of the op's row") {
  struct Case {
    const char *line, *words;
  };
  const Case cases[] = {
      {"%2 = mm(%0) : f32[2,2]", "mm takes 2 arguments, not 1"},
      {"%2 = mm() : f32[2,2]", "mm takes 2 arguments, not 0"},
      {"%2 = mm(%0, %0, %0) : f32[2,2]", "mm takes 2 arguments, not 3"},
      {"%2 = mm(%0, 3) : f32[2,2]", "argument 1 of mm is not a tensor of numbers"},
      {"%2 = mm(%0, %1) : f32[2,2]", "argument 1 of mm has another type"},
      {"%2 = add(%0) : f32[2,3]", "add takes 2 arguments, not 1"},
      {"%2 = add(%0, [1]) : f32[2,3]", "argument 1 of add is neither"},
      {"%2 = permute(%0, %1) : f32[3,2]", "argument 1 of permute is not a list"},
      {"%2 = permute(%0, [1, \"a\"]) : f32[3,2]", "argument 1 of permute is not a list"},
      {"%2 = cumsum(%0, 1.5) : f32[2,3]", "argument 1 of cumsum is not an integer"},
      {"%2 = gather(%0, 0, %0) : f32[2,3]", "argument 2 of gather is not a tensor of integers"},
      {"%2 = _softmax(%1, 0, false) : i64[2]", "argument 0 of _softmax is not a tensor of floats"},
      {"%2 = resample(%0, 7, [4], true, [0.0]) : f32[2,4]", "argument 1 of resample is not a str"},
      {"%2 = cat([%0, none], 0) : f32[2,3]", "argument 0 of cat is not a list"},
      {"%2 = sqrt(%1) : i64[2]", "sqrt has no result of type i64"},
      {"%2 = bitwise_and(%0, %0) : f32[2,3]", "bitwise_and has no result of type f32"},
      {"%2 = frexp_mantissa(%1) : i64[2]", "frexp_mantissa has no result of type i64"},
      {"%2 = eq(%0, %0) : f32[2,3]", "eq has no result of type f32"},
      {"%2 = clone(%0) : bf16[2,3]", "clone of f32[2,3] is no bf16[2,3]"},
      {"%2 = embedding_dense_backward(%1, %1, 9) : i64[9,2]", "do not belong together"},
      {"%2 = full(1.0) : f64[2,3] %3 = embedding_dense_backward(%2, %1, 9) : f64[9,3]",
       "no kernel for f64"},
      {"%2 = sum(%0, false) : f32[]", "argument 1 of sum is not a list"},
      {"%2, %3 = fractional_max_pool(%0, [1], [2], %0) : f32[2,2], i64[2,2]", "per window and dim"},
      {"%2 = add(%0, %1) : f32[2,3]", "does not broadcast to [2, 3]"},
      {"%2, %3 = neg(%0) : f32[2,3], f32[2,3]", "neg has one result, 2 are stated"},
      {"%2 = max_pool(%0, [1], [1], [0], [1], false) : f32[2,3]", "has 2 results, 1 are stated"},
      {"%2 = cumsum(%0, 1) : f32[3,2]", "result 0 of cumsum is f32[2, 3], stated is f32[3, 2]"},
      {"%2 = cumsum(%0, 1) : f16[2,3]", "stated is f16[2, 3]"},
      {"%2 = uniform(none, 3037000500) : f32[4]", "argument 0 of uniform is neither"},
      {"%2 = uniform(%1, 3) : f32[65536,65536]", "fewer than 2^32 floats"},
      {"%2 = uniform(%0, 3) : f32[4]", "a key of type i64[2]"},
      {"%2 = iota(5) : f32[4]", "dim 5 is out of range"},
      {"%2 = iota(0) : f32[]", "in a scalar"},
      {"%2 = neg(%0) { input %0 \"x\" : f32[2,3] output %0 } : f32[2,3]", "no use for a body"},
      {"%2 = fused(%0) : f32[2,3]", "fused needs a body"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.line);
    const std::string message = refused(c.line);
    CHECK_MESSAGE(message.find(c.words) != std::string::npos, message);
    CHECK_MESSAGE(message.find("line 5, column ") != std::string::npos, message);
  }
}

TEST_CASE("text: the place is that of the op, and the user's line goes with it") {
  try {
    read(
        "tessera 1\ngraph \"x\" {\n  input %0 \"x\" : f32[2]\n  %1 = cumsum(%0, 4) : f32[2] !0\n"
        "  output %1\n}\nloc !0 \"model.py\" 12 \"fc\" fwd 0 0 -1\n");
    FAIL("accepted");
  } catch (const UserError& e) {
    CHECK(std::string(e.what()).find("(line 4, column 8 of the program text)") !=
          std::string::npos);
    CHECK(e.location() == "model.py:12 (fc)");
  }
}

TEST_CASE("text: numbers out of all range are refused where they stand") {
  const char* lines[] = {
      "%2 = neg(%0) : f32[4294967296,4294967296]",
      "%2 = neg(%0) : f32[0,9223372036854775807]",
      "%2 = neg(%0) : f32[99999999999999999999]",
      "%2 = neg(%0) : f32[-1]",
      "%2 = neg(%0) : f32[2,3]{1,5}",
      "%2 = neg(%0) : f32[2,3]{1,1}",
      "%2 = neg(%0) : f32[2,3] !-7",
      "%2 = neg(%0) : f32[2,3] !99",
      "%2 = neg(%0) : f32[2,3] !9223372036854775807",
      "%2 = avg_pool(%0, [9223372036854775807], [1], [0], false, true, none) : f32[2,3]",
      "%2 = view(%0, [4611686018427387904, 4]) : f32[2,3]",
      "%2 = as_strided(%0, [2], [9223372036854775807], 1) : f32[2]",
      "optimize \"sgd\" 99999999999 [] {}",
      "update %0 %0",
      "grad %0 %0",
      "%2 = neg(%0) : f32[1e3]",
  };
  for (const char* line : lines) {
    CAPTURE(line);
    const std::string message = refused(line);
    CHECK_MESSAGE(message.find("line ") != std::string::npos, message);
    CHECK_MESSAGE(message.find("column ") != std::string::npos, message);
  }
}

TEST_CASE("text: windows and groups that would count for ever") {
  auto convolution = [](const char* rest) {
    return fmt::format(
        "tessera 1\ngraph \"x\" {{\n  input %0 \"x\" : f32[1,4,8,8]\n  param %1 \"w\" : "
        "f32[4,4,3,3]\n  %2 = convolution(%0, %1, none, {}) : f32[1,4,6,6]\n  output %2\n}}\n",
        rest);
  };
  CHECK_NOTHROW(read(convolution("[1, 1], [0, 0], [1, 1], false, [0, 0], 1")));
  for (const char* rest : {
           "[1, 1], [0, 0], [1, 1], false, [0, 0], 9223372036854775807",
           "[1, 1], [0, 0], [1, 1], false, [0, 0], 2147483647",
           "[1, 1], [0, 0], [1, 1], false, [0, 0], 0",
           "[1, 1], [0, 0], [1, 1], false, [0, 0], -1",
           "[0, 1], [0, 0], [1, 1], false, [0, 0], 1",
           "[-1, 1], [0, 0], [1, 1], false, [0, 0], 1",
           "[1, 1], [-9, 0], [1, 1], false, [0, 0], 1",
           "[1, 1], [0, 0], [2147483647, 1], false, [0, 0], 1",
           "[1, 1], [0, 0], [0, 0], false, [0, 0], 1",
           "[1, 1, 1], [0, 0], [1, 1], false, [0, 0], 1",
       })
    CHECK_THROWS_AS(read(convolution(rest)), UserError);
}

TEST_CASE("text: depth is bounded") {
  const std::string open(300000, '[');
  CHECK(refused("%2 = permute(%0, " + open).find("deep in each other") != std::string::npos);
  std::string body = "%2 = ";
  for (int i = 0; i < 100000; ++i) body += "fused(%0) { %1 = ";
  CHECK(refused(body).find("line ") != std::string::npos);
  CHECK(refused("%2 = neg(%0) : f32[" + std::string(200000, '1')).find("out of range") !=
        std::string::npos);
}

TEST_CASE("text: states are named once and change as what they are") {
  const char* lines[] = {
      "param %2 \"w\" : f32[2] param %3 \"w\" : f32[2]",
      "param %2 \"w\" : f32[2] update %2 %0",
      "const %2 \"w\" : f32[2,3] update %2 %0",
      "param %2 \"w\" : f32[2,3] update %2 %0 update %2 %0",
      "buffer %2 \"w\" : f32[2,3] grad %2 %0",
      "param %2 \"w\" : i64[2] grad %2 %1",
      "param %2 \"w\" : f32[2,3] optimize \"sgd\" 0 [%2, %2] {lr=0}",
  };
  for (const char* line : lines) {
    CAPTURE(line);
    CHECK(refused(line).find("line 5, column ") != std::string::npos);
  }
}

TEST_CASE("text: a body is what codegen takes it for") {
  auto fused = [](const std::string& body, const char* types = "f32[2,3]") {
    return refused("%2 = fused(%0) {" + body + "} : " + types);
  };
  CHECK(fused("input %0 \"a\" : f32[2,3] %1 = neg(%0) : f32[2,3] output %1") == "accepted");
  for (const char* body : {
           "output",
           "input %0 \"a\" : f32[2,3] input %1 \"b\" : f32[2,3] output %1",
           "input %0 \"a\" : f32[3,2] %1 = neg(%0) : f32[3,2] output %1",
           "input %0 \"a\" : f32[2,3] %1 = neg(%0) : f32[2,3] output %1, %1",
           "input %0 \"a\" : f32[2,3] %1 = cumsum(%0, 0) : f32[2,3] output %1",
           "input %0 \"a\" : f32[2,3] %1 = neg(%0) : f32[2,3] !0 output %1",
           "input %0 \"a\" : f32[2,3] %1 = neg(%0) : f32[2,3] output %1 loss %1",
           "input %0 \"a\" : f32[2,3] %1 = sum(%0, [0], true) : f32[1,3] %2 = neg(%1) : f32[1,3] "
           "output %2",
       }) {
    CAPTURE(body);
    CHECK(fused(body).find("line 5, column ") != std::string::npos);
  }
}

TEST_CASE("options: numbers that no program runs with") {
  const std::string text = with_line("%2 = neg(%0) : f32[2,3]");
  CHECK_NOTHROW(compile(text));
  auto refuses = [&](auto change) {
    CompileOptions o;
    change(o);
    CHECK_THROWS_WITH_AS(compile(text, o), doctest::Contains("[options]"), UserError);
  };
  for (int64_t bad : {int64_t{0}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    refuses([&](auto& o) { o.run.replicas = bad; });
    refuses([&](auto& o) { o.run.device_iterations = bad; });
    refuses([&](auto& o) { o.run.gradient_accumulation = bad; });
    refuses([&](auto& o) { o.run.input_group = bad; });
    refuses([&](auto& o) { o.run.output.period = bad; });
    refuses([&](auto& o) { o.run.outputs = {{OutputMode::kEveryN, bad}}; });
    refuses([&](auto& o) { o.run.grouped = {{"w", bad, false}}; });
  }
  refuses([](auto& o) { o.run.threads = 0; });
  refuses([](auto& o) { o.run.threads = -1; });
  refuses([](auto& o) { o.run.device_iterations = o.run.gradient_accumulation = 1 << 30; });
  refuses([](auto& o) { o.run.replicas = 4, o.run.input_group = 3; });
  refuses([](auto& o) { o.placement.liveness = static_cast<Liveness>(9); });
  refuses([](auto& o) { o.placement.weights.on_chip = 7; });
}
