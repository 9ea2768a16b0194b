// SPDX-License-Identifier: Apache-2.0
// Every file of tests/passes holds cases for one pass: text in, expected text out.
#include "passes/pass.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "ops/check_types.h"

using namespace tessera;

namespace {

std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string after(const std::string& text, const std::string& mark) {
  size_t at = text.find(mark);
  REQUIRE_MESSAGE(at != std::string::npos, "no `" << mark << "` in the case");
  size_t start = at + mark.size();
  return text.substr(start, text.find('\n', start) - start);
}

std::vector<std::string> split(const std::string& text, const std::string& mark) {
  std::vector<std::string> out;
  size_t at = text.find(mark);
  while (at != std::string::npos) {
    size_t next = text.find(mark, at + mark.size());
    out.push_back(text.substr(at, next == std::string::npos ? next : next - at));
    at = next;
  }
  return out;
}

std::string run_pass(const std::string& name, const std::string& text, const PassContext& ctx) {
  auto g = parse_graph(text);
  check_types(*g);
  verify_graph(*g);
  std::vector<PassRow> rows;
  if (name == "append-optimizer") {
    append_optimizer(*g, ctx);
    verify_graph(*g);
  } else if (name == "split-update") {
    auto update = split_update(*g, ctx);
    verify_graph(*update);
    return print_graph(*g) + print_graph(*update);
  } else {
    const PassRow* row = find_pass(name);
    REQUIRE_MESSAGE(row, "no pass is called " << name);
    rows.push_back(*row);
  }
  PassRunner runner;
  runner.run(*g, ctx, rows);
  return print_graph(*g);
}

}  // namespace

TEST_CASE("pass cases") {
  std::set<std::string> seen;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_TESTS_DIR "/passes"))
    if (entry.path().extension() == ".tir") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::string text = slurp(path);
    std::string name = after(text, "// pass: ");
    for (const std::string& c : split(text, "// case: ")) {
      CAPTURE(path.filename().string());
      CAPTURE(after(c, "// case: "));
      size_t middle = c.find("// expect:");
      REQUIRE(middle != std::string::npos);
      PassContext ctx{true, 1, true};
      ctx.stochastic_rounding = ctx.half_partials = true;  // read by their own passes only
      if (c.find("// accumulation: ") != std::string::npos)
        ctx.gradient_accumulation = std::stoi(after(c, "// accumulation: "));
      std::string expect = c.substr(c.find('\n', middle) + 1);
      expect.erase(expect.find_last_not_of("\n ") + 1);
      std::string got = run_pass(name, c.substr(0, middle), ctx);
      got.erase(got.find_last_not_of("\n ") + 1);
      CHECK(got == expect);
      seen.insert(name);
    }
  }
  std::set<std::string> all{"append-optimizer", "split-update"};
  for (const PassRow& row : pipeline()) {
    const std::string name = row.name;
    all.insert(name.ends_with("-2") ? name.substr(0, name.size() - 2) : name);
  }
  CHECK(seen == all);
}

TEST_CASE("a disabled pass does not run") {
  auto g = parse_graph(
      "tessera 1\ngraph \"x\" { input %0 \"x\" : f32[2] %1 = neg(%0) : f32[2] output %0 }");
  PassRunner runner;
  runner.disabled = {"dce"};
  runner.run(*g, {}, {*find_pass("dce")});
  CHECK(g->nodes.size() == 1);
  CHECK(runner.timings.empty());
  runner.disabled.clear();
  runner.run(*g, {}, {*find_pass("dce")});
  CHECK(g->nodes.empty());
  CHECK(runner.timings[0].changed);
}
