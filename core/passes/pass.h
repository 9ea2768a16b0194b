// SPDX-License-Identifier: Apache-2.0
// A pass is one function in one file: it changes the graph and says whether it did. The pipeline is
// a list of rows; the runner verifies, times, dumps and can switch off every pass.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace tessera {

struct PassContext {
  bool training = false;
  int64_t gradient_accumulation = 1;
  bool mean_reduction = true;  // gradients are averaged over accumulated micro-batches, else summed
  bool running_mean = false;   // and the accumulator is their mean at any time
  std::set<std::string> grouped = {};  // parameters with a value per group of replicas
  bool stochastic_rounding = false;
  bool half_partials = false;  // products of f16 accumulate in f16
  bool one_by_one = false;     // every pointwise op is a step of its own
};

using PassFn = bool (*)(Graph&, const PassContext&);

struct PassRow {
  const char* name;
  PassFn run;
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

bool append_optimizer(Graph&, const PassContext&);
bool assign_layouts(Graph&, const PassContext&);
bool canonicalize(Graph&, const PassContext&);
bool cse(Graph&, const PassContext&);
bool dce(Graph&, const PassContext&);
bool decompose_batch_norm(Graph&, const PassContext&);
bool fold_constants(Graph&, const PassContext&);
bool fuse_epilogue(Graph&, const PassContext&);
bool fuse_pointwise(Graph&, const PassContext&);
bool half_partials(Graph&, const PassContext&);
bool materialize_outputs(Graph&, const PassContext&);
bool materialize_views(Graph&, const PassContext&);
bool recompute(Graph&, const PassContext&);
bool round_randomly(Graph&, const PassContext&);
bool simplify(Graph&, const PassContext&);
bool sink_views(Graph&, const PassContext&);

// With gradient accumulation a step has two programs; the first runs per micro-batch, the second
// per update. The returned graph is the update; `g` keeps the micro-batch part. Without
// accumulation returns nothing.
std::unique_ptr<Graph> split_update(Graph& g, const PassContext& ctx);

}  // namespace tessera
