// SPDX-License-Identifier: Apache-2.0
// A pass is one function in one file: it changes the graph and says whether it did. The pipeline is
// made from the rows of passes.def; the runner verifies, times, dumps and can switch off every
// pass.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/settings.h"
#include "ir/graph.h"

namespace tessera {

struct PassContext {
  int64_t gradient_accumulation = 1;   // micro-batches of all replicas per update
  std::set<std::string> grouped = {};  // parameters with a value per group of replicas
  bool unfused = false;                // every pointwise op is a step of its own
  bool in_body = false;                // the graph is the body of a loop or a branch
  Settings settings = {};              // a pass declares those it reads
};

using PassFn = bool (*)(Graph&, const PassContext&);

struct PassRow {
  const char* name;
  PassFn run;
  const char* function;     // and file; rows of one pass share it
  const char* reason = "";  // for its place in the order
};

struct PassTiming {
  std::string name;
  double ms = 0;
  bool changed = false;
  int nodes = 0;
};

struct PassRunner {
  std::vector<std::string> disabled;  // names, from TESSERA_DISABLE_PASSES
  std::function<void(const std::string& name, const Graph&)>
      dump;  // called after a pass that changed the graph
  std::function<void(double fraction)> progress;
  std::vector<PassTiming> timings;

  void run(Graph& g, const PassContext& ctx, const std::vector<PassRow>& rows);
};

const std::vector<PassRow>& pipeline();
const PassRow* find_pass(const std::string& name);

// Gradients and `optimize` lines become ops and updates of states. Runs before the pipeline.
bool append_optimizer(Graph&, const PassContext&);

// What backward reads of a checkpointed region is made again. Runs before split_update, on the
// whole graph: partition then sees where the new nodes belong.
bool recompute_regions(Graph&, const PassContext&);

// A row of the pipeline that others call too.
bool dce(Graph&, const PassContext&);

// With gradient accumulation a step has two programs; the first runs per micro-batch, the second
// per update. The returned graph is the update; `g` keeps the micro-batch part. Without
// accumulation returns nothing. Runs before append_optimizer.
std::unique_ptr<Graph> split_update(Graph& g, const PassContext& ctx);

}  // namespace tessera
