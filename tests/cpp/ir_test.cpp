// SPDX-License-Identifier: Apache-2.0
// The text form: what is printed parses to the same text, and bad text names its line.
#include <doctest/doctest.h>

#include "ir/graph.h"

using namespace tessera;

namespace {

const char* kEverything = R"(tessera 1
graph "everything" {
  param %0 "a \"quoted\" name" : f32[2,3]
  buffer %1 "rng" : i64[2]
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
