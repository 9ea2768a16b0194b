// SPDX-License-Identifier: Apache-2.0
// exchange(x, size, stride) between replicas. It is no step of a task: the program is cut there
// (passes/partition.cpp), and the engine moves the parts when all replicas have come to it.
#include "ops/registry.h"

namespace tessera {

std::vector<TensorType> infer_exchange(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.operands[0]);
  const int64_t size = n.args.integer(1), stride = n.args.integer(2);
  user_check(size > 0 && stride > 0, "[exchange] a group of {} replicas, {} apart", size, stride);
  user_check(x.rank() > 0 && x.shape[0] == size,
             "[exchange] {} has no part for each of {} replicas in its first dim", to_string(x),
             size);
  return {{x.dtype, x.shape, {}}};
}

Work work_exchange(const Graph& g, const Node& n) {
  return {.kind = WorkKind::kCopy, .bytes = 2 * g.type(n.operands[0]).bytes()};
}

KernelPtr make_exchange(const StepDesc&) {
  throw UserError("[exchange] replicas exchange values between tasks, not within one");
}

bool accepts_exchange(Op, int, const TensorRef& physical) {
  return physical.contiguous();
}

}  // namespace tessera
