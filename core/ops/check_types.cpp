// SPDX-License-Identifier: Apache-2.0
#include "ops/check_types.h"

#include "ops/registry.h"
#include "ops/view.h"

namespace tessera {

void check_types(const Graph& g) {
  for (const Node& n : g.nodes) {
    if (op_kind(n.op) == OpKind::kPointwise) continue;
    const std::string where = describe_location(g, n.loc);
    std::vector<TensorType> types;
    try {
      types = op_row(n.op).infer(g, n);
    } catch (UserError& error) {
      throw UserError(error.what(), where);
    }
    invariant(types.size() == n.results.size(), "{} has {} results, {} are stated", op_text(n.op),
              types.size(), n.results.size());
    for (size_t i = 0; i < types.size(); ++i) {
      const TensorType& stated = g.type(n.results[i]);
      invariant(types[i].dtype == stated.dtype && types[i].shape == stated.shape,
                "result {} of {} is {}{}, stated is {}{} ({})", i, op_text(n.op),
                name_of(types[i].dtype), text_of(types[i].shape), name_of(stated.dtype),
                text_of(stated.shape), where);
    }
  }
}

}  // namespace tessera
