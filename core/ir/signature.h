// SPDX-License-Identifier: Apache-2.0
// What a call must look like before anything reads its arguments: how many there are, and of what
// kind and dtype each is. The facts are the rows of ops.def and pointwise.def.
#pragma once

#include "ir/graph.h"

namespace tessera {

// Throws UserError for a call that does not fit the row of its op.
void check_signature(const Graph& g, const Node& n);

}  // namespace tessera
