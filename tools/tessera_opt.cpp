// SPDX-License-Identifier: Apache-2.0
// tessera-opt: reads a graph in text form, runs passes on it and prints the result, so that what
// one pass does can be looked at from a shell.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "ir/graph.h"
#include "ops/check_types.h"
#include "passes/pass.h"
#include "plan/planner.h"
#include "session/compile.h"
#include "text_cases.h"

namespace {

using namespace tessera;

constexpr const char* kUsage = R"(usage: tessera-opt [options] [file.tir]
       tessera-opt --check|--bless file.tir|folder...
Reads a graph (standard input without a file or with -), runs passes, prints the graph.
  --passes=a,b,...   these passes in this order (none without the option)
  --pipeline         the whole pipeline
  --disable=a,b,...  leave these out
  --inference        not a training graph
  --accumulation=n   micro-batches per weight update
  --plan             the plan of the whole compiler instead: order, memory, tasks
  --strategy=s       of the plan: pipelined, sharded, phased
  --dump             also print the graph after each pass that changed it
  --timing           time and result of each pass, on standard error
  --list             names of the passes, with the reasons for their order
  --check            runs the text cases of files, prints those that differ
  --bless            makes what the cases give now their expected texts, prints the changed files
)";

struct Options {
  std::vector<std::string> paths;
  std::vector<PassRow> rows;
  std::vector<std::string> disabled;
  PassContext context;
  bool training = true;
  Strategy strategy = Strategy::kOne;
  bool plan = false, dump = false, timing = false, list = false, help = false, check = false,
       bless = false;
};

// The pipeline begins after the optimizer has become ops; here that is a pass like the others.
const PassRow kAppendOptimizer = {"append-optimizer", append_optimizer, "append_optimizer"};

const PassRow& pass_named(const std::string& name) {
  const PassRow* row = name == kAppendOptimizer.name ? &kAppendOptimizer : find_pass(name);
  user_check(row != nullptr, "[tessera-opt] no pass is called {}; --list shows the names", name);
  return *row;
}

Options parse_options(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const size_t eq = std::min(arg.find('='), arg.size());
    const std::string key = arg.substr(0, eq), value = eq < arg.size() ? arg.substr(eq + 1) : "";
    if (key == "--passes") {
      for (const std::string& name : split_commas(value)) o.rows.push_back(pass_named(name));
    } else if (key == "--pipeline") {
      o.rows = {kAppendOptimizer};
      o.rows.insert(o.rows.end(), pipeline().begin(), pipeline().end());
    } else if (key == "--disable") {
      for (const std::string& name : split_commas(value))
        o.disabled.push_back(pass_named(name).name);
    } else if (key == "--inference") {
      o.training = false;
    } else if (key == "--accumulation") {
      o.context.gradient_accumulation = count_named(key, value);
    } else if (key == "--plan") {
      o.plan = true;
    } else if (key == "--strategy") {
      o.strategy = strategy_named(value);
    } else if (key == "--dump") {
      o.dump = true;
    } else if (key == "--timing") {
      o.timing = true;
    } else if (key == "--list") {
      o.list = true;
    } else if (key == "--check") {
      o.check = true;
    } else if (key == "--bless") {
      o.bless = true;
    } else if (key == "--help") {
      o.help = true;
    } else {
      user_check(arg == "-" || arg[0] != '-', "[tessera-opt] unknown option {}\n{}", arg, kUsage);
      o.paths.push_back(arg);
    }
  }
  const bool cases = o.check || o.bless;
  if (o.paths.empty() && !cases) o.paths = {"-"};
  user_check(cases ? !o.paths.empty() : o.paths.size() == 1, "{}", kUsage);
  o.context.settings.set("training", Arg::boolean(o.training));
  return o;
}

std::string read_all(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream in(path);
  user_check(in.good(), "[tessera-opt] cannot read {}", path);
  return {std::istreambuf_iterator<char>(in), {}};
}

void list_passes() {
  std::cout << kAppendOptimizer.name << '\n';
  for (const PassRow& row : pipeline())
    std::cout << (*row.reason ? fmt::format("{:<22} {}", row.name, row.reason) : row.name) << '\n';
}

// Returns the number of cases that differ, or of files that were changed.
int run_text_cases(const Options& o) {
  int found = 0;
  for (const std::string& path : o.paths)
    for (const auto& file : case_files(path)) {
      if (o.bless) {
        if (!bless(file)) continue;
        std::cout << "blessed " << file.string() << '\n';
        ++found;
        continue;
      }
      for (const TextCase& c : run_cases(file)) {
        if (c.actual == c.expected) continue;
        std::cout << fmt::format("{}:{}: case '{}' differs; it gives\n{}", file.string(),
                                 c.line + 1, c.name, c.actual);
        ++found;
      }
    }
  return found;
}

void print_plan(const Options& o) {
  CompileOptions options;
  options.settings = o.context.settings;
  options.run.gradient_accumulation = o.context.gradient_accumulation;
  options.placement.strategy = o.strategy;
  std::cout << print_program(compile(read_all(o.paths[0]), options, nullptr).program);
}

void run_passes(const Options& o) {
  auto graph = parse_graph(read_all(o.paths[0]));
  check_types(*graph);
  verify_graph(*graph);
  PassRunner runner;
  runner.disabled = o.disabled;
  if (o.dump) {
    runner.dump = [](const std::string& name, const Graph& g) {
      std::cout << "// after " << name << '\n' << print_graph(g) << '\n';
    };
  }
  runner.run(*graph, o.context, o.rows);
  if (o.timing) {
    for (const PassTiming& t : runner.timings) {
      std::cerr << fmt::format("{:<24} {:8.3f} ms  {:5} nodes  {}\n", t.name, t.ms, t.nodes,
                               t.changed ? "changed" : "");
    }
  }
  std::cout << print_graph(*graph);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options o = parse_options(argc, argv);
    if (o.help)
      std::cout << kUsage;
    else if (o.list)
      list_passes();
    else if (o.check || o.bless)
      return run_text_cases(o) > 0 && o.check;
    else if (o.plan)
      print_plan(o);
    else
      run_passes(o);
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
