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

namespace {

using namespace tessera;

constexpr const char* kUsage = R"(usage: tessera-opt [options] [file.tir]
Reads a graph (standard input without a file or with -), runs passes, prints the graph.
  --passes=a,b,...   these passes in this order (none without the option)
  --pipeline         the whole pipeline
  --disable=a,b,...  leave these out
  --inference        not a training graph
  --accumulation=n   micro-batches per weight update
  --dump             also print the graph after each pass that changed it
  --timing           time and result of each pass, on standard error
  --list             names of the passes
)";

struct Options {
  std::string path = "-";
  std::vector<PassRow> rows;
  std::vector<std::string> disabled;
  PassContext context{.training = true};
  bool dump = false, timing = false, list = false, help = false;
};

// The pipeline begins after the optimizer has become ops; here that is a pass like the others.
const PassRow kAppendOptimizer = {"append-optimizer", append_optimizer};

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
      o.context.training = false;
    } else if (key == "--accumulation") {
      user_check(!value.empty() && value.size() < 10 && value[0] != '0' &&
                     value.find_first_not_of("0123456789") == std::string::npos,
                 "[tessera-opt] --accumulation needs a number from 1 on, got '{}'", value);
      o.context.gradient_accumulation = std::stoll(value);
    } else if (key == "--dump") {
      o.dump = true;
    } else if (key == "--timing") {
      o.timing = true;
    } else if (key == "--list") {
      o.list = true;
    } else if (key == "--help") {
      o.help = true;
    } else {
      user_check(arg == "-" || arg[0] != '-', "[tessera-opt] unknown option {}\n{}", arg, kUsage);
      o.path = arg;
    }
  }
  return o;
}

std::string read_all(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream in(path);
  user_check(in.good(), "[tessera-opt] cannot read {}", path);
  return {std::istreambuf_iterator<char>(in), {}};
}

void run(const Options& o) {
  if (o.help) {
    std::cout << kUsage;
    return;
  }
  if (o.list) {
    std::cout << kAppendOptimizer.name << '\n';
    for (const PassRow& row : pipeline()) std::cout << row.name << '\n';
    return;
  }
  auto graph = parse_graph(read_all(o.path));
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
    run(parse_options(argc, argv));
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
