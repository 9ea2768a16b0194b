// SPDX-License-Identifier: Apache-2.0
// Where every value of a graph lies in memory, before buffers have addresses: produced values are
// dense in their order, views alias what they look at.
#pragma once

#include <optional>
#include <vector>

#include "base/tensor.h"
#include "ir/graph.h"

namespace tessera {

// Where a value lies: `region` is the id of the value that owns the memory, `offset` bytes into it.
TensorRef dense_ref(const Graph& g, ValueId v);
// Where the result of view node `n` lies, given its operand; nothing if it cannot alias.
std::optional<TensorRef> view_ref(const Graph& g, const Node& n, const TensorRef& operand);

}  // namespace tessera
