// SPDX-License-Identifier: Apache-2.0
// The text form: what is printed parses to the same text, and bad text names its line.
#include <doctest/doctest.h>

#include "ir/graph.h"

using namespace tessera;

namespace {

const char* kEverything = R"(tessera 1
graph "everything" {
  param %0 "a \"quoted\" name" : f32[2,3]
  buffer %1 "seen" : i64[2]
  const %2 "c0" : bool[]
  input %3 "x" : f32[2,2]
  %4 = mm(%3, %0) : f32[2,3] !0
  %5, %6 = max_pool(%4, [2, 2], [2, 2], [0, 0], [1, 1], false) : f32[2,1], i64[2]
  %7 = host_call("aten::special.default", [%5, none, %6], 1.5, -inf, nan, "text\nline", f16, none, true) : f32[2,1] !1
  %8 = fused(%4) {
    input %0 "i0" : f32[2,3]
    %1 = mul(%0, 2.0) : f32[2,3]
    output %1
  } : f32[2,3]{0,1} !0
  output %7, %8
  loss %5
  grad %0 %4
  update %1 %6
  optimize "sgd" 0 [%0] {momentum=1, nesterov=0}
}
loc !0 "train.py" 12 "model.fc" fwd 0 0 -1
loc !1 "train.py" 13 "" bwd 1 2 3
)";

