// SPDX-License-Identifier: Apache-2.0
#include "ops/physical.h"

#include "ops/view.h"

namespace tessera {

TensorRef dense_ref(const Graph& g, ValueId v) {
  const TensorType& t = g.type(v);
  return {t.dtype, t.shape, t.strides(), v, 0};
}

std::optional<TensorRef> view_ref(const Graph& g, const Node& n, const TensorRef& operand) {
  return apply_view(n.op, n.args, operand, g.type(n.results[0]).shape);
}

}  // namespace tessera
