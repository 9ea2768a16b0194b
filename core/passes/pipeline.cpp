// SPDX-License-Identifier: Apache-2.0
// The order of the passes, top to bottom, with the reason where the order matters.
#include <algorithm>
#include <chrono>

#include "passes/pass.h"

namespace tessera {

const std::vector<PassRow>& pipeline() {
  static const std::vector<PassRow> rows = {
      {"canonicalize", canonicalize},
      {"decompose-batch-norm", decompose_batch_norm},
      {"simplify", simplify},
      {"fold-constants", fold_constants},  // after simplify: casts of fills are gone
      {"sink-views", sink_views},          // brings pointwise ops to the shape of their producer
      {"simplify-2", simplify},            // the views that sinking made cancel here
      {"cse", cse},
      {"dce", dce},
      {"half-partials", half_partials},
      {"round-randomly", round_randomly},  // after all that changes what is computed and rounded
      {"assign-layouts", assign_layouts},  // after cse: a layout copy is made once
      {"materialize-views", materialize_views},  // the only pass that needs physical strides
      {"cse-2", cse},                            // copies of one value into one order
      {"materialize-outputs",
       materialize_outputs},               // after cse: two results may be copies of one value
      {"fuse-pointwise", fuse_pointwise},  // after cse, or equal regions fuse twice
      {"recompute", recompute},            // before epilogues take regions away
      {"fuse-epilogue", fuse_epilogue},    // on finished regions
      {"dce-2", dce},
  };
  return rows;
}

const PassRow* find_pass(const std::string& name) {
  for (const PassRow& row : pipeline())
    if (row.name == name) return &row;
  return nullptr;
}

void PassRunner::run(Graph& g, const PassContext& ctx, const std::vector<PassRow>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const PassRow& row = rows[i];
    if (std::find(disabled.begin(), disabled.end(), row.name) != disabled.end()) continue;
    auto start = std::chrono::steady_clock::now();
    bool changed = row.run(g, ctx);
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    timings.push_back({row.name, took.count(), changed, static_cast<int>(g.nodes.size())});
    if (changed) {
      try {
        verify_graph(g);
      } catch (const InternalError& e) {
        throw InternalError(fmt::format("after pass {}: {}", row.name, e.what()));
      }
      if (dump) dump(row.name, g);
    }
    if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(rows.size()));
  }
}

}  // namespace tessera