std::string error_of(const std::string& text) {
  try {
    parse_graph(text);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("printing and parsing are inverse") {
  auto g = parse_graph(kEverything);
  std::string text = print_graph(*g);
  CHECK(text == kEverything);
  CHECK(print_graph(*parse_graph(text)) == text);
  CHECK(print_graph(*g->clone()) == text);
}

TEST_CASE("every part of a line is read") {
  auto g = parse_graph(kEverything);
  CHECK(g->sources.size() == 4);
  CHECK(g->sources[0].name == "a \"quoted\" name");
  CHECK(g->type(g->nodes[3].results[0]).strides() == Dims{1, 2});
  CHECK(g->nodes[2].operands.size() == 2);
  CHECK(g->nodes[2].args.at(1).f == 1.5);
  CHECK(g->locations[1].backward);
  CHECK(g->locations[1].phase == 3);
  CHECK(g->optimizer[0].flags.at("momentum") == 1);
  CHECK(describe_location(*g, 0) == "train.py:12 (model.fc)");
}

TEST_CASE("a state says what it is for and whom it belongs to") {
  const std::string text = R"(tessera 1
graph "states" {
  param %0 "w" : f32[4]
  buffer %1 "momentum:w" : f32[4]
  random %2 "rng" : i64[2]
  hyper %3 "hyper" of 0 : f32[16]
  hyper %4 "hyper64" of 0 : f64[16]
  optimizer %5 "exp_avg" of "w" : f32[4]
  optimizer %6 "step" of 0 : f64[]
  accumulator %7 "accum" of "w" : f16[4]
  micro_count %8 "accum:#" : f32[]
  loss_scale %9 "loss:scale" : f32[]
  loss_steps %10 "loss:steps" : f32[]
  output %0
  update %5 %1
}
)";
  auto g = parse_graph(text);
  CHECK(print_graph(*g) == text);
  CHECK(state_name(g->sources[5]) == "exp_avg:w");
  CHECK(g->sources[5].param == "w");
  CHECK(g->sources[6].group == 0);
  CHECK(state_name(g->sources[6]) == "step:0");
  // A buffer of the model that is called like a state of the optimizer is another state.
  Source momentum{SourceKind::kOptimizer, kNoValue, "momentum", "w"};
  CHECK(state_name(momentum) == g->sources[1].name);
  CHECK(state_key(momentum) != state_key(g->sources[1]));
}

TEST_CASE("states that cannot be are refused with their line") {
  struct Case {
    const char *lines, *words;
  };
  const Case cases[] = {
      {"random %0 \"rng\" : i64[3]", "line 3, column 26: a state of kind random is i64[2], not"},
      {"random %0 \"rng\" : f32[2]", "random is i64[2], not f32[2]"},
      {"random %0 \"rng\" : i64[2] random %1 \"b\" : i64[2]", "two states of kind random"},
      {"hyper %0 \"hyper\" : f32[16]", "hyper says whom it belongs to"},
      {"hyper %0 \"hyper\" of \"w\" : f32[16]", "a state of kind hyper belongs to a group"},
      {"hyper %0 \"hyper\" of -1 : f32[16]", "group -1 is out of range"},
      {"hyper %0 \"hyper\" of 4294967296 : f32[16]", "group 4294967296 is out of range"},
      {"hyper %0 \"hyper\" of 0 : f32[3]", "hyper is f32[16] or f64[16], not f32[3]"},
      {"hyper %0 \"a\" of 0 : f32[16] hyper %1 \"b\" of 0 : f32[16]", "two states of kind hyper"},
      {"accumulator %0 \"accum\" of 0 : f32[4]", "accumulator belongs to a parameter"},
      {"accumulator %0 \"accum\" of \"\" : f32[4]", "a parameter has a name"},
      {"accumulator %0 \"accum\" of \"w\" : i64[4]", "accumulator is floats, not i64[4]"},
      {"optimizer %0 \"m\" of \"w\" : f32[4] optimizer %1 \"m\" of \"w\" : f32[4]",
       "two states are called \"m:w\""},
      {"buffer %0 \"m:w\" : f32[4] optimizer %1 \"m\" of \"w\" : f32[4]",
       "two states are called \"m:w\""},
      {"buffer %0 \"b\" of \"w\" : f32[4]", "expected ':'"},
      {"loss_scale %0 \"s\" : f64[]", "loss_scale is f32[], not f64[]"},
      {"micro_count %0 \"n\" : f32[1]", "micro_count is f32[], not f32[1]"},
      {"momentum %0 \"m\" : f32[4]", "`momentum` begins no line of a graph"},
      {"random %0 \"rng\" : i64[2] update %0 %0", "not a state that a step may write"},
      {"hyper %0 \"h\" of 0 : f32[16] update %0 %0", "not a state that a step may write"},
      {"optimizer %0 \"m\" of \"w\" : f32[4] grad %0 %0", "this is not a param"},
      {"input %0 \"x\" : f32[4] %1 = fused(%0) { random %0 \"r\" : i64[2] } : f32[4]",
       "a body has no random"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.lines);
    const std::string error = error_of(fmt::format("tessera 1\ngraph \"x\" {{\n {}\n}}", c.lines));
    CAPTURE(error);
    CHECK(error.find(c.words) != std::string::npos);
    CHECK(error.starts_with("[ir] line 3, column "));
  }
}

TEST_CASE("bad text is refused with its line") {
  CHECK(error_of("tessera 2\ngraph \"x\" {}").find("version 2") != std::string::npos);
  CHECK(error_of("tessera 1\ngraph \"x\" {\n  output %3\n}")
            .find("line 3, column 12: %3 is not defined") != std::string::npos);
  CHECK(error_of("tessera 1\ngraph \"x\" {\n input %0 \"x\" : f32[2]\n %1 = nosuch(%0) : f32[2]\n}")
            .find("`nosuch` is no op") != std::string::npos);
  CHECK(error_of("tessera 1\ngraph \"x\" {\n input %0 \"x\" : f99[2]\n}")
            .find("`f99` is not a dtype") != std::string::npos);
  CHECK(error_of("tessera 1\ngraph \"x\" {").find("does not end") != std::string::npos);
  CHECK(error_of("tessera 1\ngraph \"x\" {\n input %0 \"x\" : f32[2]\n input %0 \"y\" : f32[2]\n}")
            .find("defined twice") != std::string::npos);
  CHECK(error_of("").find("expected a word") != std::string::npos);
}

TEST_CASE("cut text never crashes") {
  std::string text = kEverything;
  for (size_t n = 0; n < text.size(); ++n) {
    try {
      parse_graph(text.substr(0, n));
    } catch (const UserError&) {
    }
  }
  CHECK(true);
}

TEST_CASE("the verifier finds a use before its definition") {
  auto g = parse_graph(kEverything);
  std::swap(g->nodes[0], g->nodes[1]);
  CHECK_THROWS_AS(verify_graph(*g), InternalError);
}

TEST_CASE("rewriting redirects later uses and outputs") {
  auto g = parse_graph(R"(tessera 1
graph "x" {
  input %0 "x" : f32[2]
  %1 = neg(%0) : f32[2]
  %2 = exp(%1) : f32[2]
  output %1, %2
})");
  bool changed = rewrite(*g, [](Node& n, Builder&) -> std::vector<ValueId> {
    if (n.op == Op::Neg) return {n.operands[0]};
    return {};
  });
  CHECK(changed);
  CHECK(print_graph(*g) == R"(tessera 1
graph "x" {
  input %0 "x" : f32[2]
  %1 = exp(%0) : f32[2]
  output %0, %1
}
)");
}

TEST_CASE("ir: an argument that is no tensor is an error of ours, unless it may be none") {
  Graph g;
  const ValueId x = g.add_source(SourceKind::kInput, "x", {DType::F32, {2, 3, 4}, {}});
  Node n;
  n.op = Op::Convolution;
  n.operands = {x};
  n.args = Args{{Arg::operand(0), Arg::none(), Arg::integer(1)}};
  CHECK(n.arg_value(0) == x);
  CHECK(n.arg_value_or_none(1) == kNoValue);
  CHECK(n.arg_value_or_none(7) == kNoValue);
  CHECK_THROWS_WITH_AS(n.arg_value(7), doctest::Contains("argument 7"), InternalError);
  CHECK_THROWS_WITH_AS(n.arg_value(2), doctest::Contains("argument 2"), InternalError);
  CHECK_THROWS_WITH_AS(n.arg_value(1), doctest::Contains("convolution"), InternalError);
  CHECK_THROWS_AS(n.arg_value_or_none(2), InternalError);  // a number is neither
  CHECK_THROWS_AS(n.args.operand(1), InternalError);
}
