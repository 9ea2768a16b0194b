// SPDX-License-Identifier: Apache-2.0
#include "plan/step_work.h"

#include <algorithm>

#include "ops/flow.h"
#include "ops/registry.h"
#include "ops/sizes.h"

namespace tessera {
namespace {

int64_t region_flops(const Graph& body, Work& w) {
  int64_t flops = 0;
  for (const Node& n : body.nodes) {
    if (is_pointwise(n.op)) {
      flops += pointwise_flops(n.op) * body.type(n.results[0]).count();
    } else {
      flops += body.type(n.operands[0]).count();
      w.kind = WorkKind::kReduce;
    }
  }
  return flops;
}

}  // namespace

Work work_of(const Graph& g, const Node& n) {
  if (n.op == Op::HostCall || n.op == Op::Fused) {
    Work w;
    w.kind = n.op == Op::HostCall ? WorkKind::kHost : WorkKind::kPointwise;
    for (ValueId v : n.operands) w.bytes += g.type(v).bytes();
    for (ValueId v : n.results) w.bytes += g.type(v).bytes();
    if (n.body) w.flops = region_flops(*n.body, w);
    return w;
  }
  Work w = op_row(n.op).work(g, n);
  if (n.body) {
    Work extra;
    w.flops += region_flops(*n.body, extra);
    for (size_t i = 2; i < n.operands.size(); ++i) w.bytes += g.type(n.operands[i]).bytes();
  }
  return w;
}

Work work_of_bodies(const Node& n, const std::vector<std::shared_ptr<Section>>& bodies) {
  const int64_t turns = n.op == Op::Scan ? loop_parts(n.op, n.args).count : 1;
  Work most{WorkKind::kPointwise};
  for (const auto& body : bodies) {
    Work w;
    int64_t largest = -1;  // of the steps, which gives the kind
    for (const Work& step : body->work) {
      w.flops = operations({w.flops + step.flops});
      w.bytes = operations({w.bytes + step.bytes});
      if (step.flops > largest) w.kind = step.kind;
      largest = std::max(largest, step.flops);
    }
    if (w.flops + w.bytes >= most.flops + most.bytes) most = w;
  }
  most.flops = operations({most.flops, turns});
  most.bytes = operations({std::max<int64_t>(most.bytes, 1), turns});
  return most;
}

}  // namespace tessera
