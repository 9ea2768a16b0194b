// SPDX-License-Identifier: Apache-2.0
// The pipeline, made from the rows of passes.def, and the runner.
#include <algorithm>
#include <chrono>

#include "passes/pass.h"

namespace tessera {
namespace {

// In the bodies of loops and branches first, then around them.
bool run_bodies(const PassRow& row, Graph& g, const PassContext& ctx) {
  bool changed = false;
  for (Node& n : g.nodes)
    for (const std::shared_ptr<Graph>& body : n.bodies) {
      changed |= run_bodies(row, *body, ctx);
      changed |= row.run(*body, ctx);
    }
  return changed;
}

}  // namespace

// A row is declaration and entry; a function with several rows is declared several times.
#define PASS(name, function, reason) bool function(Graph&, const PassContext&);
#include "passes/passes.def"
#undef PASS

const std::vector<PassRow>& pipeline() {
#define PASS(name, function, reason) {name, function, #function, reason},
  static const std::vector<PassRow> rows = {
#include "passes/passes.def"
  };
#undef PASS
  return rows;
}

const PassRow* find_pass(const std::string& name) {
  for (const PassRow& row : pipeline())
    if (row.name == name) return &row;
  return nullptr;
}

void PassRunner::run(Graph& g, const PassContext& ctx, const std::vector<PassRow>& rows) {
  PassContext inner = ctx;
  inner.in_body = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    const PassRow& row = rows[i];
    if (std::find(disabled.begin(), disabled.end(), row.name) != disabled.end()) continue;
    auto start = std::chrono::steady_clock::now();
    const bool inside = run_bodies(row, g, inner);
    const bool changed = row.run(g, ctx) || inside;
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
