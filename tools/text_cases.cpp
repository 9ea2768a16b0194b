// SPDX-License-Identifier: Apache-2.0
#include "text_cases.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include "base/error.h"
#include "ops/check_types.h"
#include "passes/pass.h"
#include "plan/planner.h"
#include "session/compile.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const std::string kCase = "// case: ", kExpect = "// expect:\n";

std::string read_file(const fs::path& file) {
  std::ifstream in(file);
  user_check(in.good(), "cannot read {}", file.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string without_blank_end(std::string text) {
  text.erase(text.find_last_not_of("\n ") + 1);
  return text.empty() ? text : text + "\n";
}

// The settings of a case: lines "// key: value" between its name and its program.
CompileOptions options_of(const TextCase& c) {
  CompileOptions o;
  o.settings.set("training", Arg::boolean(true));
  size_t at = c.source.find('\n') + 1;
  while (c.source.compare(at, 3, "// ") == 0) {
    const size_t end = c.source.find('\n', at), colon = c.source.find(": ", at);
    user_check(colon < end, "'{}' is not a setting", c.source.substr(at, end - at));
    const std::string key = c.source.substr(at + 3, colon - at - 3);
    const std::string value = c.source.substr(colon + 2, end - colon - 2);
    if (key == "accumulation") {
      o.run.gradient_accumulation = count_named(key, value);
    } else if (key == "replicas") {
      o.run.replicas = count_named(key, value);
    } else {
      user_check(key == "strategy", "there is no setting '{}'", key);
      o.placement.strategy = strategy_named(value);
    }
    at = end + 1;
  }
  return o;
}

// Empty lines before the program, so that errors name lines of the file.
std::string program_of(const TextCase& c) {
  return std::string(static_cast<size_t>(c.line), '\n') + c.source;
}

// What the pass of a file makes of a case.
std::string run_pass(const std::string& function, const TextCase& c) {
  PassContext ctx;
  ctx.gradient_accumulation = options_of(c).run.gradient_accumulation;
  // Each is read by its own pass.
  for (const char* name : {"training", "stochastic_rounding", "half_partials", "recompute_all"})
    ctx.settings.set(name, Arg::boolean(true));
  auto g = parse_graph(program_of(c));
  check_types(*g);
  verify_graph(*g);
  if (function == "append_optimizer") {
    append_optimizer(*g, ctx);
  } else if (function == "recompute_regions") {
    recompute_regions(*g, ctx);
  } else if (function == "split_update") {
    auto update = split_update(*g, ctx);
    verify_graph(*g);
    if (!update) return print_graph(*g);
    verify_graph(*update);
    return print_graph(*g) + print_graph(*update);
  } else {
    auto row = std::find_if(pipeline().begin(), pipeline().end(),
                            [&](const PassRow& r) { return r.function == function; });
    user_check(row != pipeline().end(), "no row of passes.def has the function {}", function);
    PassRunner().run(*g, ctx, {*row});
  }
  verify_graph(*g);
  return print_graph(*g);
}

// What the whole compiler plans for a case.
std::string run_planner(const TextCase& c) {
  return print_program(compile(program_of(c), options_of(c), nullptr).program);
}

// The text before the first case, and the cases.
std::pair<std::string, std::vector<TextCase>> read_cases(const fs::path& file) {
  const std::string text = read_file(file);
  size_t at = text.find(kCase);
  user_check(at != std::string::npos, "{} has no line '{}<name>'", file.string(), kCase);
  std::pair<std::string, std::vector<TextCase>> out{text.substr(0, at), {}};
  while (at != std::string::npos) {
    const size_t next = text.find("\n" + kCase, at);
    const std::string all = text.substr(at, next == std::string::npos ? next : next + 1 - at);
    const size_t middle = all.find(kExpect);
    TextCase c;
    c.line = static_cast<int>(std::count(text.begin(), text.begin() + static_cast<long>(at), '\n'));
    c.name = all.substr(kCase.size(), all.find('\n') - kCase.size());
    c.source = without_blank_end(all.substr(0, middle));
    if (middle != std::string::npos)
      c.expected = without_blank_end(all.substr(middle + kExpect.size()));
    out.second.push_back(std::move(c));
    at = next == std::string::npos ? next : next + 1;
  }
  return out;
}

void run(const fs::path& file, std::vector<TextCase>& cases) {
  for (TextCase& c : cases) {
    try {
      const bool plan = file.parent_path().filename() == "plan";
      c.actual = without_blank_end(plan ? run_planner(c) : run_pass(file.stem(), c));
    } catch (const Error& e) {
      throw UserError(fmt::format("{}, case '{}': {}", file.string(), c.name, e.what()));
    }
  }
}

}  // namespace

Strategy strategy_named(const std::string& name) {
  static const std::map<std::string, Strategy> strategies = {{"pipelined", Strategy::kPipelined},
                                                             {"sharded", Strategy::kSharded},
                                                             {"phased", Strategy::kPhased}};
  auto it = strategies.find(name);
  user_check(it != strategies.end(), "no strategy is called '{}'", name);
  return it->second;
}

int64_t count_named(const std::string& key, const std::string& value) {
  user_check(!value.empty() && value.size() < 10 && value[0] != '0' &&
                 value.find_first_not_of("0123456789") == std::string::npos,
             "{} needs a number from 1 on, got '{}'", key, value);
  return std::stoll(value);
}

std::vector<TextCase> run_cases(const fs::path& file) {
  std::vector<TextCase> cases = read_cases(file).second;
  run(file, cases);
  return cases;
}

bool bless(const fs::path& file) {
  auto [text, cases] = read_cases(file);
  run(file, cases);
  for (const TextCase& c : cases) text += c.source + kExpect + c.actual;
  if (text == read_file(file)) return false;
  std::ofstream out(file);
  out << text;
  user_check(out.flush().good(), "cannot write {}", file.string());
  return true;
}

std::vector<fs::path> case_files(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.path().extension() == ".tir") files.push_back(entry.path());
  user_check(!files.empty(), "{} has no text cases", path.string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace tessera
