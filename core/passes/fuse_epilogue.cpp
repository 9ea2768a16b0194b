// SPDX-License-Identifier: Apache-2.0
// A region that reads a matrix product nothing else reads becomes the product's epilogue: it runs
// on each block of the result while that block is in cache (bias, activation, dropout, residual,
// and the optimizer on a weight gradient).
#include <algorithm>

#include "passes/pass.h"

namespace tessera {
namespace {

bool pure_pointwise(const Graph& body) {
  for (const Node& n : body.nodes)
    if (!is_pointwise(n.op) || n.op == Op::Iota) return false;
  return true;
}

}  // namespace

bool fuse_epilogue(Graph& g, const PassContext& ctx) {
  if (ctx.unfused) return false;
  std::vector<int32_t> uses = use_counts(g), made_by = producers(g);
  std::vector<bool> gone(g.nodes.size(), false);
  bool changed = false;
  for (Node& f : g.nodes) {
    if (f.op != Op::Fused || !pure_pointwise(*f.body)) continue;
    const Dims shape = g.type(f.results[0]).shape;
    bool plain = true;
    for (ValueId v : f.results) plain &= g.type(v).shape == shape && g.type(v).order.empty();
    if (!plain) continue;
    int best = -1;  // operand index; the latest product, so that the move is short
    for (size_t i = 0; i < f.operands.size(); ++i) {
      ValueId v = f.operands[i];
      int p = made_by[v];
      if (p < 0 || gone[p] || uses[v] != 1 || g.type(v).shape != shape ||
          g.type(v).dtype != DType::F32)
        continue;
      const Node& m = g.nodes[p];
      if ((m.op != Op::Mm && m.op != Op::Bmm) || m.body || !g.type(v).order.empty()) continue;
      if (best < 0 || p > made_by[f.operands[best]]) best = static_cast<int>(i);
    }
    if (best < 0) continue;
    int p = made_by[f.operands[best]];
    const Node& m = g.nodes[p];
    Node fused;
    fused.op = m.op;
    fused.loc = m.loc;
    fused.operands = m.operands;
    fused.results = f.results;
    fused.body = f.body;
    std::vector<Source>& sources = fused.body->sources;
    std::rotate(sources.begin(), sources.begin() + best, sources.begin() + best + 1);
    for (size_t i = 0; i < f.operands.size(); ++i)
      if (static_cast<int>(i) != best) fused.operands.push_back(f.operands[i]);
    for (size_t i = 0; i < fused.operands.size(); ++i)
      fused.args.list.push_back(Arg::operand(static_cast<int64_t>(i)));
    f = std::move(fused);
    gone[p] = true;
    changed = true;
  }
  if (!changed) return false;
  std::vector<Node> kept;
  for (size_t i = 0; i < g.nodes.size(); ++i)
    if (!gone[i]) kept.push_back(std::move(g.nodes[i]));
  g.nodes = std::move(kept);
  return true;
}

}  // namespace tessera
