// SPDX-License-Identifier: Apache-2.0
// Where replicas exchange values a program is cut: what can not be cut is refused here.
#include <algorithm>

#include "ops/op.h"
#include "passes/partition.h"

namespace tessera {
namespace {

bool has_exchange(const Graph& g) {
  return std::any_of(g.nodes.begin(), g.nodes.end(), [](const Node& n) {
    return n.op == Op::Exchange ||
           std::any_of(n.bodies.begin(), n.bodies.end(),
                       [](const auto& body) { return has_exchange(*body); });
  });
}

}  // namespace

bool check_exchanges(const Graph& g, const PartitionOptions& options) {
  if (!has_exchange(g)) return false;
  user_check(
      options.strategy != Strategy::kPipelined,
      "[replicas] ops between replicas have no place in a pipeline: use ShardedExecution, or "
      "one stage");
  std::vector<bool> result(g.values.size(), false);
  for (const Node& n : g.nodes) {
    for (const auto& body : n.bodies)
      user_check(!has_exchange(*body),
                 "[replicas] ops between replicas have no place in a loop or a branch");
    if (n.op != Op::Exchange) continue;
    const int64_t size = n.args.integer(1), stride = n.args.integer(2);
    user_check(size <= options.replicas && stride <= options.replicas &&
                   options.replicas % (size * stride) == 0,
               "[replicas] groups of {} replicas, {} apart, do not divide {} replicas", size,
               stride, options.replicas);
    result[n.results[0]] = true;
  }
  for (const auto* list : {&g.updates, &g.grads})
    for (const StateUpdate& u : *list)
      user_check(!result[u.value], "[replicas] a state can not be what replicas exchange");
  for (ValueId v : g.outputs)
    user_check(!result[v], "[replicas] an output can not be what replicas exchange");
  return true;
}

}  // namespace tessera
