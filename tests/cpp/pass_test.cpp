// SPDX-License-Identifier: Apache-2.0
// The text cases core/passes/*.tir, and the runner of passes.
#include "passes/pass.h"

#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include "text_cases.h"

using namespace tessera;

TEST_CASE("pass cases") {
  for (const auto& file : case_files(TESSERA_CORE_DIR "/passes")) {
    CAPTURE(file.filename().string());
    for (const TextCase& c : run_cases(file)) {
      CAPTURE(c.name);
      CHECK(c.actual == c.expected);
    }
  }
}

TEST_CASE("every pass has text cases") {
  std::set<std::string> files, passes{"append_optimizer", "recompute_regions", "split_update"};
  for (const auto& file : case_files(TESSERA_CORE_DIR "/passes")) files.insert(file.stem());
  for (const PassRow& row : pipeline()) passes.insert(row.function);
  CHECK(files == passes);
}

TEST_CASE("blessing writes what the passes give now, and only where it differs") {
  const auto right = std::filesystem::path(TESSERA_CORE_DIR "/passes/dce.tir");
  const auto dir = std::filesystem::temp_directory_path() / "tessera_bless";
  std::filesystem::create_directories(dir);
  const auto copy = dir / "dce.tir";  // the name says which pass
  auto text_of = [](const std::filesystem::path& file) {
    std::ifstream in(file);
    return std::string{std::istreambuf_iterator<char>(in), {}};
  };
  const std::string text = text_of(right), mark = "// expect:\n";
  // A line that is wrong, one too many, the expected text of the last case missing.
  std::string wrong = text;
  wrong.insert(wrong.find(mark) + mark.size(), "nothing like it\n");
  const std::string without = text.substr(0, text.rfind(mark));
  for (const std::string& damaged : {wrong, text + "output %99\n", without}) {
    std::ofstream(copy) << damaged;
    int differ = 0;
    for (const TextCase& c : run_cases(copy)) differ += c.actual != c.expected;
    CHECK(differ == 1);
    CHECK(bless(copy));
    CHECK(text_of(copy) == text);
    CHECK_FALSE(bless(copy));
  }
  // A program that the pass cannot run is reported with its line and nothing is written.
  std::ofstream(copy) << "// case: broken\ntessera 1\ngraph \"g\" {\n  output %7\n}\n";
  CHECK_THROWS_WITH_AS(bless(copy), doctest::Contains("case 'broken': [ir] line 4"), UserError);
  CHECK(text_of(copy).find("expect") == std::string::npos);
  // So is a setting that is none, and a folder without cases.
  const std::string empty = "tessera 1\ngraph \"g\" {}\n";
  for (const char* setting :
       {"accumulation: many", "accumulation: 0", "strategy: none", "speed: 2"}) {
    std::ofstream(copy) << "// case: setting\n// " << setting << '\n' << empty;
    CHECK_THROWS_AS(bless(copy), UserError);
  }
  std::filesystem::remove(copy);
  CHECK_THROWS_WITH_AS(case_files(dir), doctest::Contains("has no text cases"), UserError);
  std::filesystem::remove_all(dir);
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
