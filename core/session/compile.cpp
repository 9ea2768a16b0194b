// SPDX-License-Identifier: Apache-2.0
#include "session/compile.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/env.h"
#include "ir/names.h"
#include "ops/check_types.h"
#include "passes/pass.h"
#include "plan/planner.h"
#include "runtime/clock.h"

namespace tessera {
namespace {

// Shows the graph after each step that changed it: files for TESSERA_DUMP, the error stream for
// TESSERA_DEBUG.
class Dumper {
 public:
  Dumper() : dir_(env::dump()) {}
  void write(const std::string& what, const Graph& g) {
    if (env::debug_level() >= 4)
      fmt::print(stderr, "tessera: {} {}\n{}", g.name, what, print_graph(g));
    if (dir_.empty()) return;
    std::error_code failed;
    std::filesystem::create_directories(dir_, failed);
    user_check(!failed, "TESSERA_DUMP: cannot make the directory {}: {}", dir_, failed.message());
    const std::string path = fmt::format("{}/{}_{:02}_{}.tir", dir_, g.name, count_++, what);
    std::ofstream out(path);
    out << print_graph(g);
    user_check(out.flush().good(), "TESSERA_DUMP: cannot write {}: {}", path, std::strerror(errno));
  }

 private:
  std::string dir_;
  int count_ = 0;
};

PassContext context_of(const CompileOptions& options) {
  const RunConfig& run = options.run;
  PassContext ctx{.gradient_accumulation = run.gradient_accumulation * run.replicas};
  for (const GroupedParam& p : run.grouped) ctx.grouped.insert(p.name);
  ctx.settings = options.settings;
  // A bad number in the middle of a region could vanish again, as in 1 / exp(1000).
  ctx.unfused = run.check_floats;
  return ctx;
}

class Compiler {
 public:
  Compiler(const CompileOptions& options, const std::function<void(double)>& progress)
      : options_(options), progress_(progress), ctx_(context_of(options)) {
    runner_.disabled = split_commas(env::disable_passes());
    for (const std::string& name : runner_.disabled)
      user_check(find_pass(name), "TESSERA_DISABLE_PASSES: there is no pass {}", name);
    runner_.dump = [this](const std::string& name, const Graph& g) {
      dumper_.write("after_" + name, g);
    };
    runner_.progress = [this](double f) { report(5 + 30 * f); };
  }

  // The steps in their order; each works on what the one before has left.
  Compiled run(const std::string& text) {
    timed("import", [&] { import(text); });
    report(5);
    timed("recompute-regions", [&] { recompute_checkpointed(); });
    timed("optimizer", [&] { add_optimizer(); });
    timed("partition", [&] { partition_graph(); });
    run_passes();
    timed("plan", [&] { plan(); });
    // A pass that is switched off does not ask for its settings.
    if (runner_.disabled.empty()) options_.settings.check_all_asked();
    report(45);
    return std::move(out_);
  }

 private:
  void report(double percent) {
    if (progress_) progress_(percent);
  }

  template <typename F>
  void timed(const char* name, const F& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    out_.timings.push_back({name, 1e3 * seconds_since(start)});
  }

  // Text to a checked graph, with the anchors among its outputs.
  void import(const std::string& text) {
    graph_ = parse_graph(text);
    check_types(*graph_);
    for (auto& [name, value] : tensor_names(*graph_)) out_.tensor_names.push_back(std::move(name));
    add_anchors(*graph_, options_.anchors);
    verify_graph(*graph_);
    dumper_.write("import", *graph_);
  }

  // Checkpointed regions of forward, once more in backward.
  void recompute_checkpointed() {
    if (!recompute_regions(*graph_, ctx_)) return;
    verify_graph(*graph_);
    dumper_.write("recompute-regions", *graph_);
  }

  // Gradients to updates of weights: in the graph, or in one of their own that runs once for
  // several micro-batches.
  void add_optimizer() {
    update_ = split_update(*graph_, ctx_);
    append_optimizer(*graph_, ctx_);
    if (update_) append_optimizer(*update_, ctx_);
    verify_graph(*graph_);
    dumper_.write("optimizer", *graph_);
  }

  // What each IPU does of a micro-batch in one go.
  void partition_graph() {
    PartitionOptions placement = options_.placement;
    placement.replicas = options_.run.replicas;
    parts_ = partition(*graph_, placement);
    for (TaskGraph& task : parts_.tasks) {
      verify_graph(*task.graph);
      if (parts_.tasks.size() > 1) dumper_.write("task", *task.graph);
    }
  }

  void run_passes() {
    for (TaskGraph& task : parts_.tasks) runner_.run(*task.graph, ctx_, pipeline());
    if (update_) runner_.run(*update_, ctx_, pipeline());
    for (const PassTiming& t : runner_.timings) out_.timings.push_back({t.name, t.ms});
  }

  // Order, aliasing and offsets.
  void plan() {
    out_.program = plan_program(*graph_, std::move(parts_), update_.get());
    if (env::debug_level() >= 3) fmt::print(stderr, "tessera: {}", print_program(out_.program));
  }

  const CompileOptions& options_;
  const std::function<void(double)>& progress_;
  PassContext ctx_;
  Dumper dumper_;
  PassRunner runner_;
  std::unique_ptr<Graph> graph_, update_;
  Partition parts_;
  Compiled out_;
};

}  // namespace

Compiled compile(const std::string& text, const CompileOptions& options,
                 const std::function<void(double)>& progress) {
  check_options(options);
  return Compiler(options, progress).run(text);
}

}  // namespace tessera
